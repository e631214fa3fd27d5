"""Runs that are watched: who started, which rows of noise met which sum, and what the world saw of it, in order."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hubbub.noise import SecureSource, Segments
from hubbub.training import LatticeSum, ReleasePath
from release_file import release_digest
from simulated_disk import Disk, Killed
from ways import WAYS, Way

Note = Callable[[Any], None]


@dataclass(frozen=True)
class Started:
    """A process began."""


@dataclass(frozen=True)
class Ready:
    """The run is open, so many seconds of processor time after its process began with it."""

    seconds: float


@dataclass(frozen=True)
class Asked:
    """Messages of this round leave for so many clients; ``charged`` is whether the ledger on disk says so."""

    round_index: int
    clients: int
    charged: bool


@dataclass(frozen=True)
class Met:
    """Noise met a sum: ``rows`` of z, each by key and index, were drawn for it.

    ``total`` and ``release`` are ``(dim,)``, the first in whole steps; ``clip_norm`` is that of the sum, ``bits`` those of its
    lattice, ``charged`` whether the ledger on disk had charged the round.
    """

    round_index: int
    cohort: tuple[int | str, ...]
    rows: tuple[tuple[bytes, int], ...]
    total: torch.Tensor
    release: torch.Tensor
    clip_norm: float
    bits: int
    charged: bool

    @property
    def digest(self) -> bytes:
        return self.total.numpy().tobytes()


@dataclass(frozen=True)
class Shared:
    """A client drew its share of the noise of a round, in whole steps."""

    round_index: int
    noise: tuple[int, ...]


@dataclass(frozen=True)
class Gave:
    """A holder of the key encrypted its noise of a round, in whole steps."""

    round_index: int
    holder: str
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Opened:
    """A holder opened a sum of a round, which is known by its digest."""

    round_index: int
    holder: str
    digest: bytes


@dataclass(frozen=True)
class Again:
    """A start took a release from the disk, to learn from it."""

    round_index: int
    release: torch.Tensor


@dataclass(frozen=True)
class Published:
    """A round's result left, with the epsilon that it states; ``committed`` is whether the ledger on disk had its release."""

    round_index: int
    epsilon: float
    committed: bool


@dataclass(frozen=True)
class Finished:
    """A start came to its end, with this model."""

    model: tuple[float, ...]


def records(folder: Path) -> list[dict[str, Any]]:
    """The ledger's bodies; a torn last line is left out."""
    path = folder / "ledger.jsonl"
    found = []
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            found.append(json.loads(line)["body"])
        except ValueError:
            break
    return found


def on_record(folder: Path, kind: str, round_index: int) -> bool:
    """Whether the ledger on disk has such a record of a round."""
    return any(body["kind"] == kind and body["round"] == round_index for body in records(folder))


