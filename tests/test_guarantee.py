"""A guarantee as an object and as a text: every number in it is a bound, and nothing that it leaves open is unsaid."""

import json
import math
import re
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from scipy.special import logsumexp

from hubbub import accounting
from hubbub.accounting import FixedSizeSampled, Gaussian, PoissonSampled, RunFacts
from hubbub.accounting.composition import unamplified_mu, unamplified_zcdp_rho
from hubbub.accounting.events import BallsInBins, Event, MixtureOfGaussians, TreeAggregation, TruncatedPoissonSampled
from hubbub.accounting.events_of_mechanism import mechanism_events
from hubbub.accounting.runs import RunCharge, run_assumptions
from hubbub.accounting.wording import EACH_RUN, FIXED_RUNS, same_units
from hubbub.cli.accounts import guarantee_rows
from hubbub.errors import ConfigError
from hubbub.mechanism import Mechanism, gaussian
from hubbub.mechanism import participation as parts
from hubbub.mechanism.strategies import Dense, Identity, Strategy, toeplitz

CORRELATED = Mechanism(toeplitz.square_root(30, 5), parts.MinSeparation(5, 4), 2.0)
COHORTS: list[parts.Participation] = [
    parts.PoissonSampling(0.1), parts.FixedSizeSampling(10, 100), parts.TruncatedPoissonSampling(0.1, 30, 100),
    parts.CyclicPoissonSampling(0.4, 4), parts.BallsInBinsSampling(5),
]  # fmt: skip


def of(participation: parts.Participation, relation: str | None = None, z: float = 1.5) -> accounting.PrivacyGuarantee:
    return accounting.guarantee(Mechanism(Identity(20), participation, z), 1e-6, relation)


