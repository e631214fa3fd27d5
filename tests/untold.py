"""What a call says that must be refused, with no secret in it."""

from collections.abc import Callable, Iterable

import pytest


def forms(secrets: Iterable[int]) -> list[str]:
    """How whole numbers are written."""
    return [form for secret in secrets for form in (str(secret), f"{secret:x}", f"{secret:X}")]


def refusal(call: Callable[[], object], untold: Iterable[str], *kinds: type[Exception]) -> str:
    """What the refusal says. It is short, and no text of ``untold`` is in it or in what caused it."""
    with pytest.raises(kinds or (ValueError, TypeError)) as caught:
        call()
    error: BaseException | None = caught.value
    while error is not None:
        text = f"{error} {error!r}"
        assert len(text) < 1500
        assert not any(secret in text for secret in untold), text
        error = error.__cause__ or error.__context__
    return str(caught.value)
