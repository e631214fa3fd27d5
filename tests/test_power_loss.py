"""Kills and power loss at every moment of a run: what was released and charged stays, and no row of noise meets two sums.

A run is recorded on a simulated disk: three starts, the second killed within a round. For each moment and each of several
fates of what was not durable the folder is made, gone on with by the real code and other data, and judged by what the world
saw before. Where a process is killed at a known point, what is on disk is what was written, as after kill -9.
"""

import hashlib
import itertools
import random
import shutil
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import raising
from hubbub._util import files
from hubbub.errors import RunFolderError
from hubbub.experiment.build import build
from hubbub.experiment.config import resolve
from hubbub.experiment.engine.folder import RunInFolder
from hubbub.ledger.chain import read_chain
from hubbub.training import LatticeSum
from hubbub.verification import verify
from judge import FAILURES, Violation, judge, judged, release_of
from simulated_disk import EVERYTHING, NOTHING, Choose, Disk, Image, Killed, put
from ways import WAYS
from witness import Case, Met, Witness, calls_of_a_start, go, killed, records

# In a folder that the run creates as well: its name must last, too.
RUN = "runs/one"


def recorded(case: Case, folder: Path) -> Disk:
    """A whole run in three starts; the second is killed when a release is about to get its name."""
    folder.mkdir()
    disk = Disk(folder)
    first, named = case.way.rounds // 3, ("replace", f"{2 * case.way.rounds // 3}.safetensors")
    try:
        go(case, disk, folder / RUN, 1, disk.mark, first)
        killed(case, disk, folder / RUN, 2, disk.mark, lambda call, path: (call, path.name) == named)
        go(case, disk, folder / RUN, 3, disk.mark)
    except FAILURES as error:
        raise Violation(f"the run cannot go on: {error}") from error
    return disk


@dataclass
class Count:
    """How much was tried."""

    points: int = 0
    states: int = 0
    refused: int = 0


def fates(image: Image, name: str, chances: int, tried: set[bytes]) -> Iterator[tuple[str, dict[Path, bytes | None]]]:
    """What a loss of power may leave of a disk; of what was tried before, nothing."""
    chosen: dict[str, Choose] = {"nothing": NOTHING, "everything": EVERYTHING}
    for number in range(chances):
        chosen[f"chance {number}"] = random.Random(f"{name}, {number}").choice  # noqa: S311 # fates of a test
    for fate, choose in chosen.items():
        left = image.left(choose)
        if (content := hashlib.sha256(repr(sorted(left.items())).encode()).digest()) not in tried:
            tried.add(content)
            yield fate, left


def power_lost(
    case: Case, disk: Disk, scratch: Path, *, start: int = 0, every: int = 1, chances: int = 6, count: Count | None = None
) -> Count:
    """Judge what the disk may hold at each moment from a step of its log on."""
    count = count or Count()
    for point, (image, events) in enumerate(Image.along(disk.log, start)):
        if point % every:
            continue
        count.points += 1
        for fate, left in fates(image, f"{point}", chances, set()):
            folder = scratch / "disk"
            put(left, folder)
            try:
                count.refused += not judged(case, folder, RUN, events, seed=9)
            except Violation as violation:
                violation.add_note(f"power was lost before step {point + start} of the log; kept: {fate}")
                raise
            shutil.rmtree(folder)
            count.states += 1
    return count


def test_the_disk_forgets_what_was_not_made_durable(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(tmp_path)
        patch.setattr("hubbub._util.files.os", disk)
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
    lock = Path(RUN, "state/lock")
    assert real[lock].decode().strip().isdecimal()
    # Who holds it is of no use after a loss of power.
    assert image.left(EVERYTHING) == {**real, lock: b""}


# Of each way; those that encrypt over Flower have four rounds.
FULL = [Case(name, 20) for name in WAYS] + [Case("BandedToeplitz", 20, keep_releases=False)]
# At how many moments of a short run the power is lost. What encrypts over Flower takes too long for that.
MOMENTS = {name: 4 if "Paillier" in name else 7 for name in WAYS if name != "BandedToeplitz" and "and Paillier" not in name}


def named(case: Case) -> str:
    return f"{case.strategy}{'' if case.keep_releases else ', releases removed'}"


@pytest.mark.parametrize(
    "every",
    [5, *(pytest.param(every, marks=pytest.mark.slow) for every in (2, 1))],
    ids=["every fifth moment", "every other moment", "each moment"],
)
def test_cra_3_power_loss_in_a_short_run_breaks_no_promise(every: int, tmp_path: Path) -> None:
    case = Case("BandedToeplitz", 8)
    count = power_lost(case, recorded(case, tmp_path / "recorded"), tmp_path, every=every)
    assert (count.points > 140 // every, count.states > 2 * count.points, count.refused) == (True, True, 0), count


# Each of these goes by another code from the sum to the release.
SHORT = ("adaptive clipping", "examples, Poisson", "Flower, correlated", "Paillier, noise by holders")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.slow) for name in MOMENTS])
def test_cra_3_pai_17_flw_5_power_loss_at_some_moments_breaks_no_promise_whichever_way_a_run_goes(
    name: str, tmp_path: Path
) -> None:
    case = Case(name, 6)
    disk = recorded(case, tmp_path / "recorded")
    # Odd, so that it is no divisor of the steps of a round, of which there are even numbers.
    every = len(disk.log) // MOMENTS[name] | 1
    count = power_lost(case, disk, tmp_path, every=every, chances=2)
    assert (count.points >= MOMENTS[name] - 2, count.states > count.points, count.refused) == (True, True, 0), count


