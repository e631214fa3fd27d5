"""Power loss at every moment of a run: what was released and charged stays, and no row of noise meets two sums.

A run is recorded on a simulated disk: three starts, the second killed within a round. For each moment and each of several
fates of what was not durable the folder is made, gone on with by the real code and other data, and judged by what the world
saw before (``Met``, ``Published``) and by the keys. The promises, by the name that a violation has:

    I1  a row of noise meets one sum
    I2  what the world has seen is in the ledger and on the disk
    I3  every round whose noise met a sum is charged
    I4  each start has a key of its own, and earlier noise is drawn again bit for bit
    I5  every participation counts
"""

import hashlib
import itertools
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hubbub import files
from hubbub.accounting.chain import read_chain
from hubbub.errors import HubbubError
from hubbub.lattice import Lattice
from hubbub.mechanism import Mechanism
from hubbub.noise import SecureSource
from hubbub.participation import MinSeparation
from hubbub.strategies import BinaryTree, Identity, toeplitz
from hubbub.training import LatticeSum, RunPlan, RunStore, train
from hubbub.utility import noising_matrix
from simulated_disk import EVERYTHING, NOTHING, Choose, Disk, Image, Killed, put

CLIENTS, COHORT, DIM = 12, 3, 8
SEPARATION, PARTICIPATIONS = 4, 8
CLIP_NORM = 0.5
STRATEGIES: dict[str, Callable[[int], Any]] = {
    "Identity": Identity,
    "BandedToeplitz": lambda rounds: toeplitz.square_root(rounds, 4),
    "BinaryTree": BinaryTree,
}
Note = Callable[[Any], None]
# How a run that cannot go on may say so; anything else is a defect of the test.
FAILURES = (HubbubError, ValueError, OSError)


class Violation(AssertionError):  # noqa: N818 # it is what its message says
    """A promise is broken."""


def require(kept: bool, what: str) -> None:
    if not kept:
        raise Violation(what)


# What the world sees of a run.


@dataclass(frozen=True)
class Started:
    """A process began."""


@dataclass(frozen=True)
class Met:
    """Noise met a sum: ``rows`` of z, each by key and index, were drawn for it."""

    round_index: int
    cohort: tuple[int, ...]
    rows: tuple[tuple[bytes, int], ...]
    total: torch.Tensor
    release: torch.Tensor

    @property
    def digest(self) -> bytes:
        return self.total.numpy().tobytes()


@dataclass(frozen=True)
class Published:
    """A round's result left, with the epsilon that it states."""

    round_index: int
    epsilon: float


@dataclass(frozen=True)
class WitnessedSum(LatticeSum):
    """A sum that tells when noise meets it."""

    meet: Callable[[torch.Tensor, torch.Tensor], None]

    def open(self, row: torch.Tensor | None) -> torch.Tensor:
        release = super().open(row)
        self.meet(self.total, release)
        return release


@dataclass
class Clients:
    """A population whose sums are known: another seed is other data."""

    seed: int
    note: Note
    drawn: list[tuple[bytes, int]] = field(default_factory=list)
    clients: Sequence[int] = range(CLIENTS)

    def collect(self, cohort: Sequence[int], model: nn.Module, clip_norm: float, round_index: int) -> LatticeSum:
        lattice = Lattice(clip_norm)
        seed = torch.Generator().manual_seed(1000 * self.seed + round_index)
        total = torch.randint(-lattice.radius, lattice.radius, (DIM,), generator=seed)
        self.drawn.clear()
        return WitnessedSum(total, lattice, {}, partial(self._met, round_index, tuple(cohort)))

    def _met(self, round_index: int, cohort: tuple[int, ...], total: torch.Tensor, release: torch.Tensor) -> None:
        self.note(Met(round_index, cohort, tuple(self.drawn), total, release))


@contextmanager
def watched(population: Clients, disk: Any) -> Iterator[None]:
    """Rows of z are seen when they are drawn, and calls go to the disk."""
    row = SecureSource.row

    def seen(source: SecureSource, index: int, dim: int) -> torch.Tensor:
        population.drawn.append((source._key, index))
        return row(source, index, dim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureSource, "row", seen)
        patch.setattr("hubbub.training.state.CHECKPOINT_EVERY", 4)
        patch.setattr("hubbub.files.os", disk)
        yield


