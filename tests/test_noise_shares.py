"""Noise that the clients bring along: what sums of discrete Gaussian shares cost, and runs whose sums hold them."""

import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hockey_stick import shares_law
from hubbub import accounting, verify
from hubbub._util.prf import derive, seed_key
from hubbub.accounting.events_of_mechanism import mechanism_events
from hubbub.accounting.renyi import added_delta, distance
from hubbub.errors import ConfigError, LedgerError
from hubbub.ledger import Promise, spent
from hubbub.mechanism import Mechanism, NoiseShares, gaussian
from hubbub.mechanism.discrete_gaussian import discrete_gaussian, statistical_distance
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, PoissonSampling, SingleParticipation
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.noise.lattice import Lattice
from hubbub.noise.steps import share_stddev
from hubbub.training import LatticeSum, ReleasePath, RunStore, train
from recorded_runs import history_of, hubbub, read_back
from release_paths import CLIENTS, CLIP, DIM, PATTERN, ROUNDS, locked, opened, plan, silent

ORDERS = np.array([1.01, 1.5, 2.0, 5.0, 20.0, 100.0])
SHARES = NoiseShares(clients=3, dim=DIM)
MECHANISM = Mechanism(Identity(ROUNDS), PATTERN, 2.0, SHARES)
PROMISE = Promise(ROUNDS, MECHANISM, settings={"clip_norm": CLIP})
# The module, which has the name of its function.
RDP = sys.modules["hubbub.accounting.renyi"]


