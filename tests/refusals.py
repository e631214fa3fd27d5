"""Commands that must be refused, in one line with exit code 2, and calls, with no secret in what they say."""

import contextlib
import hashlib
import io
import resource
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from recorded_runs import hubbub

ACCOUNT = ["account", "--rounds", "5", "--delta", "1e-5", "--noise-multiplier", "1"]


def refused(arguments: Sequence[object], *words: str) -> str:
    """The line that says why a command is refused, with these words."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()) as said:
        status = hubbub(*arguments)
    error = said.getvalue()
    assert "differential privacy for each" not in printed.getvalue(), "what is refused promises nothing"
    assert status == 2, error
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1, error
    assert not [word for word in words if word not in error], error
    return error


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, by digest."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def settings(config: str, *assignments: str) -> list[str]:
    """The arguments that train with settings over a file."""
    flags = [part for assignment in assignments for part in ("--set", assignment)]
    return ["train", config, "--out", "new", *flags]


@contextlib.contextmanager
def limited(what: int, most: int) -> Iterator[None]:
    """This process has no more of a resource."""
    before = resource.getrlimit(what)
    resource.setrlimit(what, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


@contextlib.contextmanager
def traced() -> Iterator[Callable[[], tuple[int, int]]]:
    """What is allocated from here on, in bytes: now, and at most."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


@contextlib.contextmanager
def little_memory(more: int) -> Iterator[None]:
    """This process may take so many bytes beyond what it has."""
    held = Path("/proc/self/statm")
    if not held.exists():
        pytest.skip("this system does not say how much memory a process has")
    with limited(resource.RLIMIT_AS, int(held.read_text().split()[0]) * resource.getpagesize() + more):
        yield


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