def model() -> nn.Module:
    module = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return module


@dataclass(frozen=True)
class Case:
    """A run, and what the judge computes of it once."""

    strategy: str
    rounds: int
    keep_releases: bool = True

    @cached_property
    def plan(self) -> RunPlan:
        pattern = MinSeparation(SEPARATION, PARTICIPATIONS)
        mechanism = Mechanism(STRATEGIES[self.strategy](self.rounds), pattern, 0.7)
        return RunPlan(self.rounds, pattern, COHORT, mechanism, clip_norm=CLIP_NORM)

    @cached_property
    def noising(self) -> np.ndarray:
        """From z to the noise of sums, in steps of the lattice."""
        return self.plan.mechanism.stddev * CLIP_NORM / Lattice(CLIP_NORM).step * noising_matrix(self.plan.mechanism.strategy)

    @cached_property
    def epsilons(self) -> list[float]:
        """After each number of rounds."""
        return [self.plan.promise().after(rounds, self.plan.delta).epsilon for rounds in range(self.rounds + 1)]


def go(case: Case, disk: Disk, folder: Path, seed: int, note: Note, rounds: int | None = None) -> nn.Module:
    """Start a process that trains some rounds; returns the model."""
    population, module = Clients(seed, note), model()
    note(Started())
    with watched(population, disk):
        run = train(case.plan, population, module, RunStore(folder, keep_releases=case.keep_releases))
        for result in itertools.islice(run, rounds):
            note(Published(result.round_index, result.epsilon))
        run.close()
    return module


def kill(disk: Disk, when: Callable[[str, Path], bool]) -> None:
    """The process ends before the call for which ``when`` holds."""
    dead = False

    def before(call: str, path: Path) -> None:
        nonlocal dead
        dead = dead or when(call, path)
        if dead:
            raise Killed

    disk.before = before


def revive(disk: Disk) -> None:
    disk.before = lambda call, path: None


def recorded(case: Case, folder: Path) -> Disk:
    """A whole run in three starts; the second is killed when a release is about to get its name."""
    folder.mkdir()
    disk = Disk(folder)
    first, last = case.rounds // 3, 2 * case.rounds // 3
    try:
        go(case, disk, folder / "run", 1, disk.mark, first)
        kill(disk, lambda call, path: call == "replace" and path.name == f"{last}.safetensors")
        with pytest.raises(Killed):
            go(case, disk, folder / "run", 2, disk.mark)
        revive(disk)
        go(case, disk, folder / "run", 3, disk.mark)
    except FAILURES as error:
        raise Violation(f"the run cannot go on: {error}") from error
    return disk


# The judge: it knows what the world saw, and reads the folder itself.


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


def release_of(folder: Path, round_index: int) -> bytes | None:
    path = folder / f"state/releases/{round_index}.safetensors"
    return path.read_bytes() if path.exists() else None


def checkpointed(folder: Path) -> int:
    """How many rounds the checkpoint holds."""
    path = folder / "state/checkpoint.json"
    return json.loads(path.read_bytes())["rounds"] if path.exists() else 0


def require_published(case: Case, folder: Path, events: Sequence[Any]) -> None:
    """I2, before anybody repairs anything."""
    committed = {body["round"]: body["release"] for body in records(folder) if body["kind"] == "commit"}
    releases = {event.round_index: event.release.numpy().tobytes() for event in events if isinstance(event, Met)}
    for event in events:
        if isinstance(event, Published):
            t = event.round_index
            require(t in committed, f"I2: round {t} was seen by the world, and is not committed")
            held = release_of(folder, t)
            if held is None and not case.keep_releases and t < checkpointed(folder):
                continue
            whole = held is not None and held.endswith(releases[t]) and hashlib.sha256(held).hexdigest() == committed[t]
            require(whole, f"I2: the release of round {t} was seen by the world, and is not on disk")


