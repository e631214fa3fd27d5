"""Separation and counts hold over long runs with clients that come and go, rounds that abort and servers that start again.

Who took part is read from the lines of the ledger's file by a checker that shares no code with what wrote them.
"""

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from cohort_file import joined, name_of
from hubbub import Mechanism, MinSeparation
from hubbub.errors import ParticipationError
from hubbub.ledger import Ledger, Promise, spent
from hubbub.mechanism.strategies import toeplitz
from hubbub.noise.lattice import Lattice
from hubbub.training import LatticeSum, ReleasePath, RunStore
from hubbub.training.cohorts import CohortKeys, eligible
from hubbub.training.run_folder.record import read_run

SECRET, DIGEST = bytes(range(32)), "0" * 64


@dataclass
class Seen:
    """What the tests have tried, and what the checker found."""

    rounds: int = 0
    restarts: int = 0
    aborted: int = 0
    refused: int = 0
    short: int = 0
    gaps: Counter[int] = field(default_factory=Counter)
    counts: Counter[int] = field(default_factory=Counter)

    def check(self, file: Path, pattern: MinSeparation, asked: dict[str, list[int]], secret: bytes) -> None:
        """Recompute gaps and counts: none below b, none above k, and nobody who was asked is missing."""
        found = joined(file)
        assert found == {name_of(secret, client): rounds for client, rounds in asked.items()}
        for rounds in found.values():
            gaps = [later - earlier - pattern.min_separation for earlier, later in itertools.pairwise(rounds)]
            assert all(gap >= 0 for gap in gaps)
            assert len(rounds) <= pattern.max_participations
            self.gaps.update(gaps)
            self.counts.update([pattern.max_participations - len(rounds)])


@dataclass
class Setting:
    """One run: who is there is drawn anew for each round."""

    pattern: MinSeparation
    rounds: int
    clients: list[str]
    size: int
    there: float

    @classmethod
    def of(cls, draw: random.Random) -> "Setting":
        pattern = MinSeparation(draw.randint(1, 12), draw.randint(1, 6))
        clients = [f"client {i}" for i in range(draw.randint(6, 40))]
        return cls(pattern, draw.randint(20, 150), clients, draw.randint(1, 6), draw.choice([0.2, 0.6, 1.0]))

    def promise(self) -> Promise:
        strategy = toeplitz.square_root(self.rounds, min(self.rounds, self.pattern.min_separation + 1))
        return Promise(self.rounds, Mechanism(strategy, self.pattern, 1.0), settings={"clip_norm": 1.0})

    def available(self, draw: random.Random) -> list[str]:
        return [client for client in self.clients if draw.random() < self.there]


def run_of_ledger(draw: random.Random, folder: Path, seen: Seen) -> None:
    setting, file, asked = Setting.of(draw), folder / "ledger.jsonl", dict[str, list[int]]()
    promise, keys = setting.promise(), CohortKeys(draw.randbytes(32), draw.randbytes(32))
    b, k = setting.pattern.min_separation, setting.pattern.max_participations
    file.unlink(missing_ok=True)
    file.with_suffix(".cohorts").unlink(missing_ok=True)
    ledger = Ledger(promise, SECRET, file)
    ledger.start_epoch(0, draw.randbytes(32), DIGEST)
    while ledger.next_round < setting.rounds:
        t = ledger.next_round
        if draw.random() < 0.03:
            ledger = Ledger(promise, SECRET, file)
            ledger.start_epoch(t, draw.randbytes(32), DIGEST)
            seen.restarts += 1
        # By the words of the promise.
        not_now = [client for client, rounds in asked.items() if len(rounds) >= k or t - rounds[-1] < b]
        if not_now and draw.random() < 0.1:
            # Whoever chooses cohorts by other means is refused, as a whole, and nothing is charged.
            others = [client for client in setting.clients if client not in asked][:2]
            with pytest.raises(ParticipationError, match=f"may not join round {t}"):
                ledger.begin(t, [*others, draw.choice(not_now)], "a sum", 1.0)
            assert ledger.next_round == t
            seen.refused += 1
        cohort = [str(c) for c in eligible(t, setting.available(draw), setting.size, keys=keys, ledger=ledger)]
        seen.short += len(cohort) < setting.size
        assert not set(cohort) & set(not_now)
        ticket = ledger.begin(t, cohort, "a sum", 1.0)
        for client in cohort:
            asked.setdefault(client, []).append(t)
        fate = draw.random()
        if fate < 0.02:
            # The server dies in the round, which its next start aborts.
            ledger = Ledger(promise, SECRET, file)
            ledger.abort(ledger.pending())  # type: ignore[arg-type] # the round is there
            ledger.start_epoch(ledger.next_round, draw.randbytes(32), DIGEST)
            seen.restarts += 1
            seen.aborted += 1
        elif fate < 0.08:
            ledger.abort(ticket)
            seen.aborted += 1
        else:
            ledger.commit(ticket, b"a release")
        seen.rounds += 1
    seen.check(file, setting.pattern, asked, SECRET)


