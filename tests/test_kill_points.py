"""A process that ends at a known point: before any call that changes the disk, and between any two steps of a round.

What is on disk is what was written, as after kill -9; tests of power loss take away what was not synced.
"""

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hubbub.errors import RunFolderError
from hubbub.ledger.chain import read_chain
from hubbub.mechanism.strategies import toeplitz
from hubbub.noise import SecureSource
from hubbub.noise.lattice import Lattice
from hubbub.training import LatticeSum, RunStore, train
from release_file import release_file
from release_paths import CLIP, ROUNDS, plan, silent
from simulated_disk import Disk, Killed

STEP = Lattice(CLIP).step
PLAN = plan(toeplitz.square_root(ROUNDS, 3))
EPSILONS = [PLAN.promise().after(rounds, PLAN.delta).epsilon for rounds in range(ROUNDS + 1)]


@dataclass
class World:
    """What was seen of a run over all its starts: the sums that met noise, and the results that left.

    ``before`` is called before each call that changes the disk, ``meets`` before noise meets a sum, ``leaves`` before a result
    leaves.
    """

    folder: Path
    met: list[tuple[int, bytes]] = field(default_factory=list)
    left: set[int] = field(default_factory=set)
    keys: set[bytes] = field(default_factory=set)
    before: Callable[[str, Path], None] = lambda call, path: None
    meets: Callable[[], None] = lambda: None
    leaves: Callable[[], None] = lambda: None

    def release(self, round_index: int) -> bytes | None:
        """The file of a release."""
        path = self.folder / f"state/releases/{round_index}.safetensors"
        return path.read_bytes() if path.exists() else None

    def records(self, *kinds: str) -> list[Any]:
        """The ledger's records of these kinds."""
        return [body for body in read_chain(self.folder / "ledger.jsonl").records if body["kind"] in kinds]

    def start(self) -> None:
        """A process that does one round, or is killed."""
        opened, segments, drawn = LatticeSum.open, SecureSource.segments, set[bytes]()
        disk = Disk(self.folder.parent)
        disk.before = self.before

        def meeting(total: LatticeSum, row: torch.Tensor | None) -> torch.Tensor:
            self.meets()
            release = opened(total, row)
            assert drawn - self.keys, "noise of a start is not from a key of its own"
            self.met.append((self.records("begin")[-1]["round"], release.numpy().tobytes()))
            return release

        def drawing(source: SecureSource, index: int, first: int) -> Any:
            drawn.add(source._key)
            return segments(source, index, first)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hubbub._util.files.os", disk)
            patch.setattr("hubbub.training.rounds.CHECKPOINT_EVERY", 2)
            patch.setattr(LatticeSum, "open", meeting)
            patch.setattr(SecureSource, "segments", drawing)
            try:
                run = train(PLAN, silent(), nn.Linear(3, 2), RunStore(self.folder))
                for result in itertools.islice(run, 1):
                    self.leaves()
                    self.left.add(result.round_index)
                    assert result.epsilon >= EPSILONS[len({t for t, _ in self.met})], "the stated epsilon is too low"
                run.close()
            finally:
                self.keys |= drawn

    def judge(self, kills: int) -> None:
        """Noise met each round once and after its charge, and nothing that left is lost."""
        rounds = [t for t, _ in self.met]
        assert len(set(rounds)) == len(rounds), "a row of noise met two sums"
        begun = [body["round"] for body in self.records("begin")]
        assert begun == list(range(len(begun))), "rounds are not charged once, in order"
        committed = {body["round"] for body in self.records("commit")}
        assert self.left <= committed, "what left is not committed"
        for t, release in self.met:
            assert t not in committed or self.release(t) == release_file(np.frombuffer(release), STEP), (
                "a release is not the one that was made"
            )
        assert len(self.records("abort")) <= kills, "a kill costs more than the round that was under way"


def killed(world: World, *, before: Callable[[str, Path], bool]) -> None:
    """A start of which nothing happens from the call on for which ``before`` holds."""
    dead = False

    def check(call: str, path: Path) -> None:
        nonlocal dead
        dead = dead or before(call, path)
        if dead:
            raise Killed

    world.before = check
    with pytest.raises(Killed):
        world.start()
    world.before = lambda call, path: None


def calls_of_a_start(folder: Path) -> list[str]:
    """Those of the second start that change the disk."""
    calls, world = list[str](), World(folder / "run")
    folder.mkdir()
    world.start()
    world.before = lambda call, path: calls.append(f"{call} {path.name}")
    world.start()
    return calls


def test_cra_1_a_process_that_is_killed_before_any_call_breaks_no_promise(tmp_path: Path) -> None:
    calls = calls_of_a_start(tmp_path / "whole")
    assert len(calls) > 30
    for number, call in enumerate(calls):
        world, seen = World(tmp_path / f"{number}" / "run"), itertools.count()
        world.folder.parent.mkdir()
        world.start()
        killed(world, before=lambda *_, seen=seen, number=number: next(seen) == number)
        world.start()
        try:
            world.judge(kills=1)
        except AssertionError as error:
            error.add_note(f"killed before call {number}: {call}")
            raise


BETWEEN = {
    "the charge and the noise": "abort",
    "the noise and its file": "abort",
    "the file and its record": "commit",
    "the record and the world": "commit",
}


@pytest.mark.parametrize("between", BETWEEN)
def test_cra_2_a_kill_between_two_steps_of_a_round(between: str, tmp_path: Path) -> None:
    world, calls = World(tmp_path / "run"), [""]
    world.start()
    now = {
        "the noise and its file": ["open .1.safetensors.new"],
        "the file and its record": ["fsync releases", "open ledger.jsonl"],
    }

    def raising() -> None:
        raise Killed

    def before(call: str, path: Path) -> bool:
        calls.append(f"{call} {path.name}")
        wanted = now.get(between, [])
        return bool(wanted) and calls[-len(wanted) :] == wanted

    if between == "the charge and the noise":
        world.meets = raising
    if between == "the record and the world":
        world.leaves = raising
    killed(world, before=before)
    world.meets = world.leaves = lambda: None
    whole, charged = world.release(1), world.records("begin", "commit")[-1]
    assert (charged["kind"], charged["round"]) == ("commit" if between == "the record and the world" else "begin", 1)
    assert (whole is not None) == (BETWEEN[between] == "commit")
    world.start()
    world.judge(kills=1)
    assert [body["kind"] for body in world.records("commit", "abort")] == ["commit", BETWEEN[between], "commit"]
    # The same bytes are served again.
    assert world.release(1) == whole


def test_cra_4_a_charge_that_was_cut_off_beside_its_release_is_a_rollback(tmp_path: Path) -> None:
    world = World(tmp_path / "run")
    world.start()
    ledger = tmp_path / "run/ledger.jsonl"
    *before, begin, _commit = ledger.read_bytes().splitlines(keepends=True)
    assert b'"kind":"begin"' in begin
    for kept in (begin[:-2], begin[:1], b""):
        ledger.write_bytes(b"".join(before) + kept)
        with pytest.raises(RunFolderError, match="holds a release of round 0"):
            world.start()
        # Without it nothing of the round is known to have left.
        hidden = (tmp_path / "run/state/releases/0.safetensors").rename(tmp_path / "release")
        (tmp_path / "run/state/keys/epoch-1").unlink(missing_ok=True)
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        World(tmp_path / "copy").start()
        shutil.rmtree(tmp_path / "copy")
        hidden.rename(tmp_path / "run/state/releases/0.safetensors")