def require_noise_used_once(events: Sequence[Any]) -> None:
    """I1, that a round's noise is not made again, and that each start draws new rows from a key of its own."""
    sums: dict[tuple[bytes, int], bytes] = {}
    rounds: dict[int, bytes] = {}
    owners: dict[bytes, int] = {}
    start = 0
    for event in events:
        start += isinstance(event, Started)
        if isinstance(event, Met):
            t = event.round_index
            require(bool(event.rows), f"I1: round {t} has no noise")
            require(all(sums.setdefault(row, event.digest) == event.digest for row in event.rows), f"I1: twice in round {t}")
            require(rounds.setdefault(t, event.digest) == event.digest, f"I3: round {t} met noise twice, and is charged once")
            require(all(owners.setdefault(key, start) == start for key, _ in event.rows), f"I4: start {start} has no new key")


def require_charged(case: Case, events: Sequence[Any], bodies: Sequence[dict[str, Any]]) -> None:
    """I3 and I5: of what noise has met, and of what the run says of itself."""
    begun = [body for body in bodies if body["kind"] == "begin"]
    require([body["round"] for body in begun] == list(range(len(begun))), "I3: rounds are not charged once, in order")
    met = 0
    for event in events:
        if isinstance(event, Met):
            met = max(met, event.round_index + 1)
            require(len(begun) >= met, f"I3: round {event.round_index} met its noise, and is not charged")
            require(len(begun[event.round_index]["clients"]) == len(event.cohort), "I5: a participation is not counted")
        if isinstance(event, Published):
            require(event.epsilon >= case.epsilons[met], "I3: the stated epsilon is too low")
    names: dict[int, str] = {}
    joined: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, Met):
            for client, name in zip(event.cohort, begun[event.round_index]["clients"], strict=True):
                require(names.setdefault(client, name) == name, "I5: a client has two names")
                joined.setdefault(client, []).append(event.round_index)
    for rounds in joined.values():
        apart = all(later - earlier >= SEPARATION for earlier, later in itertools.pairwise(rounds))
        require(apart and len(rounds) <= PARTICIPATIONS, f"I5: a client took part in rounds {rounds}")
    ended = sum(body["kind"] == "burn" for body in bodies)
    require(ended < sum(isinstance(event, Started) for event in events), "a start burned more than one round")


@cache
def z_row(key: bytes, index: int) -> np.ndarray:
    return SecureSource(key).row(index, DIM).numpy()


def require_right_noise(case: Case, folder: Path, events: Sequence[Any], bodies: Sequence[dict[str, Any]]) -> None:
    """I4: every release is its sum plus the noise that the keys give."""
    epochs = [body["first_row"] for body in bodies if body["kind"] == "epoch"]
    keys = [(folder / f"state/keys/epoch-{number}").read_bytes() for number in range(len(epochs))]
    require(len(set(keys)) == len(keys), "I4: two starts have one key")
    met = {event.round_index: event for event in events if isinstance(event, Met)}
    committed = [body["round"] for body in bodies if body["kind"] == "commit"]
    require(set(committed) <= set(met), "I4: a round was committed without noise")
    N = case.noising[: max(met, default=-1) + 1]
    needed = np.flatnonzero(N.any(axis=0))
    owners = [max(e for e, first in enumerate(epochs) if first <= i) for i in needed]
    z = np.array([z_row(keys[owner], int(i)) for owner, i in zip(owners, needed, strict=True)]).reshape(-1, DIM)
    expected = np.rint(N[:, needed] @ z)
    for t in committed:
        held = release_of(folder, t)
        require(held is None or held.endswith(met[t].release.numpy().tobytes()), f"I2: the release of round {t} was changed")
        steps = met[t].release.numpy() / Lattice(CLIP_NORM).step
        # The order of additions may move a number over the border of two steps.
        near = np.abs(steps - met[t].total.numpy() - expected[t]).max() <= 1
        require(near, f"I4: the release of round {t} is not its sum and the noise of its keys")


def require_learnt(module: nn.Module, events: Sequence[Any], bodies: Sequence[dict[str, Any]]) -> None:
    """The model is what the committed releases make of the first one."""
    releases = {event.round_index: event.release.numpy() for event in events if isinstance(event, Met)}
    learnt = sum((releases[body["round"]] for body in bodies if body["kind"] == "commit"), np.zeros(DIM)) / COHORT
    held = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()
    require(np.allclose(held, learnt, rtol=1e-4, atol=1e-4), "the model is not what the releases make")


