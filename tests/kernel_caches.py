"""Where tests have their compiled kernels."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hubbub import compiled


@contextmanager
def kernels_in(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels are not switched off, and are looked for in this cache; afterwards, anew."""
    patch.setenv("HUBBUB_CACHE", str(folder))
    patch.delenv("HUBBUB_KERNEL", raising=False)
    compiled._loaded.cache_clear()
    yield
    compiled._loaded.cache_clear()