def test_every_point_of_the_curve_of_a_gaussian_is_where_its_exact_delta_is() -> None:
    answer = accounting.guarantee(CORRELATED, 3e-7)
    assert answer.gdp_mu == pytest.approx(CORRELATED.l2_sensitivity / CORRELATED.stddev, rel=1e-14)
    assert {delta for delta, _ in answer.curve} >= {1e-3, 3e-7, 1e-12}
    for delta, epsilon in answer.curve:
        # Balle and Wang 2018, Theorem 8, at sensitivity 1 and standard deviation 1/μ.
        assert gaussian.delta(epsilon, 1 / answer.gdp_mu) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize("q", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("order", [1.5, 4.0, 32.0])
def test_a_sampled_round_is_as_concentrated_as_it_says_without_amplification(q: float, order: float) -> None:
    z = 0.8
    rho = unamplified_mu([(PoissonSampled(z, q), 1)], "add-or-remove-one") ** 2 / 2
    # The trapezoid rule is exact to rounding for what falls off like a Gaussian on both sides.
    x = np.arange(-order - 12 * z, order + 12 * z, 0.005)
    base, moved = -(x**2) / (2 * z * z), -((x - 1) ** 2) / (2 * z * z)
    mixture = np.logaddexp(np.log1p(-q) + base, np.log(q) + moved) if q < 1 else moved
    for p, against in ((mixture, base), (base, mixture)):
        log_moment = logsumexp(order * p + (1 - order) * against) + math.log(0.005 / math.sqrt(2 * math.pi * z * z))
        assert log_moment / (order - 1) <= rho * order * (1 + 1e-9)


@pytest.mark.parametrize("relation", ["zero-out", "add-or-remove-one", "replace-one"])
@pytest.mark.parametrize("participation", COHORTS, ids=lambda p: type(p).__name__)
def test_what_is_stated_for_random_cohorts_is_at_most_the_worst_case(participation: parts.Participation, relation: str) -> None:
    answer = of(participation, relation)
    assert answer.amplified
    assert answer.zcdp_rho is None
    assert answer.gdp_mu is None
    assert 0 < answer.epsilon <= answer.unamplified_epsilon
    assert answer.unamplified_zcdp_rho == pytest.approx(answer.unamplified_mu**2 / 2)


def test_the_worst_case_of_coins_is_a_client_of_every_round() -> None:
    rounds, z = 20, 1.5
    assert of(parts.PoissonSampling(0.1)).unamplified_zcdp_rho == pytest.approx(rounds / (2 * z * z), rel=1e-12)
    assert of(parts.PoissonSampling(0.1), "replace-one").unamplified_zcdp_rho == pytest.approx(
        4 * rounds / (2 * z * z), rel=1e-12
    )
    # A client of a cohort of fixed size takes another's place: both contributions change.
    displaced = of(parts.FixedSizeSampling(10, 100), "add-or-remove-one").unamplified_zcdp_rho
    assert displaced == pytest.approx(4 * rounds / (2 * z * z), rel=1e-12)
    assert of(parts.BallsInBinsSampling(5)).unamplified_zcdp_rho == pytest.approx(4 / (2 * z * z), rel=1e-12)
    every = accounting.guarantee(Mechanism(Identity(rounds), parts.MinSeparation(1, rounds), z), 1e-6)
    assert of(parts.PoissonSampling(0.1)).unamplified_epsilon == pytest.approx(every.epsilon, rel=1e-12)
    # With so little noise nothing is hidden.
    assert of(parts.PoissonSampling(0.1), z=1e-12).unamplified_epsilon == math.inf


def test_one_gaussian_is_restated_for_replacement_at_twice_its_mu() -> None:
    answer = accounting.guarantee(CORRELATED, 1e-6)
    other = {restated.neighboring_relation: restated for restated in answer.other_relations}
    assert other["replace-one"].epsilon == pytest.approx(gaussian.epsilon(1e-6, 1 / (2 * answer.gdp_mu)), rel=1e-12)
    assert other["add-or-remove-one"].epsilon is None
    assert "cohorts of the others would change" in other["add-or-remove-one"].why


@pytest.mark.parametrize("participation", COHORTS, ids=lambda p: type(p).__name__)
def test_random_cohorts_are_computed_anew_under_each_relation(participation: parts.Participation) -> None:
    answer = of(participation, "zero-out")
    assert [restated.neighboring_relation for restated in answer.other_relations] == ["add-or-remove-one", "replace-one"]
    for restated in answer.other_relations:
        assert restated.epsilon == of(participation, restated.neighboring_relation).epsilon


PATTERNS: list[parts.Participation] = [parts.SingleParticipation(), parts.FixedEpochs(3, 7)]
PATTERNS += [parts.MinSeparation(5, 4), parts.MinSeparation(1, 20)]


@pytest.mark.parametrize("relation", ["zero-out", "add-or-remove-one", "replace-one"])
@pytest.mark.parametrize("participation", [*COHORTS, *PATTERNS], ids=str)
@pytest.mark.parametrize("strategy", [Identity(20), toeplitz.square_root(20, 4)], ids=["independent", "correlated"])
@pytest.mark.parametrize("z", [0.1, 1.7])
def test_rho_is_that_of_the_stated_sensitivity_and_noise(
    strategy: Strategy, participation: parts.Participation, relation: str, z: float
) -> None:
    """Bun and Steinke 2016, Proposition 1.6, of the numbers as printed; of random cohorts for each round of a client."""
    try:
        answer = accounting.guarantee(Mechanism(strategy, participation, z), 1e-6, relation)
    except (ConfigError, ValueError) as refused:
        assert "no theorem" in str(refused) or "not offered" in str(refused) or "independent noise only" in str(refused)  # noqa: PT017
        return
    rows = guarantee_rows(answer)
    rho, sensitivity, stddev = (float(rows[k].split()[0]) for k in ("zCDP rho", "L2 sensitivity", "clip noise multiplier"))
    random = participation in COHORTS
    rounds = {"CyclicPoissonSampling": 5, "BallsInBinsSampling": 4}.get(type(participation).__name__, 20) if random else 1
    assert rho == pytest.approx(rounds * sensitivity**2 / (2 * stddev**2), rel=1e-12)
    assert ("of one round" in rows["L2 sensitivity"]) == random
    assert ("of the whole run" in rows["L2 sensitivity"]) != random
    noise = points(answer.statement())["Noise"]
    assert f"L2 sensitivity of {answer.sensitivity_of} {sensitivity!r} clip norms under {relation}, exact" in noise
    assert answer.as_json()["l2_sensitivity"] == sensitivity


@pytest.mark.parametrize("z", [0.3, 0.75, 1.0, 1.1, math.nextafter(1.0, 0.0), math.nextafter(2.0, 3.0), 3**0.5, 7**0.5])
@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_no_digit_of_what_is_stated_is_below_the_truth(z: float, relation: str) -> None:
    """Of k rounds of independent noise all squares are fractions of whole numbers."""
    moved, variance = (4 if relation == "replace-one" else 1), Fraction(z) ** 2
    for k in range(1, 41):
        mechanism = Mechanism(Identity(k), parts.MinSeparation(1, k), z)
        answer = accounting.guarantee(mechanism, 1e-6, relation)
        composed = accounting.gdp_mu([(Gaussian(z), k)], relation)
        for stated, truth in (
            (Fraction(answer.l2_sensitivity or 0.0) ** 2, Fraction(k * moved)),
            (Fraction(answer.gdp_mu or 0.0) ** 2, k * moved / variance),
            (Fraction(composed or 0.0) ** 2, k * moved / variance),
            (Fraction(answer.zcdp_rho or 0.0), k * moved / variance / 2),
            (Fraction(answer.unamplified_zcdp_rho or 0.0), k * moved / variance / 2),
            (Fraction(mechanism.l2_sensitivity) ** 2, Fraction(k)),
            (Fraction(mechanism.mu) ** 2, k / variance),
            (Fraction(mechanism.zcdp_rho), k / variance / 2),
        ):
            assert truth <= stated <= truth * (1 + Fraction(1, 10**14))


@pytest.mark.parametrize(
    "events",
    [
        [(Gaussian(1.0), 1), (Gaussian(2.0**27), 1)],
        [(Gaussian(405941.7109375), 322562012466)],
        [(PoissonSampled(0.1, 0.5), 3), (TreeAggregation(0.7, rounds=100), 2)],
    ],
    ids=["one that adds less than an ulp", "very many", "of several kinds"],
)
def test_rho_and_mu_of_several_releases_are_not_an_ulp_low(events: list[tuple[Event, int]]) -> None:
    levels = {TreeAggregation: 7}
    truth = sum(n * levels.get(type(event), 1) / Fraction(event.noise_multiplier) ** 2 for event, n in events)
    rho = unamplified_zcdp_rho(events, "zero-out")
    assert truth / 2 <= Fraction(rho) <= truth / 2 * (1 + Fraction(1, 2**51))
    assert truth <= Fraction(unamplified_mu(events, "zero-out")) ** 2 <= truth * (1 + Fraction(1, 2**50))


def test_a_sensitivity_of_a_matrix_is_not_an_ulp_low() -> None:
    mechanism = Mechanism(Dense(np.array([[1.0, 0.0], [1e-9, 1.0]])), parts.SingleParticipation(), 1.0)
    truth = 1 + Fraction(1e-9) ** 2
    assert Fraction(mechanism.l2_sensitivity) ** 2 >= truth
    assert Fraction(mechanism.zcdp_rho) * 2 >= truth


def test_what_a_run_is_charged_is_not_below_its_cost_where_an_earlier_run_is_counted() -> None:
    """The noise multiplier of the event on record is rounded down."""
    for k in range(1, 200):
        ((event, times),) = mechanism_events(Mechanism(Identity(k), parts.MinSeparation(1, k), math.sqrt(k)), k)
        assert times == 1
        assert Fraction(event.noise_multiplier) ** 2 * k <= Fraction(math.sqrt(k)) ** 2


def points(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\(\d+\) ([^:]+): (.*)$", text, flags=re.MULTILINE))


@pytest.mark.parametrize("participation", [*COHORTS, parts.SingleParticipation()], ids=lambda p: type(p).__name__)
def test_a_statement_holds_each_point_of_the_checklist(participation: parts.Participation) -> None:
    text = of(participation).statement()
    assert ", ".join(points(text)) == (
        "Setting, What is covered, What is released, Unit of privacy, Neighboring relation, Sampling, Accountant, Guarantee, "
        "Noise, Tuning, Audit, Record"
    )
    assert all(text for text in points(text).values())
    assert len(re.findall(r"\(to be enforced by the ledger\)$", text, flags=re.MULTILINE)) >= 1
    assert len(re.findall(r"\(to be enforced by the operator\)$", text, flags=re.MULTILINE)) >= 3
    assert not re.search(r"\((?:ledger|operator|software)\)$", text, flags=re.MULTILINE)
    assert "- choosing settings" in text
    assert "numpy " + np.__version__ in text


def test_a_statement_says_both_what_the_sampling_gives_and_the_worst_case() -> None:
    answer = of(parts.PoissonSampling(0.1))
    believed, worst = re.search(r"epsilon is ([\d.]+); in the worst case .* it is ([\d.]+)", answer.statement()).groups()
    assert answer.epsilon <= float(believed) <= answer.epsilon * 1.001
    assert answer.unamplified_epsilon <= float(worst) <= answer.unamplified_epsilon * 1.001
    assert "worst case over who took part when" in accounting.guarantee(CORRELATED, 1e-6).statement()


def test_no_number_of_a_statement_is_below_the_computed_one() -> None:
    with localcontext(prec=2, rounding="ROUND_DOWN"), np.errstate(all="raise"):
        answer = accounting.guarantee(CORRELATED, 1e-6)
        stated = points(answer.statement())["Guarantee"]
    shown = re.findall(r"\(([\d.]+), ([\d.e-]+)\)", stated)
    assert [float(delta) for _, delta in shown] == [delta for delta, _ in answer.curve]
    for (epsilon, _), (_, computed) in zip(shown, answer.curve, strict=True):
        assert Decimal(epsilon) >= Decimal(computed)
    rho, mu = re.search(r"; ([\d.]+)-zCDP; ([\d.]+)-Gaussian DP", stated).groups()
    assert Decimal(rho) >= Decimal(answer.zcdp_rho)
    assert Decimal(mu) >= Decimal(answer.gdp_mu)


def charge(number: int, *events: tuple[Event, int], rounds: int = 6, relation: str = "zero-out") -> RunCharge:
    marks = f"{number:x}" * 64, f"{number + 1:x}" * 64
    return RunCharge(*marks, rounds, 8, events, relation, accounting.events.RELATIONS, "client")


CHARGES = [
    (charge(1, (Gaussian(1.75), 1)), ["noise multiplier 1.75", "whole run"], "no client breaks the participation pattern"),
    (charge(2, (PoissonSampled(2.5, 0.125), 6)), ["noise multiplier 2.5", "probability 0.125"], "sampled at random"),
    (
        charge(3, (PoissonSampled(2.5, 0.125), 2)),
        ["multiplier 2.5", "cyclic Poisson sampling", "2 rounds"],
        "group is fixed permanently",
    ),
    (charge(4, (FixedSizeSampled(0.7, 3, 40), 6)), ["noise multiplier 0.7", "cohorts of 3 of 40"], "sampled at random"),
    (
        charge(5, (TruncatedPoissonSampled(0.7, 0.25, 9, 40), 6)),
        ["multiplier 0.7", "probability 0.25", "of 40 clients at most 9"],
        "sampled at random",
    ),
    (charge(6, (BallsInBins(1.25, 3, 6), 1)), ["multiplier 1.25", "one of 3 bins"], "bin is drawn once"),
    (charge(7, (TreeAggregation(5.5, 6), 1)), ["tree", "multiplier 5.5"], "no client breaks the participation pattern"),
    (
        charge(8, (MixtureOfGaussians(4.5, (0.0, 1.0), (0.5, 0.5)), 6)),
        ["multiplier 4.5", "6 times"],
        "one person is one client",
    ),
    (charge(9), ["nothing was released"], ""),
    (replace(charge(10), events=None, simulation=True), ["nothing bounds", "simulation"], ""),
]


def test_a_statement_of_a_run_names_its_scale_its_divisor_and_its_record() -> None:
    facts = RunFacts(0.5, 40.0, True, 90, ("ab" * 32,), ("round 3 was not clipped",), 0.7)
    text = accounting.guarantee(CORRELATED, 1e-6).statement(facts)
    told = ("norm 0.5", "fixed number 40", "of 90 that were planned", "ab" * 32, "- round 3 was not clipped", "at least 0.7")
    for words in told:
        assert words in text
    assert f"standard deviation {CORRELATED.stddev * 0.5:.6g}" in text


@pytest.mark.parametrize(("run", "words", "assumed"), CHARGES, ids=lambda value: "")
def test_a_run_that_is_charged_beside_is_told_in_full(run: RunCharge, words: list[str], assumed: str) -> None:
    text = accounting.guarantee(CORRELATED, 1e-6, earlier=(run,)).statement(RunFacts(heads=("ab" * 32,)))
    (line,) = [line for line in text.splitlines() if line.startswith(f"- the run of ledger {run.first[:16]}")]
    for part in (*words, run.head[:16], "6 of 8 rounds", "zero-out relation"):
        assert part in line
    (own,) = [line for line in text.splitlines() if line.startswith("- this run: ")]
    assert "with noise multiplier 2, each client in at most 4 rounds at least 5 apart; 30 rounds, zero-out relation" in own
    assumptions = re.findall(r"^- (.*) \((?:ledger|operator|software)\)$", text, flags=re.MULTILINE)
    assert any(assumed in text for text in assumptions)
    assert len(assumptions) == len(set(assumptions))


def test_the_statement_of_several_runs_holds_each_in_a_line_and_all_that_they_assume() -> None:
    first, second = of(parts.PoissonSampling(0.1), "zero-out"), accounting.guarantee(CORRELATED, 1e-6)
    other = CHARGES[5][0]
    heads = "ab" * 32, "cd" * 32
    # As compose_runs makes it.
    assumed = EACH_RUN, FIXED_RUNS, same_units("client")
    both = replace(second, noise_multiplier=None, mechanism="3 runs over the same people", cohorts="", assumptions=assumed)
    text = both.statement(RunFacts(heads=heads, runs=(first, second), others=(other,)))
    listed = text.split("The runs:\n")[1].split("\n\n")[0].splitlines()
    assert len(listed) == 3
    for line, run, head in zip(listed, (first, second), heads, strict=False):
        assert line == f"- the run of head {head[:16]}: {run.mechanism}; {run.rounds} rounds, zero-out relation"
        assert f"noise multiplier {run.noise_multiplier:.6g}" in line
        assert run.cohorts in line
    assert other.head[:16] in listed[2]
    assumed = text.split("It assumes (and who enforces it):\n")[1].split("\n\n")[0].splitlines()
    union = {*first.assumptions, *second.assumptions, *run_assumptions(other, "zero-out"), FIXED_RUNS, same_units("client")}
    assert set(assumed) == {f"- {assumption}" for assumption in union}
    assert len(assumed) == len(union)
    assert points(text)["Noise"] == "that of each run, named below."
    assert text.count("facts about groups") == 1


def test_num_2_what_promises_nothing_says_so_in_full() -> None:
    nothing = accounting.unprotected(4, 1e-5)
    assert nothing.at(1e-3) == nothing.unamplified_epsilon == math.inf
    assert "epsilon is infinite" in nothing.statement()
    assert nothing.as_json()["curve"] == [{"delta": 1e-5, "epsilon": None}]


@pytest.mark.parametrize("participation", [*COHORTS, parts.SingleParticipation()], ids=lambda p: type(p).__name__)
def test_a_guarantee_is_strict_json_with_all_that_its_text_says(participation: parts.Participation) -> None:
    answer = of(participation)
    read = json.loads(json.dumps(answer.as_json(), allow_nan=False))
    assert [point["epsilon"] for point in read["curve"]] == [epsilon for _, epsilon in answer.curve]
    assert {fact["enforced_by"] for fact in read["assumptions"]} <= {"ledger", "software", "operator"}
    assert read["without_amplification"]["zcdp_rho"] == answer.unamplified_zcdp_rho
    assert read["versions"]["numpy"] == np.__version__
    assert read["not_covered"]
    assert sum(event["count"] for event in read["events"]) >= 1


def test_a_guarantee_states_its_renyi_curve_and_its_trade_off() -> None:
    poisson = accounting.guarantee(Mechanism(Identity(50), parts.PoissonSampling(0.1), 1.0), 1e-5)
    event = poisson.events[0][0]
    assert poisson.rdp((1.5, 8)) == pytest.approx(50 * accounting.rdp(event, (1.5, 8), "add-or-remove-one"))
    gaussian = accounting.guarantee(Mechanism(Identity(50), parts.MinSeparation(10, 5), 1.0), 1e-5)
    assert gaussian.rdp([2.0])[0] == pytest.approx(2 * gaussian.zcdp_rho)
    # Of one Gaussian release the curve is exact: a test that is never wrong about absence misses presence always.
    errors = gaussian.trade_off((0.0, 0.25, 1.0))
    assert errors == pytest.approx([1, NormalDist().cdf(NormalDist().inv_cdf(0.75) - gaussian.gdp_mu), 0], abs=1e-11)
    with pytest.raises(ValueError, match="no privacy guarantee"):
        accounting.unprotected(3, 1e-5).rdp([2.0])