def judged(case: Case, folder: Path, events: Sequence[Any], seed: int, rounds: int = 2) -> bool:
    """Go on with a run that lost its power, and judge it; ``False`` where it refused, before any noise met a sum."""
    require_published(case, folder, events)
    after = list(events)
    try:
        module = go(case, Disk(folder.parent), folder, seed, after.append, rounds)
    except FAILURES as error:
        if any(isinstance(event, Met) for event in events):
            raise Violation(f"the run cannot go on: {error}") from error
        return False
    bodies = records(folder)
    require_published(case, folder, after)
    require_noise_used_once(after)
    require_charged(case, after, bodies)
    require_right_noise(case, folder, after, bodies)
    require_learnt(module, after, bodies)
    return True


@dataclass
class Count:
    """How much was tried."""

    points: int = 0
    states: int = 0
    refused: int = 0


def fates(name: str, chances: int) -> Iterator[tuple[str, Choose]]:
    yield "nothing", NOTHING
    yield "everything", EVERYTHING
    for number in range(chances):
        yield f"chance {number}", random.Random(f"{name}, {number}").choice  # noqa: S311 # fates of a test


def power_lost(
    case: Case, disk: Disk, scratch: Path, *, start: int = 0, every: int = 1, chances: int = 6, count: Count | None = None
) -> Count:
    """Judge what the disk may hold at each moment from a step of its log on."""
    count = count or Count()
    for point, (image, events) in enumerate(Image.along(disk.log, start)):
        if point % every:
            continue
        count.points += 1
        tried = set()
        for fate, choose in fates(f"{point}", chances):
            left = image.left(choose)
            folder = scratch / "disk"
            content = hashlib.sha256(repr(sorted(left.items())).encode()).digest()
            if content in tried:
                continue
            tried.add(content)
            put(left, folder)
            try:
                count.refused += not judged(case, folder / "run", events, seed=9)
            except Violation as violation:
                violation.add_note(f"power was lost before step {point + start} of the log; kept: {fate}")
                raise
            shutil.rmtree(folder)
            count.states += 1
    return count


def killed_then_power_lost(case: Case, scratch: Path, number: int, chances: int, count: Count) -> None:
    """Kill the process before a call of its second start, go on, and lose the power on the way."""
    root = scratch / f"killed {number}"
    root.mkdir()
    disk = Disk(root)
    go(case, disk, root / "run", 1, disk.mark, 1)
    calls = itertools.count()
    kill(disk, lambda call, path: next(calls) == number)
    with pytest.raises(Killed):
        go(case, disk, root / "run", 2, disk.mark, 1)
    killed_at = len(disk.log)
    revive(disk)
    go(case, disk, root / "run", 3, disk.mark, 1)
    power_lost(case, disk, scratch, start=killed_at, chances=chances, count=count)


def calls_of_a_start(case: Case, root: Path) -> list[str]:
    """Those that change the disk while a run goes on for one round, each with a name."""
    root.mkdir()
    disk, calls = Disk(root), []
    go(case, disk, root / "run", 1, disk.mark, 1)
    disk.before = lambda call, path: calls.append(f"{call} {path.name}")
    go(case, disk, root / "run", 2, disk.mark, 1)
    return calls


def lost_again(case: Case, image: Image, events: Sequence[Any], scratch: Path, number: int, count: Count) -> None:
    """Lose the power, and again while the run recovers."""
    root = scratch / f"lost {number}"
    put(image.left(random.Random(number).choice), root)  # noqa: S311 # fates of a test
    disk = Disk(root)
    recovers_at = len(disk.log)
    for event in events:
        disk.mark(event)
    try:
        go(case, disk, root / "run", 5, disk.mark, 1)
    except FAILURES as error:
        if any(isinstance(event, Met) for event in events):
            raise Violation(f"the run cannot go on: {error}") from error
    power_lost(case, disk, scratch, start=recovers_at, chances=2, count=count)


# The tests. The full form is slow.


