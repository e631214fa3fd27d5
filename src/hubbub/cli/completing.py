"""What a shell offers for a word that is not finished yet: settings, and folders of runs."""

import itertools
from collections.abc import Callable
from pathlib import Path

__all__ = ["configs", "runs"]

# What a run's folder holds from its first second on.
_MARK = "ledger.jsonl"
_MOST = 1000


def configs(incomplete: str) -> list[str]:
    """Settings that begin so: files in the folder that was typed, and in the folders there."""
    return _found(incomplete, lambda entry: entry.suffix == ".toml" and entry.is_file())


def runs(incomplete: str) -> list[str]:
    """Folders of runs that begin so, in the folder that was typed and in the folders there, such as runs/."""
    return _found(incomplete, _is_run)


def _found(incomplete: str, fits: Callable[[Path], bool]) -> list[str]:
    """Paths, spelled as they were begun; where there is none, shells offer files by themselves."""
    begun = incomplete.rpartition("/")[2]
    typed = incomplete.removesuffix(begun)
    # Hidden things stay hidden until they are asked for.
    near = [typed + name for name in _names(typed) if name.startswith(begun) and (begun or not name.startswith("."))]
    below = [f"{folder}/{name}" for folder in near if not _is_run(Path(folder)) for name in _names(folder)]
    return sorted(path for path in near + below if fits(Path(path)))


def _is_run(folder: Path) -> bool:
    return (folder / _MARK).is_file()


def _names(folder: str) -> list[str]:
    try:
        return [entry.name for entry in itertools.islice(Path(folder).iterdir(), _MOST)]
    except OSError:
        return []
