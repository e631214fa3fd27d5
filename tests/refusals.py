"""Commands in a folder of their own: those that must be refused, in one line with exit code 2, and those that must not."""

import contextlib
import hashlib
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hubbub.cli import main

GOOD = """
[training]
rounds = 2
cohort_size = 2

[privacy]
mode = "dp-fedavg"
noise_multiplier = 1.0

[data]
name = "digits"
clients = 10
"""

CORRELATED = """
[training]
rounds = 4
cohort_size = 2

[privacy]
mode = "dp-ftrl"
noise_multiplier = 1.0

[participation]
min_separation = 2

[data]
name = "digits"
clients = 10
"""

ACCOUNT = ["account", "--rounds", "5", "--delta", "1e-5", "--noise-multiplier", "1"]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own with two good configs, as the current one."""
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.chdir(tmp_path)
    # Names of own code are looked up in the current folder too, which a command adds here.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("HUBBUB_DEBUG", raising=False)
    monkeypatch.delenv("HUBBUB_DATA", raising=False)
    Path("good.toml").write_text(GOOD)
    Path("correlated.toml").write_text(CORRELATED)
    Path("pattern.toml").write_text(CORRELATED.replace("min_separation = 2\n", ""))
    yield tmp_path
    sys.modules.pop("own_code", None)
    signal.signal(signal.SIGINT, handler)


Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must be refused; gives back the line that says why."""

    def run(arguments: list[str], *words: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        printed, error = capsys.readouterr()
        assert "differential privacy for each" not in printed, "what is refused promises nothing"
        assert stop.value.code == 2, error
        assert "Traceback" not in error
        assert len(error.splitlines()) == 1, error
        assert not [word for word in words if word not in error], error
        return error

    return run


def output(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """What a command that succeeds prints on standard output."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    printed = capsys.readouterr()
    assert stop.value.code == 0, printed.err
    return printed.out


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, by digest."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def settings(config: str, *assignments: str) -> list[str]:
    """The arguments that train with settings over a file."""
    flags = [part for assignment in assignments for part in ("--set", assignment)]
    return ["train", config, "--out", "new", *flags]


@contextlib.contextmanager
def little_memory(more: int) -> Iterator[None]:
    """This process may take so many bytes beyond what it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