def test_the_disk_forgets_what_was_not_made_durable(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(tmp_path)
        patch.setattr("hubbub.files.os", disk)
        files.write_atomic(tmp_path / "whole", b"old" * 500)
        files.append(tmp_path / "whole", b"new" * 500, at=1500)
    old, both = b"old" * 500, b"old" * 500 + b"new" * 500
    states = [image.left(NOTHING) for image, _ in Image.along(disk.log)]
    # Created, written, synced, renamed, its folder synced; appended, synced.
    assert states == [{}] * 5 + [{Path("whole"): old}] * 2 + [{Path("whole"): both}]
    *_, (appended, _), (last, _) = ((deepcopy(image), None) for image, _ in Image.along(disk.log))
    found = {appended.left(random.Random(seed).choice)[Path("whole")] for seed in range(200)}  # noqa: S311
    assert {old, both} < found
    assert old + bytes(1500) in {content.ljust(3000, b"\0") for content in found}
    assert any(content[1500:].startswith(bytes(36)) and content.endswith(b"new") for content in found), "a lost first sector"
    assert last.left(NOTHING) == last.left(EVERYTHING)


def test_a_run_writes_through_the_one_door_only(tmp_path: Path) -> None:
    disk = recorded(Case("BandedToeplitz", 8), tmp_path / "run")
    *_, (image, _) = Image.along(disk.log)
    real = {p.relative_to(tmp_path / "run"): None if p.is_dir() else p.read_bytes() for p in (tmp_path / "run").rglob("*")}
    lock = real.pop(Path("run/state/lock"))
    assert lock.decode().strip().isdecimal()
    assert image.left(EVERYTHING) == real


FULL = [Case(name, 20) for name in STRATEGIES] + [Case("BandedToeplitz", 20, keep_releases=False)]


def test_power_loss_at_every_other_moment_of_a_short_run_breaks_no_promise(tmp_path: Path) -> None:
    case = Case("BandedToeplitz", 8)
    count = power_lost(case, recorded(case, tmp_path / "recorded"), tmp_path, every=2)
    assert (count.points > 70, count.states > 2 * count.points, count.refused) == (True, True, 0), count


@pytest.mark.slow
@pytest.mark.parametrize("case", FULL, ids=lambda case: f"{case.strategy}{'' if case.keep_releases else ', releases removed'}")
def test_power_loss_at_any_moment_breaks_no_promise(case: Case, tmp_path: Path) -> None:
    count = power_lost(case, recorded(case, tmp_path / "recorded"), tmp_path)
    assert (count.points > 300, count.states > 2 * count.points, count.refused) == (True, True, 0), count


@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["at some calls", "at each"])
def test_what_a_killed_process_left_is_durable_before_the_next_relies_on_it(everywhere: bool, tmp_path: Path) -> None:
    case, count = Case("BandedToeplitz", 8), Count()
    for number, call in enumerate(calls_of_a_start(case, tmp_path / "calls")):
        if everywhere or call in ("fsync ledger.jsonl", "fsync releases"):
            killed_then_power_lost(case, tmp_path, number, 2 if everywhere else 0, count)
    assert count.states > 80, count


@pytest.mark.parametrize("every", [40, pytest.param(3, marks=pytest.mark.slow)])
def test_power_may_be_lost_again_while_a_run_recovers(every: int, tmp_path: Path) -> None:
    case, count = Case("BandedToeplitz", 8), Count()
    disk = recorded(case, tmp_path / "recorded")
    for point, (image, events) in enumerate(Image.along(disk.log)):
        if point % every == every - 1:
            lost_again(case, image, events, tmp_path, point, count)
    assert count.states > 100


def test_a_last_record_with_any_part_unwritten_is_no_record(tmp_path: Path) -> None:
    go(Case("Identity", 4), Disk(tmp_path), tmp_path / "run", 1, [].append, 1)
    path = tmp_path / "run/ledger.jsonl"
    *before, last = path.read_bytes().splitlines(keepends=True)
    for border in range(1, len(last)):
        # A border of sectors: what is on one side was not written.
        for torn in (bytes(border) + last[border:], last[:border] + bytes(len(last) - border), last[:border]):
            path.write_bytes(b"".join(before) + torn)
            kept = len(read_chain(path).records)
            assert kept == len(before) + (torn == last[:-1]), f"border at {border}: {torn[:80]}"
