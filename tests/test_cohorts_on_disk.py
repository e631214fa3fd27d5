"""The file of cohorts next to a ledger: whatever fails in between, no participation is lost and no block is written over."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort_file import blocks, joined, name_of
from conftest import raising
from hubbub.errors import LedgerError, ParticipationError
from hubbub.ledger import Ledger, Promise
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import MinSeparation, Participation, SingleParticipation
from hubbub.mechanism.strategies import Identity
from hubbub.training.cohorts import CohortKeys, eligible

SECRET = bytes(range(32))


def opened(folder: Path, pattern: Participation = MinSeparation(1, 2), rounds: int = 8) -> Ledger:  # noqa: B008 # it is frozen
    return Ledger(Promise(rounds, Mechanism(Identity(rounds), pattern, 3.0)), SECRET, folder / "ledger.jsonl")


def run(ledger: Ledger, *cohorts: str) -> None:
    for cohort in cohorts:
        ledger.commit(ledger.begin(ledger.next_round, list(cohort), "sum", 1.0), b"release")


def begun(folder: Path) -> Ledger:
    ledger = opened(folder)
    ledger.start_epoch(0, bytes(32), "0" * 64)
    run(ledger, "ab")
    return ledger


def require_same(ledger: Ledger, folder: Path, cohorts: list[str]) -> None:
    """The ledger in memory, read again, and as the files say it name the same clients."""
    expected: dict[str, list[int]] = {}
    for t, cohort in enumerate(cohorts):
        for client in cohort:
            expected.setdefault(client, []).append(t)
    assert joined(folder / "ledger.jsonl") == {name_of(SECRET, client): rounds for client, rounds in expected.items()}
    for one in (ledger, opened(folder)):
        assert {client: list(one.participations(client)) for client in expected} == expected


def interrupted(where: str) -> Callable[[pytest.MonkeyPatch], None]:
    def during(patch: pytest.MonkeyPatch) -> None:
        right = os.fsync

        def fsync(descriptor: int) -> None:
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith(where):  # noqa: PTH115 # of a descriptor
                raise KeyboardInterrupt
            right(descriptor)

        patch.setattr(os, "fsync", fsync)

    return during


@pytest.mark.parametrize(
    "fails",
    [
        lambda patch: patch.setattr(np, "insert", raising(MemoryError)),
        lambda patch: patch.setattr(os, "open", raising(OSError(errno.EMFILE, "too many open files"))),
        interrupted("ledger.jsonl"),
        interrupted("ledger.cohorts"),
    ],
    ids=["no memory", "no file can be opened", "interrupted in the record", "interrupted in the cohort"],
)
def test_a_failed_begin_is_forgotten_in_memory_and_on_disk(tmp_path: Path, fails: Callable[[pytest.MonkeyPatch], None]) -> None:
    ledger = begun(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        fails(patch)
        with pytest.raises((OSError, MemoryError, KeyboardInterrupt)):
            ledger.begin(1, ["c", "d"], "sum", 1.0)
    assert ledger.pending() is None
    assert opened(tmp_path).rounds == ("committed",)
    run(ledger, "ef", "gh", "e")
    require_same(ledger, tmp_path, ["ab", "ef", "gh", "e"])
    with pytest.raises(ParticipationError, match="took part in rounds"):
        ledger.begin(4, ["e"], "sum", 1.0)


def test_who_opened_the_ledger_before_another_wrote_to_it_writes_over_nothing(tmp_path: Path) -> None:
    begun(tmp_path)
    one, other = opened(tmp_path), opened(tmp_path)
    run(one, "cd")
    before = (tmp_path / "ledger.cohorts").read_bytes()
    with pytest.raises(LedgerError, match="changed by another process"):
        other.begin(1, ["x"], "sum", 1.0)
    assert (tmp_path / "ledger.cohorts").read_bytes() == before
    require_same(one, tmp_path, ["ab", "cd"])


def test_a_block_without_its_record_is_a_crash_and_two_are_a_roll_back(tmp_path: Path) -> None:
    run(begun(tmp_path), "cd", "ef")
    path = tmp_path / "ledger.jsonl"
    lines, kept = path.read_bytes().splitlines(keepends=True), (tmp_path / "ledger.cohorts").read_bytes()
    assert len(blocks(kept)) == 3
    path.write_bytes(b"".join(lines[:6]))
    again = opened(tmp_path)
    run(again, "gh")
    require_same(again, tmp_path, ["ab", "cd", "gh"])
    (tmp_path / "ledger.cohorts").write_bytes(kept)
    path.write_bytes(b"".join(lines[:4]))
    with pytest.raises(LedgerError, match="rolled back"):
        opened(tmp_path)


@pytest.mark.parametrize("length", range(0, 60, 7))
def test_a_block_that_a_crash_cut_anywhere_is_written_anew(tmp_path: Path, length: int) -> None:
    begun(tmp_path)
    file = tmp_path / "ledger.cohorts"
    whole = file.read_bytes()
    run(opened(tmp_path), "cdefgh")
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    file.write_bytes(whole + file.read_bytes()[len(whole) :][:length])
    again = opened(tmp_path)
    run(again, "xyb")
    require_same(again, tmp_path, ["ab", "xyb"])


def test_a_ledger_that_is_gone_is_not_begun_again_over_its_cohorts(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(LedgerError, match="cohorts of a ledger that is gone"):
        opened(tmp_path)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([MinSeparation(1, 3), MinSeparation(3, 2), SingleParticipation()]),
    st.integers(1, 30),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_who_took_part_least_is_chosen_and_ties_are_drawn(pattern: Participation, count: int, size: int, draw: object) -> None:
    """Against the choice written from its definition, for lists whose clients come and go."""
    ledger = Ledger(Promise(20, Mechanism(Identity(20), pattern, 3.0)), SECRET)
    keys, history = CohortKeys(bytes(32), bytes(32)), dict[str, list[int]]()
    for t in range(12):
        names = [f"client {i}" for i in range(count) if draw.random() < 0.8]  # type: ignore[attr-defined]
        cohort = eligible(t, names, size, keys=keys, ledger=ledger)
        able = [name for name in names if pattern.allows([*history.get(name, []), t])]
        times = {name: len(history.get(name, [])) for name in able}
        assert set(cohort) <= set(able)
        assert len(cohort) == min(size, len(able))
        left = [times[name] for name in able if name not in cohort]
        assert max((times[name] for name in cohort), default=0) <= min(left, default=99)
        assert cohort == eligible(t, names, size, keys=keys, ledger=ledger)
        for name in cohort:
            history.setdefault(name, []).append(t)
        ledger.commit(ledger.begin(t, cohort, "sum", 1.0), b"release")
    assert all(list(ledger.participations(name)) == rounds for name, rounds in history.items())