@pytest.mark.slow
@pytest.mark.parametrize("case", FULL, ids=named)
def test_cra_3_pai_17_flw_5_power_loss_at_any_moment_breaks_no_promise(case: Case, tmp_path: Path) -> None:
    disk = recorded(case, tmp_path / "recorded")
    # A start that encrypts takes seconds.
    dear = "Flower and Paillier" in case.strategy
    count = power_lost(case, disk, tmp_path, every=7 if dear else 1, chances=2 if dear else 6)
    assert (count.points > (25 if dear else 100), count.states > 1.5 * count.points, count.refused) == (True, True, 0), count


def test_cra_3_a_loss_of_power_while_a_model_is_written_leaves_none_that_passes_unbound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"training": {"rounds": 2, "cohort_size": 5}, "privacy": {"noise_multiplier": 1.0, "clip_norm": 1.0}}
    run = build(resolve({**settings, "data": {"name": "digits", "clients": 10}}))
    place = tmp_path / "recorded"
    begun = RunInFolder.begun(run, place / RUN)
    assert len(list(begun.rounds(run.population))) == 2
    monkeypatch.setattr("hubbub.report.write", lambda *_: None)
    disk = Disk(place)
    start = len(disk.log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hubbub._util.files.os", disk)
        begun.finish()
    model = (begun.folder / "model.safetensors").read_bytes()
    tried = set[bytes]()
    for point, (image, _) in enumerate(Image.along(disk.log, start)):
        for fate, left in fates(image, f"{point}", 8, tried):
            put(left, tmp_path / "disk")
            folder = tmp_path / "disk" / RUN
            failed = {check.name for check in verify(folder).checks if not check.ok}
            there = (folder / "model.safetensors").exists()
            bound = any(record["kind"] == "files" for record in read_chain(folder / "ledger.jsonl").records)
            assert (failed, there or not bound) == ({"files"} if there and not bound else set(), True), f"{point}, {fate}"
            again = RunInFolder.resumed(folder)
            assert list(again.rounds(again.run.population)) == []
            again.finish()
            assert verify(folder).ok
            assert (folder / "model.safetensors").read_bytes() == model
            assert [record["kind"] for record in read_chain(folder / "ledger.jsonl").records].count("files") == 1
            shutil.rmtree(tmp_path / "disk")
    assert len(tried) > 6


@pytest.mark.slow
def test_cra_1_cra_3_what_a_killed_process_left_is_durable_before_the_next_relies_on_it(tmp_path: Path) -> None:
    case, count = Case("BandedToeplitz", 8), Count()
    for number in range(len(calls_of_a_start(case, tmp_path / "calls"))):
        # Before this call of its second start the process is killed; the power is lost when it goes on.
        root = tmp_path / f"killed {number}"
        root.mkdir()
        disk, calls = Disk(root), itertools.count()
        go(case, disk, root / RUN, 1, disk.mark, 1)
        killed(case, disk, root / RUN, 2, disk.mark, lambda *_, calls=calls, number=number: next(calls) == number, 1)
        killed_at = len(disk.log)
        go(case, disk, root / RUN, 3, disk.mark, 1)
        power_lost(case, disk, tmp_path, start=killed_at, chances=2, count=count)
    assert count.states > 80, count


@pytest.mark.slow
def test_cra_3_power_may_be_lost_again_while_a_run_recovers(tmp_path: Path) -> None:
    case, count = Case("BandedToeplitz", 8), Count()
    disk = recorded(case, tmp_path / "recorded")
    for point, (image, events) in enumerate(Image.along(disk.log)):
        if point % 3 != 2:
            continue
        root = tmp_path / f"lost {point}"
        put(image.left(random.Random(point).choice), root)  # noqa: S311 # fates of a test
        again = Disk(root)
        recovers_at = len(again.log)
        for event in events:
            again.mark(event)
        try:
            go(case, again, root / RUN, 5, again.mark, 1)
        except FAILURES as error:
            if any(isinstance(event, Met) for event in events):
                raise Violation(f"the run cannot go on: {error}") from error
        power_lost(case, again, tmp_path, start=recovers_at, chances=2, count=count)
    assert count.states > 100


def test_cra_3_cra_4_a_last_record_with_any_part_unwritten_is_no_record(tmp_path: Path) -> None:
    go(Case("Identity", 4), Disk(tmp_path), tmp_path / "run", 1, [].append, 1)
    path = tmp_path / "run/ledger.jsonl"
    *before, last = path.read_bytes().splitlines(keepends=True)
    for border in range(1, len(last)):
        # A border of sectors: what is on one side was not written.
        for torn in (bytes(border) + last[border:], last[:border] + bytes(len(last) - border), last[:border]):
            path.write_bytes(b"".join(before) + torn)
            kept = len(read_chain(path).records)
            assert kept == len(before) + (torn == last[:-1]), f"border at {border}: {torn[:80]}"


CASE = Case("BandedToeplitz", 6)
# Rounds that are done before the one of the kill, after which there is a checkpoint.
DONE = 3


def begun(root: Path) -> tuple[Disk, Path, list[Any]]:
    """A run after its first start: its disk, its folder and what was seen of it."""
    root.mkdir()
    disk, seen = Disk(root), list[Any]()
    go(CASE, disk, root / "run", 1, seen.append, DONE)
    return disk, root / "run", seen


def resumed(disk: Disk, run: Path, seen: list[Any]) -> None:
    """A start after a kill, for one round: no promise was broken, and the kill cost one round at most."""
    judge(CASE, run, seen, go(CASE, disk, run, 3, seen.append, 1))
    assert sum(body["kind"] == "abort" for body in records(run)) <= 1


def test_cra_1_a_process_that_is_killed_before_any_call_breaks_no_promise(tmp_path: Path) -> None:
    calls = calls_of_a_start(CASE, tmp_path / "whole", DONE)
    assert len(calls) > 30
    for number, call in enumerate(calls):
        (disk, run, seen), passed = begun(tmp_path / f"{number}"), itertools.count()
        killed(CASE, disk, run, 2, seen.append, lambda *_, passed=passed, number=number: next(passed) == number, 1)
        try:
            resumed(disk, run, seen)
        except AssertionError as error:
            error.add_note(f"killed before call {number}: {call}")
            raise


# What becomes of the round, and the calls of which the last does not happen.
BETWEEN = {
    "the charge and the noise": ("abort", []),
    "the noise and its file": ("abort", [f"open .{DONE}.safetensors.new"]),
    "the file and its record": ("commit", ["fsync releases", "open ledger.jsonl"]),
    "the record and the world": ("commit", []),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_cra_2_a_kill_between_two_steps_of_a_round(between: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (disk, run, seen), calls = begun(tmp_path / "disk"), list[str]()
    fate, wanted = BETWEEN[between]

    def when(call: str, path: Path) -> bool:
        calls.append(f"{call} {path.name}")
        return bool(wanted) and calls[-len(wanted) :] == wanted

    with monkeypatch.context() as patch:
        if between == "the charge and the noise":
            patch.setattr(LatticeSum, "open", raising(Killed))
        if between == "the record and the world":
            patch.setattr(Witness, "publishes", raising(Killed))
        killed(CASE, disk, run, 2, seen.append, when, 1)
    whole, last = release_of(run, DONE), records(run)[-1]
    assert (last["kind"], last["round"]) == ("commit" if between == "the record and the world" else "begin", DONE)
    assert (whole is not None) == (fate == "commit")
    resumed(disk, run, seen)
    ends = [body["kind"] for body in records(run) if body["kind"] in ("commit", "abort")]
    assert ends == [*["commit"] * DONE, fate, "commit"]
    # The same bytes are served again.
    assert release_of(run, DONE) == whole


def test_cra_4_a_charge_that_was_cut_off_beside_its_release_is_a_rollback(tmp_path: Path) -> None:
    disk, run, seen = begun(tmp_path / "disk")
    *before, begin, _commit = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    assert b'"kind":"begin"' in begin
    for kept in (begin[:-2], begin[:1], b""):
        (run / "ledger.jsonl").write_bytes(b"".join(before) + kept)
        with pytest.raises(RunFolderError, match=rf"state/releases/{DONE - 1}\.safetensors is no release of it"):
            go(CASE, disk, run, 2, seen.append, 1)
        # Without it nothing of the round is known to have left.
        copy = Path(shutil.copytree(run, tmp_path / "copy" / "run"))
        (copy / f"state/releases/{DONE - 1}.safetensors").unlink()
        go(CASE, Disk(tmp_path / "copy"), copy, 2, seen.append, 1)
        shutil.rmtree(tmp_path / "copy")
