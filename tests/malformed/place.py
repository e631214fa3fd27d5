"""The run that is damaged, the commands that must refuse it, what a case is, and how the folder is put back as it was."""

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hubbub.datasets import Dataset
from malformed.contents import canonical, chained

# A word that the refusal must hold, or several of which one is enough.
Word = str | tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """Something that is said to a function of hubbub instead of to a command.

    Args:
        name: Of the function, for people.
        do: Must raise a ``ValueError``, a ``TypeError`` or an error of hubbub's own.
    """

    name: str
    do: Callable[[], object]


Command = tuple[str, ...] | Call
Damage = Callable[[], object]

RESUME: tuple[str, ...] = ("resume", "run", "--allow-import")
VERIFY: tuple[str, ...] = ("verify", "run")
LEDGER: tuple[str, ...] = ("ledger", "run")
PLAN: tuple[str, ...] = ("plan", "plan.toml", "--allow-import")
CLOSE: tuple[str, ...] = ("close", "run", "--early")

ACCOUNT: tuple[str, ...] = ("account", "--rounds", "6", "--delta", "1e-5")
NOISY: tuple[str, ...] = (*ACCOUNT, "--noise-multiplier", "1")
CALIBRATE: tuple[str, ...] = ("calibrate", "--rounds", "6", "--delta", "1e-5", "--epsilon", "2")
# A run counted by its ledger, and as an earlier one of another.
COUNTED: tuple[str, ...] = ("account", "run", "--delta", "1e-5")
EARLIER: tuple[str, ...] = (*PLAN, "--set", 'privacy.earlier_runs=["run"]')
EVERY = (VERIFY, RESUME, LEDGER, COUNTED)

CONFIG = """\
training = { rounds = 12, cohort_size = 3 }
privacy = { mode = "dp-ftrl", noise_multiplier = 1.0 }
participation = { min_separation = 3 }
data = { name = "malformed:people", clients = 12 }
model = { name = "malformed:Line" }
"""


class Accepted(BaseException):
    """A command went on to train with what it should have refused."""


class Line(nn.Sequential):
    """A model of eight numbers, which says so when somebody trains it who should not."""

    may_learn = False

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(nn.Linear(shape[0], classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and not Line.may_learn:
            raise Accepted
        return super().forward(x)


def people(path: str | None = None) -> Dataset:
    """Two dozen examples of three numbers."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(36, 3, generator=generator), torch.arange(36) % 2
    return Dataset(inputs[:24], targets[:24], inputs[24:], targets[24:])


@dataclass(frozen=True)
class Run:
    """An interrupted run: its files by name, and the records of its ledger.

    It began twice: the first start ended in the middle of round 4, which aborted, the second after round 7 of 12. Its last
    checkpoint is that of round 6.
    """

    files: Mapping[str, bytes]

    @property
    def lines(self) -> list[bytes]:
        return self.files["ledger.jsonl"].splitlines(keepends=True)

    @property
    def bodies(self) -> list[bytes]:
        """The records of the ledger as they are written."""
        return [canonical(record) for record in self.records()]

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line)["body"] for line in self.lines]


@dataclass(frozen=True)
class Case:
    """One malformed file or value.

    Args:
        name: For people; no other case of its family has it.
        commands: Those that must refuse it.
        words: What the refusal must hold.
        damage: Makes it.
        others: Commands that must refuse it, or say what they say of what is whole.
    """

    name: str
    commands: tuple[Command, ...]
    words: tuple[Word, ...]
    damage: Damage
    others: tuple[Command, ...] = ()


def nothing() -> None:
    """For what is wrong on the command line alone."""


def holding(name: str, content: bytes) -> Damage:
    """Another content; the mode stays."""

    def damage() -> None:
        kept = stat.S_IMODE(Path(name).stat().st_mode) if Path(name).exists() else 0o600
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
        Path(name).chmod(kept)

    return damage


def without(*names: str) -> Damage:
    return lambda: [Path(name).unlink() for name in names]


def having_mode(name: str, mode: int) -> Damage:
    return lambda: Path(name).chmod(mode)


def together(*damages: Damage) -> Damage:
    return lambda: [damage() for damage in damages]


def forged(bodies: Iterable[bytes]) -> Damage:
    return holding("run/ledger.jsonl", chained(bodies))


KINDS = ("folder", "pipe", "link", "endless", "dangling", "loop", "void")


def becoming(name: str, kind: str) -> Damage:
    """Something else than a file, or than a folder, in its place."""

    def damage() -> None:
        path = Path(name)
        path.rename("elsewhere")
        match kind:
            case "folder":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
            case "link":
                path.symlink_to(Path("elsewhere").absolute())
            case "endless":
                path.symlink_to("/dev/zero")
            case "dangling":
                path.symlink_to("nowhere")
            case "loop":
                path.symlink_to(path.name)
            case "void":
                path.symlink_to("/dev/null")
            case "file":
                path.write_bytes(b"a file")

    return damage


_LONG_AGO = 1_000_000_000


class Workplace:
    """A folder that can be put back as it was, whatever stands there now."""

    def __init__(self, root: Path) -> None:
        self._root = root
        found = list(_walk(root))
        self._folders = [path for path in found if path.is_dir()][::-1]
        self._files = {path: (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in found if path.is_file()}
        for path in self._files:
            os.utime(path, (_LONG_AGO, _LONG_AGO))

    def restore(self) -> None:
        for path in _walk(self._root):
            kind = path.lstat().st_mode
            if stat.S_ISDIR(kind):
                if path not in self._folders:
                    path.rmdir()
            elif not self._as_it_was(path):
                path.unlink()
        for folder in self._folders:
            folder.mkdir(mode=0o700, exist_ok=True)
        for path, (content, mode) in self._files.items():
            if not path.exists():
                path.write_bytes(content)
                path.chmod(mode)
                os.utime(path, (_LONG_AGO, _LONG_AGO))

    def _as_it_was(self, path: Path) -> bool:
        """Whether it is the file that was there; whoever writes to one makes it younger."""
        status = path.lstat()
        return path in self._files and (status.st_mtime, status.st_mode) == (_LONG_AGO, stat.S_IFREG | self._files[path][1])

    def stamp(self) -> dict[Path, tuple[int, ...]]:
        """What stands where, so that a later stamp tells whether a command changed anything, the lock of a run aside."""
        found = {}
        for path in _walk(self._root):
            if path.name != "lock":
                status = path.lstat()
                whole = () if stat.S_ISDIR(status.st_mode) else (status.st_ino, status.st_size, status.st_mtime_ns)
                found[path] = (status.st_mode, *whole)
        return found


def _walk(root: Path) -> Iterator[Path]:
    """All below a folder, what is inside first; no link is followed."""
    for folder, folders, files in os.walk(root, topdown=False):
        yield from (Path(folder, name) for name in (*files, *folders))