def both(stddev: int, shares: int, move: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The laws of the sum without and with a move, where neither is lost in rounding, all numbers of the sum together."""
    law, p, q = shares_law(stddev, shares, 12 * stddev * shares), np.ones(1), np.ones(1)
    middle = len(law) // 2
    reach = min(middle - max(map(abs, move)), math.ceil(9 * stddev * math.sqrt(shares)))
    for by in move:
        kept = slice(middle - reach, middle + reach + 1)
        p, q = np.outer(p, law[kept]).ravel(), np.outer(q, np.roll(law, by)[kept]).ravel()
    return p, q


def events(stddev: int, shares: int, move: tuple[int, ...], dim: int | None = None) -> accounting.DiscreteGaussianShares:
    norm = math.sqrt(sum(by * by for by in move))
    return accounting.DiscreteGaussianShares(math.sqrt(shares) * stddev / norm, shares, stddev, dim or len(move))


CASES = [
    pytest.param(stddev, shares, move, id=f"{shares} of {stddev}, {move}")
    for stddev, shares, move in itertools.product((1, 2), (1, 2, 5), ((1,), (3,), (1, 1), (2, -1)))
]


@pytest.mark.parametrize(("stddev", "shares", "move"), CASES)
def test_no_sum_of_shares_costs_more_than_is_stated(stddev: int, shares: int, move: tuple[int, ...]) -> None:
    p, q = both(stddev, shares, move)
    event = events(stddev, shares, move)
    # What both() leaves out has a chance below 1e-18, which no order up to 5 sees.
    for order in (1.01, 1.5, 2.0, 5.0):
        true = math.log(float((p**order * q ** (1 - order)).sum())) / (order - 1)
        assert true <= accounting.rdp(event, [order], "zero-out")[0] + 1e-9
    for at in (0.5, 1.0, 2.0):
        true = float(np.maximum(p - math.exp(at) * q, 0).sum())
        assert true <= accounting.delta([(event, 1)], at, "zero-out") + 1e-12
        if 1e-9 < true < 0.9:
            assert accounting.epsilon([(event, 1)], true, "zero-out") >= at


@pytest.mark.parametrize("relation", ["zero-out", "add-or-remove-one", "replace-one"])
def test_of_fine_steps_the_divergences_are_those_of_the_gaussian(relation: str) -> None:
    event = accounting.DiscreteGaussianShares(1.5, 1000, 10**4, 10**12)
    assert event.excess == 0.0
    shared, gaussian = (accounting.rdp(one, ORDERS, relation).tolist() for one in (event, accounting.Gaussian(1.5)))
    assert shared == pytest.approx(gaussian, rel=1e-14)


def test_replacing_a_client_moves_the_sum_twice_as_far() -> None:
    p, q = both(2, 3, (4,))
    event = events(2, 3, (2,))
    for at in (0.5, 2.0):
        true = float(np.maximum(p - math.exp(at) * q, 0).sum())
        assert accounting.delta([(event, 1)], at, "zero-out") < true <= accounting.delta([(event, 1)], at, "replace-one")


@pytest.mark.parametrize("rounds", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("stddev", [*(pytest.param(stddev, marks=pytest.mark.slow) for stddev in (1, 2)), 100])
def test_a_group_pays_for_every_round_that_one_of_it_is_in(stddev: int, rounds: int) -> None:
    event, draw = accounting.DiscreteGaussianShares(20.0, 10**6, stddev, 1000), np.random.default_rng(0)
    for k in (2, 5, 20):
        stated = accounting.epsilon(accounting.group_events([(event, rounds)], k), 1e-6, "zero-out")
        # Each unit is in that many rounds of its own choice: all in the same, each in others, or by chance.
        ways = [[k] * rounds, [1] * k * rounds, *(np.bincount(draw.integers(0, rounds * 4, k * rounds)) for _ in range(5))]
        for way in ways:
            together = [(replace(event, noise_multiplier=20.0 / min(k, n)), 1) for n in map(int, way) if n]
            assert accounting.epsilon(together, 1e-6, "zero-out") <= stated * (1 + 1e-12), (k, way)


@pytest.mark.parametrize("shares", [1, 2, 7, 100_001, 250_000])
def test_the_excess_is_the_sum_of_its_terms_or_little_more(shares: int) -> None:
    k = np.arange(1, shares)
    by_definition = 10 * math.fsum(np.exp(-2 * math.pi**2 * (k / (k + 1))).tolist())
    stated = accounting.DiscreteGaussianShares(1.0, shares, 1, 1).excess
    assert by_definition <= stated <= by_definition * (1 + 1e-4) + 1e-12


def test_a_statistical_distance_costs_what_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of laws at a distance of β from exact ones, as bad as they can be: one has β more where the other has β less."""
    p, q = both(2, 1, (2,))
    event, beta = events(2, 1, (2,)), 1e-3
    worst = np.argsort(p / q)[::-1]
    # What is likeliest under p alone is taken from q and given to p.
    taken = np.minimum(q[worst], np.maximum(0, beta - np.append(0, np.cumsum(q[worst])[:-1])))
    near_q, near_p = q.copy(), p * (1 - beta)
    near_q[worst] -= taken
    near_q[worst[-1]] += taken.sum()
    near_p[worst[0]] += beta
    for changed, law in ((near_p, p), (near_q, q)):
        assert 0.9 * beta < np.abs(changed - law).sum() / 2 < beta * (1 + 1e-9)
    exact = {at: accounting.delta([(event, 1)], at, "zero-out") for at in (0.5, 1.0, 2.0, 3.0)}
    monkeypatch.setattr(RDP, "statistical_distance", lambda numbers: numbers * beta)
    assert distance([(event, 1)]) == beta
    for at, without in exact.items():
        true = float(np.maximum(near_p - math.exp(at) * near_q, 0).sum())
        ideal = float(np.maximum(p - math.exp(at) * q, 0).sum())
        stated = accounting.delta([(event, 1)], at, "zero-out")
        assert ideal + 0.5 * (1 + math.exp(at)) * beta < true <= stated
        assert stated == pytest.approx(without + (1 + math.exp(at)) * beta)


@pytest.mark.parametrize("beta", [1e-12, 1e-8, 3e-8])
def test_epsilon_sets_aside_what_the_distance_costs_at_it_and_little_more(beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    event = accounting.DiscreteGaussianShares(2.0, 3, 10**6, 10)
    exact = accounting.epsilon([(event, 4)], 1e-5, "zero-out")
    monkeypatch.setattr(RDP, "statistical_distance", lambda numbers: beta)
    found = accounting.epsilon([(event, 4)], 1e-5, "zero-out")
    assert exact < found < exact + 0.2
    assert 0.7e-5 < accounting.delta([(event, 4)], found, "zero-out") <= 1e-5


def test_the_distance_adds_up_over_rounds_shares_and_numbers_of_a_unit() -> None:
    event = accounting.DiscreteGaussianShares(2.0, 3, 10**6, 5)
    assert distance([(event, 4), (accounting.Gaussian(1.0), 9), (event, 1)]) == statistical_distance(5 * 3 * 5)
    assert distance([(accounting.Gaussian(1.0), 9)]) == 0 == added_delta(700.0, 0.0)
    assert added_delta(0.0, 1e-9) == pytest.approx(2e-9)
    assert added_delta(800.0, 1e-9) == 1


def test_an_epsilon_that_the_distance_does_not_bear_is_infinite_and_its_delta_stays_small() -> None:
    event = accounting.DiscreteGaussianShares(0.02, 20, 2**20, 10**6)
    assert accounting.epsilon([(event, 1)], 1e-5, "zero-out") == math.inf
    fine = accounting.DiscreteGaussianShares(2.0, 20, 2**20, 10**6)
    assert accounting.epsilon([(fine, 1)], 1e-200, "zero-out") == math.inf
    deltas = [accounting.delta([(fine, 1)], at, "zero-out") for at in (0.0, 1.0, 10.0, 100.0, 300.0, 700.0)]
    assert deltas[:4] == sorted(deltas[:4], reverse=True)
    assert all(0 < small < 1e-80 for small in deltas[3:])


def test_a_list_that_holds_shares_is_accounted_by_divergences_whoever_is_asked() -> None:
    event = accounting.DiscreteGaussianShares(3.0, 20, 10**6, 10)
    mixed = [(event, 4), (accounting.PoissonSampled(1.0, 0.01), 100), (accounting.Gaussian(5.0), 2)]
    tight, by_rdp = (accounting.epsilon(mixed, 1e-5, "zero-out", accountant) for accountant in ("tight", "rdp"))
    assert tight == by_rdp
    assert tight > accounting.epsilon([(accounting.Gaussian(3.0), 4), *mixed[1:]], 1e-5, "zero-out")
    assert accounting.delta(mixed, 2.0, "zero-out") == accounting.delta(mixed, 2.0, "zero-out", "rdp") < 1


def test_shares_have_no_mu_and_their_trade_off_is_from_below() -> None:
    event = accounting.DiscreteGaussianShares(2.0, 5, 10**6, 10)
    assert accounting.gdp_mu([(event, 4)], "zero-out") is None
    rates = (0.001, 0.1, 0.5, 0.9)
    bound, exact = (accounting.trade_off([(one, 4)], rates, "zero-out") for one in (event, accounting.Gaussian(2.0)))
    assert (bound <= exact).all()
    assert (bound[:3] > 0.5 * exact[:3]).all()


def test_noise_and_rounds_are_calibrated_and_one_more_would_cost_more() -> None:
    event = accounting.DiscreteGaussianShares(1.0, 20, 10**6, 10**6)
    z = accounting.calibrate_noise_multiplier(event, 10, 2.0, 1e-5, "zero-out")
    costs = [accounting.epsilon([(replace(event, noise_multiplier=n), 10)], 1e-5, "zero-out") for n in (z, z * (1 - 2e-6))]
    assert costs[0] <= 2.0 < costs[1]
    rounds = accounting.calibrate_rounds(replace(event, noise_multiplier=6.0), 2.0, 1e-5, "zero-out")
    costs = [accounting.epsilon([(replace(event, noise_multiplier=6.0), n)], 1e-5, "zero-out") for n in (rounds, rounds + 1)]
    assert costs[0] <= 2.0 < costs[1]


@pytest.mark.parametrize("wrong", [{"share_stddev": 0}, {"share_stddev": 1.5}, {"shares": 0}, {"dim": 0}], ids=str)
def test_shares_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    [(name, value)] = wrong.items()
    with pytest.raises((ValueError, TypeError), match=f"{name} = {value}"):
        accounting.DiscreteGaussianShares(**({"noise_multiplier": 1.0, "shares": 2, "share_stddev": 3, "dim": 4} | wrong))


@pytest.mark.parametrize(
    ("strategy", "participation", "z", "message"),
    [
        (toeplitz.square_root(8, 3), PATTERN, 1.0, "its noise is independent; use Identity"),
        (Identity(8), PoissonSampling(0.1), 1.0, "without amplification by random cohorts"),
        (Identity(8), PATTERN, 20.0, "more than 8 clip norms for each"),
    ],
)
def test_shares_that_no_theorem_covers_or_nobody_can_draw_are_refused(
    strategy: Identity, participation: Participation, z: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Mechanism(strategy, participation, z, SHARES)


@pytest.mark.parametrize(
    ("participation", "rounds", "times"),
    [
        (SingleParticipation(), 9, 1),
        (MinSeparation(3, 2), 9, 2),
        (MinSeparation(3, 2), 3, 1),
        (MinSeparation(1, 9), 7, 7),
        (FixedEpochs(3, 3), 9, 3),
        (FixedEpochs(3, 3), 4, 2),
    ],
)
def test_a_client_is_charged_for_as_many_rounds_as_it_may_join(participation: Participation, rounds: int, times: int) -> None:
    mechanism = Mechanism(Identity(9), participation, 2.0, NoiseShares(5, 100))
    [(event, count)] = mechanism_events(mechanism, rounds)
    assert count == times
    assert event == accounting.DiscreteGaussianShares(2.0, 5, math.ceil(2 * 2**24 / math.sqrt(5)), 100)


def test_the_guarantee_says_what_shares_assume() -> None:
    answer = accounting.guarantee(MECHANISM, 1e-5)
    server = accounting.guarantee(replace(MECHANISM, shares=None), 1e-5)
    assert server.epsilon < answer.epsilon < 1.12 * server.epsilon
    assert answer.zcdp_rho == pytest.approx(server.zcdp_rho)
    assert answer.gdp_mu is None
    assert not answer.amplified
    assert answer.unamplified_epsilon == answer.epsilon
    assert "discrete Gaussian noise in shares of at least 3 clients" in answer.mechanism
    assumed = [str(assumption) for assumption in answer.assumptions]
    assert any(text.startswith("at least 3 of the clients whose replies were counted") for text in assumed)
    assert not any("share of noise" in str(assumption) for assumption in server.assumptions)
    text = answer.statement()
    assert "distributed noise: each client clips its update" in text
    # Two rounds of a client, three shares of eight numbers each.
    assert f"-zCDP up to a statistical distance of {1.05 * statistical_distance(48):.1e} in the noise" in text
    assert "statistical distance" not in server.statement()
    assert "Gaussian DP" not in text
    assert json.loads(json.dumps(answer.as_json()))["gdp_mu"] is None


def test_an_amplified_run_beside_one_with_shares_is_stated_in_the_worst_case_too() -> None:
    events = ((accounting.DiscreteGaussianShares(4.0, 3, 10**6, 10), 2), (accounting.PoissonSampled(1.0, 0.01), 100))
    both = replace(accounting.guarantee(MECHANISM, 1e-5), events=events)
    seen = gaussian.epsilon(1e-5, noise_multiplier=1.0, sensitivity=math.sqrt(2 / 16 + 100))
    assert seen < both.unamplified_epsilon < 1.05 * seen
    assert both.unamplified_zcdp_rho == pytest.approx((2 / 16 + 100) / 2)


def test_a_promise_of_shares_and_further_words_is_read_back_as_it_was() -> None:
    promise = replace(PROMISE, further=(accounting.Assumption("keys are registered", "operator"),), not_covered=("evaluation",))
    assert read_back(promise).record() == promise.record()
    assert read_back(promise).mechanism == MECHANISM
    answer = read_back(promise).after(3, 1e-6)
    assert answer.assumptions[-1] == accounting.Assumption("keys are registered", "operator")
    assert answer.not_covered[-1] == "evaluation"
    assert "keys are registered" in answer.statement()
    assert "- evaluation" in answer.statement()


def test_what_an_earlier_run_assumed_and_did_not_cover_is_stated_of_a_later_one_too() -> None:
    events = ((accounting.DiscreteGaussianShares(4.0, 7, 10**6, 10), 2),)
    words = {"further": (accounting.Assumption("keys are registered", "operator"),), "not_covered": ("evaluation",)}
    before = accounting.RunCharge("a" * 64, "b" * 64, 6, 6, events, "zero-out", ("zero-out",), "client", **words)
    later = read_back(Promise(ROUNDS, replace(MECHANISM, shares=None), earlier=(before,)))
    assert later.earlier == (before,)
    answer = later.after(ROUNDS, 1e-5)
    assumed = " ".join(map(str, answer.assumptions))
    assert "keys are registered" in assumed
    assert "at least 7 of the clients" in assumed
    assert "evaluation" in answer.not_covered
    assert "in shares of at least 7 clients, each client in at most 2 rounds" in answer.statement()
    once = replace(before, events=((events[0][0], 1),))
    told = replace(later, earlier=(once,)).after(ROUNDS, 1e-5).statement()
    assert "in shares of at least 7 clients, each client in at most one round" in told


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["mechanism"].update(shares={"clients": 0, "dim": 1}),
        lambda record: record["mechanism"].update(shares={"clients": 3, "dim": 1, "more": 1}),
        lambda record: record.pop("further"),
        lambda record: record["mechanism"].pop("shares"),
        lambda record: record.update(further=[{"text": "x\n", "enforced_by": "operator"}]),
        lambda record: record.update(further=[{"text": "x", "enforced_by": "nobody"}]),
        lambda record: record.update(not_covered=[3]),
    ],
)
def test_a_damaged_record_is_refused(change: object) -> None:
    record = json.loads(json.dumps({"kind": "promise", **PROMISE.record()}))
    change(record)
    with pytest.raises(LedgerError, match="line 1"):
        Promise.from_record(record, {})


def test_what_happened_is_charged_by_the_rounds_of_the_busiest_client() -> None:
    kept = spent(PROMISE, history_of([{0}, {1}, {2}, {3}], clip_norm=CLIP))
    assert kept.happened.events == ((mechanism_events(MECHANISM, 1)[0][0], 1),)
    assert kept.promised.events == mechanism_events(MECHANISM, 4)
    assert not kept.worse
    broken = spent(PROMISE, history_of([{0}, {0}, {0}, {0}], clip_norm=CLIP))
    assert broken.happened.events == ((mechanism_events(MECHANISM, 1)[0][0], 4),)
    assert broken.worse
    assert broken.guarantee.zcdp_rho == pytest.approx(4 / (2 * 2.0**2))
    more = spent(PROMISE, history_of([{t % 4} for t in range(9)], clip_norm=CLIP))
    assert more.happened.events == ((mechanism_events(MECHANISM, 1)[0][0], 3),)
    louder = spent(PROMISE, history_of([{0}], clip_norm=2 * CLIP))
    [(event, times)] = louder.happened.events
    assert (event.noise_multiplier, times) == (1.0, 1)
    assert event.share_stddev <= mechanism_events(MECHANISM, 1)[0][0].share_stddev / 2


def noised(round_index: int, clients: tuple[int, ...]) -> LatticeSum:
    """A sum of nothing but the clients' shares."""
    stddev = share_stddev(MECHANISM.noise_multiplier, CLIP, SHARES.clients)
    shares = [discrete_gaussian(derive(seed_key(1), round_index, client), stddev, DIM) for client in clients]
    return LatticeSum(torch.from_numpy(np.sum(shares, axis=0)), Lattice(CLIP), {})


def one_round(path: ReleasePath, *clients: int) -> torch.Tensor:
    total = noised(path.next_round, clients)
    ticket = path.begin(clients, total, CLIP)
    row = path.row(ticket)
    assert row is None
    release = total.open(row)
    path.commit(ticket, release)
    return release


def test_a_folder_with_shares_verifies_and_its_account_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Of a run whose process was started twice, and aborted a round of too few shares.
    path = opened(locked(tmp_path), PROMISE)
    one_round(path, 0, 1, 2)
    path.abort(path.begin((3, 4), noised(1, (3,)), CLIP))
    path = opened(RunStore(tmp_path), PROMISE)
    one_round(path, 5, 6, 7)
    told = PROMISE.after(ROUNDS, PROMISE.delta).as_json()
    (tmp_path / "guarantee.json").write_text(json.dumps(told))
    verdict = verify(tmp_path)
    assert verdict.ok, [check for check in verdict.checks if not check.ok]
    assert verdict.epsilon == PROMISE.after(3, PROMISE.delta).epsilon
    assert len(list((tmp_path / "state" / "keys").glob("epoch-*"))) == 2
    assert hubbub("verify", tmp_path) == 0
    assert hubbub("ledger", tmp_path) == 0
    assert hubbub("account", tmp_path, "--statement") == 0
    printed = capsys.readouterr().out
    assert "3 of 6 rounds spent" in printed
    assert "added their share of noise" in " ".join(printed.split())
    assert hubbub("account", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["events"][0]["event"] == "DiscreteGaussianShares"


def test_shares_that_nobody_answers_for_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at most 8 numbers"):
        ReleasePath(PROMISE, DIM + 1, clients=CLIENTS, noise_in_sums=True)
    # Clients that are simulated in this process clip and add nothing.
    with pytest.raises(ConfigError, match="bare sums would be released"):
        next(iter(train(replace(plan(Identity(ROUNDS)), mechanism=MECHANISM), silent(), nn.Linear(3, 2), RunStore(tmp_path))))