@dataclass
class Witness:
    """Sees what one start does with noise and sums."""

    folder: Path
    note: Note
    drawn: list[tuple[bytes, int]] = field(default_factory=list)
    round_index: int = -1
    cohort: tuple[int | str, ...] = ()
    # What clients encrypted in this round.
    sent: list[np.ndarray] = field(default_factory=list)

    def begins(self, round_index: int, cohort: Sequence[int | str]) -> None:
        """A round begins: what is drawn from here on is for its sum."""
        self.round_index, self.cohort = round_index, tuple(cohort)
        self.drawn.clear()
        self.sent.clear()

    def meets(self, total: torch.Tensor, release: torch.Tensor, clip_norm: float, bits: int) -> None:
        charged = on_record(self.folder, "begin", self.round_index)
        rows = tuple(self.drawn)
        self.note(Met(self.round_index, self.cohort, rows, total.clone(), release.clone(), clip_norm, bits, charged))

    def publishes(self, round_index: int, epsilon: float) -> None:
        self.note(Published(round_index, epsilon, on_record(self.folder, "commit", round_index)))

    def asks(self, round_index: int, clients: int) -> None:
        """A round's messages are about to leave."""
        self.note(Asked(round_index, clients, on_record(self.folder, "begin", round_index)))

    def gives(self, round_index: int, holder: str, steps: np.ndarray) -> None:
        """A holder encrypts its noise."""
        self.note(Gave(round_index, holder, tuple(steps.tolist())))

    def opens(self, round_index: int, holder: str, digest: bytes) -> None:
        self.note(Opened(round_index, holder, digest))

    def shares(self, draw: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        """What draws a client's share of the noise, seen."""

        def drawing(*arguments: Any) -> np.ndarray:
            share = draw(*arguments)
            self.note(Shared(self.round_index, tuple(share.tolist())))
            return share

        return drawing

    @contextmanager
    def watching(self, disk: Any = None) -> Iterator[None]:
        """Rows of z are seen when they are drawn and sums when they are opened, and calls go to the disk, if there is one."""
        begun, segments, opened = time.process_time(), SecureSource.segments, LatticeSum.open
        start, released = ReleasePath.start, ReleasePath.released

        def drawing(source: SecureSource, index: int, first: int) -> Segments:
            self.drawn.append((source._key, index))
            return segments(source, index, first)

        def opening(total: LatticeSum, row: torch.Tensor | None) -> torch.Tensor:
            release = opened(total, row)
            self.meets(total.total, release, total.lattice.clip_norm, total.lattice.bits)
            return release

        def starting(path: ReleasePath) -> None:
            start(path)
            self.note(Ready(time.process_time() - begun))

        def again(path: ReleasePath, first: int, stop: int) -> Iterator[torch.Tensor]:
            for round_index in range(first, stop):
                for release in released(path, round_index, round_index + 1):
                    self.note(Again(round_index, release.clone()))
                    yield release

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SecureSource, "segments", drawing)
            patch.setattr(LatticeSum, "open", opening)
            patch.setattr(ReleasePath, "start", starting)
            patch.setattr(ReleasePath, "released", again)
            patch.setattr("hubbub.training.rounds.CHECKPOINT_EVERY", 4)
            if disk is not None:
                patch.setattr("hubbub._util.files.os", disk)
                patch.setattr("hubbub.training.run_folder.record.os", disk)
            yield


@dataclass(frozen=True)
class Case:
    """A run that goes one of the ways, and what the judge computes of it once."""

    strategy: str
    rounds: int = 0
    keep_releases: bool = True

    @cached_property
    def way(self) -> Way:
        return WAYS[self.strategy](self.rounds)

    @cached_property
    def epsilons(self) -> list[float]:
        """After each number of rounds."""
        return [self.way.epsilon(rounds) for rounds in range(self.way.rounds + 1)]


def go(case: Case, disk: Any, folder: Path, seed: int, note: Note, rounds: int | None = None) -> np.ndarray:
    """Start a process that trains some rounds, or all that are left; returns the model, ``(dim,)``.

    ``seed`` is of the clients' data, which are others in each start.
    """
    note(Started())
    witness = Witness(folder, note)
    with witness.watching(disk):
        return case.way.go(witness, seed, rounds, case.keep_releases)


def killed(
    case: Case, disk: Disk, folder: Path, seed: int, note: Note, when: Callable[[str, Path], bool], rounds: int | None = None
) -> None:
    """Start a process as :func:`go` does, which ends before the call that changes the disk for which ``when`` holds."""
    dead = False

    def before(call: str, path: Path) -> None:
        nonlocal dead
        dead = dead or when(call, path)
        if dead:
            raise Killed

    disk.before = before
    with pytest.raises(Killed):
        go(case, disk, folder, seed, note, rounds)
    disk.before = lambda call, path: None


def calls_of_a_start(case: Case, root: Path, done: int = 1) -> list[str]:
    """Those that change the disk while a run of so many rounds goes on for one, each with a name."""
    root.mkdir()
    disk, calls = Disk(root), list[str]()
    go(case, disk, root / "run", 1, disk.mark, done)
    disk.before = lambda call, path: calls.append(f"{call} {path.name}")
    go(case, disk, root / "run", 2, disk.mark, 1)
    return calls


def same(release: torch.Tensor, met: Met) -> str:
    """The SHA-256 of the file of a release of a round."""
    return release_digest(release.numpy(), 2.0 ** (math.frexp(met.clip_norm)[1] - 1 - met.bits))