@pytest.mark.parametrize("rounds", [1_500, pytest.param(100_000, marks=pytest.mark.slow)])
def test_prt_1_prt_2_prt_3_prt_4_gaps_and_counts_hold_whoever_comes_and_however_often_it_starts(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What reaches the disk is tested elsewhere; here it costs nine tenths of the time.
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    draw, seen = random.Random(rounds), Seen()  # noqa: S311 # of a test
    while seen.rounds < rounds:
        run_of_ledger(draw, tmp_path, seen)
    assert min(seen.restarts, seen.aborted, seen.refused, seen.short) > rounds / 100
    # The bounds were reached, so that a client that comes one round too early or once too often would have been seen.
    assert seen.gaps[0] > rounds / 100
    assert seen.counts[0] > rounds / 100


def test_prt_3_prt_4_a_run_of_releases_keeps_its_pattern_over_restarts(tmp_path: Path) -> None:
    """The whole path, with its folder, its keys and its noise; every start settles what the last one left open."""
    draw, seen = random.Random(4), Seen()  # noqa: S311 # of a test
    for number in range(3):
        setting = Setting(MinSeparation(4, 3), 20, [f"client {i}" for i in range(20)], 3, 0.7)
        folder, asked = tmp_path / str(number), dict[str, list[int]]()
        lattice = Lattice(1.0)
        nothing = LatticeSum(torch.zeros(2, dtype=torch.int64), lattice, {})
        path = None
        while True:
            if path is None or draw.random() < 0.2:
                with RunStore(folder).locked():
                    path = ReleasePath(setting.promise(), 2, clients=3, store=RunStore(folder))
                    path.start()
                seen.restarts += 1
            t = path.next_round
            if t == setting.rounds:
                break
            chosen = eligible(t, setting.available(draw), setting.size, keys=path.cohort_keys, ledger=path.ledger)
            ticket = path.begin(chosen, nothing, 1.0)
            for client in chosen:
                asked.setdefault(str(client), []).append(t)
            match draw.randrange(6):
                case 0:
                    path.abort(ticket)
                case 1:
                    path = None
                case 2:
                    path.row(ticket)
                    path = None
                case _:
                    path.commit(ticket, nothing.open(path.row(ticket)))
        secret = (folder / "state" / "keys" / "run").read_bytes()
        seen.check(folder / "ledger.jsonl", setting.pattern, asked, secret)
        states = [entry.state for entry in read_run(folder).history.rounds]
        assert states.count("aborted") >= 2
    assert seen.restarts > 10
    assert seen.gaps[0] > 0


def test_prt_8_a_runs_cost_follows_from_the_rounds_that_clients_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the longest sum of columns of C over the clients that the file names; what is stated is never below it."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    draw, seen, cheaper = random.Random(8), Seen(), 0  # noqa: S311 # of a test
    for number in range(12):
        folder = tmp_path / str(number)
        folder.mkdir()
        state = draw.getstate()
        run_of_ledger(draw, folder, seen)
        after = draw.getstate()
        draw.setstate(state)
        promise = Setting.of(draw).promise()
        draw.setstate(after)
        C = promise.mechanism.strategy.matrix()
        # No entry is negative, so that equal signs are the worst.
        longest = max(float(np.linalg.norm(C[:, rounds].sum(axis=1))) for rounds in joined(folder / "ledger.jsonl").values())
        history = Ledger(promise, SECRET, folder / "ledger.jsonl").history
        cost = spent(promise, history)
        assert not cost.worse
        assert cost.happened.gdp_mu == pytest.approx(longest / promise.mechanism.stddev, rel=1e-9)
        assert cost.guarantee.epsilon == cost.promised.epsilon >= cost.happened.epsilon
        cheaper += cost.happened.epsilon < cost.promised.epsilon
    assert cheaper
