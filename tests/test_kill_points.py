"""A process that ends at a known point: before any call that changes the disk, and between any two steps of a round.

What is on disk is what was written, as after kill -9; tests of power loss take away what was not synced.
"""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from hubbub.errors import RunFolderError
from hubbub.training import LatticeSum
from judge import judge, release_of
from simulated_disk import Disk, Killed
from witness import Case, Witness, calls_of_a_start, go, killed, records

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

    def raising(*_: object) -> None:
        raise Killed

    def when(call: str, path: Path) -> bool:
        calls.append(f"{call} {path.name}")
        return bool(wanted) and calls[-len(wanted) :] == wanted

    with monkeypatch.context() as patch:
        if between == "the charge and the noise":
            patch.setattr(LatticeSum, "open", raising)
        if between == "the record and the world":
            patch.setattr(Witness, "publishes", raising)
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
