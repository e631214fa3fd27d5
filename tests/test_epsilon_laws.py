"""Epsilon at thousands of random points: never below what is exact, and monotone in all that it depends on.

"Exact" comes another way: closed forms in 50 digits, sums over definitions, brute force over who takes part when, contour
integrals, and where there is none of these the optimistic bound of dp_accounting, which lies below the truth.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as peer
from mpmath import mp
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

import hockey_stick
from hubbub import AdaptiveClipping, accounting
from hubbub.accounting import RELATIONS, BallsInBins, FixedSizeSampled, Gaussian, PoissonSampled, TruncatedPoissonSampled
from hubbub.accounting.dominating_pairs import directions
from hubbub.accounting.events import Event
from hubbub.errors import ConfigError
from hubbub.mechanism import Mechanism, gaussian
from hubbub.mechanism import participation as parts
from hubbub.mechanism.sensitivity import of_matrix
from hubbub.mechanism.strategies import BinaryTree, Dense, Identity, Strategy, blt, toeplitz
from hubbub.testing import brute_force_sensitivity
from small_runs import Foreign

# A point: epsilon as stated, the delta that it is stated for, and the true delta at an epsilon.
Point = tuple[float, float, Callable[[float], float]]
# The sums over definitions are good to so much.
SUMMED = 1 + 1e-6


# How many random points a law is tried at, and from which seed.
Size = tuple[int, int]


def sized(few: Size, many: Size | None = None, *most: Size) -> list[Any]:
    """Few points for a mutant, many in each run, and most in the long form."""
    between = [] if many is None else [pytest.param(*many, id="many")]
    return [pytest.param(*few, id="few"), *between, *(pytest.param(*each, marks=pytest.mark.slow) for each in most)]


def delta_of(r: np.random.Generator) -> float:
    return float(10 ** r.uniform(-12, -1.5))


def noise_of(r: np.random.Generator) -> float:
    return float(np.exp(r.uniform(-1.0, 2.5)))


def relation_of(r: np.random.Generator) -> str:
    return RELATIONS[int(r.integers(3))]


def accountant_of(r: np.random.Generator) -> str:
    return "rdp" if r.random() < 0.2 else "tight"


def doubled(relation: str) -> int:
    return 2 if relation == "replace-one" else 1


def gaussians(r: np.random.Generator) -> Point:
    """Several kinds of Gaussian rounds and trees together."""
    relation, delta, parts, squared = relation_of(r), delta_of(r), list[tuple[Event, int]](), 0.0
    for _ in range(int(r.integers(1, 4))):
        z, rounds = noise_of(r), int(10 ** r.uniform(0, 3))
        if r.random() < 0.3:
            leaves = int(r.integers(1, 200))
            parts.append((accounting.TreeAggregation(z, leaves), rounds))
            # A leaf is in one node of each level.
            squared += rounds * (math.floor(math.log2(leaves)) + 1) / z**2
        else:
            parts.append((Gaussian(z), rounds))
            squared += rounds / z**2
    mu = math.sqrt(squared) * doubled(relation)
    stated = accounting.epsilon(parts, delta, relation, accountant=accountant_of(r))
    return stated, delta, lambda eps: hockey_stick.gaussian_delta(mu * (1 - 1e-14), eps)


def either_way(one: hockey_stick.Means, other: hockey_stick.Means, epsilon: float) -> float:
    deltas = (hockey_stick.mixture_delta(*pair, epsilon) for pair in ((one, other), (other, one)))
    return max(deltas) * (1 - 1e-9) - 1e-15


def strategy_of(r: np.random.Generator, rounds: int) -> Strategy:
    kind = int(r.integers(5))
    if kind == 0:
        return Identity(rounds)
    if kind == 1:
        return toeplitz.square_root(rounds, int(r.integers(1, rounds + 1)))
    if kind == 2:
        return BinaryTree(rounds)
    if kind == 3:
        return blt.BufferedLinearToeplitz(rounds, (0.5, 0.1), (0.9, 0.3))
    signed = np.tril(r.normal(size=(rounds, rounds)))
    return Dense(signed + np.diag(2 * np.sign(np.diag(signed))))


def pattern_of(r: np.random.Generator, rounds: int) -> parts.Pattern:
    b, k = int(r.integers(1, rounds + 1)), int(r.integers(1, rounds + 1))
    patterns = (parts.SingleParticipation(), parts.MinSeparation(b, k), parts.FixedEpochs(max(1, math.ceil(rounds / b)), b))
    return patterns[int(r.integers(3))]


def correlated(r: np.random.Generator) -> Point:
    """The first rounds of a pattern under correlated noise."""
    rounds = int(r.integers(1, 9))
    strategy, pattern, delta = strategy_of(r, rounds), pattern_of(r, rounds), delta_of(r)
    relation, done = ("zero-out", "replace-one")[int(r.integers(2))], int(r.integers(1, rounds + 1))
    mechanism = Mechanism(strategy, pattern, noise_of(r))
    C = strategy.matrix()
    column = np.linalg.norm(C, axis=0).max()
    # What is released by then: rows of C that look at no later round; a node of a tree is used when it is complete.
    rows = C[~C[:, done:].any(axis=1)]
    if isinstance(pattern, parts.FixedEpochs):
        pattern = replace(pattern, epochs=math.ceil(done / pattern.rounds_per_epoch))
    whole = brute_force_sensitivity(rows[:, :done], pattern)
    mu = doubled(relation) * whole / (mechanism.noise_multiplier * column)
    stated = accounting.guarantee(mechanism, delta, relation, rounds=done).epsilon
    return stated, delta, lambda eps: hockey_stick.gaussian_delta(mu * (1 - 1e-12), eps)


def poisson(r: np.random.Generator) -> Point:
    """One round, which each unit joins by a coin."""
    z, q, relation, delta = noise_of(r), float(10 ** r.uniform(-4, 0)), relation_of(r), delta_of(r)
    stated = accounting.epsilon([(PoissonSampled(z, q), 1)], delta, relation, accountant=accountant_of(r))
    return stated, delta, lambda eps: hockey_stick.sampled_delta(z, q, eps, relation)


def fixed_size(r: np.random.Generator) -> Point:
    """One cohort of a fixed size, in which all others stand at the end opposite to the unit."""
    population, z, relation, delta = int(r.integers(2, 2000)), noise_of(r), relation_of(r), delta_of(r)
    size = int(r.integers(1, population))
    q = size / population
    stated = accounting.epsilon([(FixedSizeSampled(z, size, population), 1)], delta, relation, accountant=accountant_of(r))
    if relation != "zero-out":
        # In the cohort the unit stands in for one at the other end: two clip norms away.
        return stated, delta, lambda eps: hockey_stick.sampled_delta(z / 2, q, eps, "add-or-remove-one")
    far, near = [(1 - q, 0.0), (q, 2 / z)], [(1 - q, 0.0), (q, 1 / z)]
    return stated, delta, lambda eps: either_way(far, near, eps)


def truncated(r: np.random.Generator) -> Point:
    """One Poisson cohort of few units that is cut where it is too large."""
    members, z, q, relation = int(r.integers(2, 5)), noise_of(r), float(r.uniform(0.05, 1)), relation_of(r)
    most, delta = int(r.integers(1, members + 1)), float(10 ** r.uniform(-8, -1.5))
    stated = accounting.epsilon([(TruncatedPoissonSampled(z, q, most, members), 1)], delta, relation)
    others = r.choice([-1.0, 0.0, 1.0], members - 1).tolist()
    with_unit = [1.0, *others]
    without = {"zero-out": [0.0, *others], "replace-one": [-1.0, *others], "add-or-remove-one": others}[relation]
    laws = []
    for values in (with_unit, without):
        sums = hockey_stick.sums(values, hockey_stick.truncated_cohorts(len(values), q, most))
        laws.append([(chance, total / z) for chance, total in sums])
    return stated, delta, lambda eps: either_way(*laws, eps)


def mixed(r: np.random.Generator) -> Point:
    """One release of a contribution that is drawn by chance."""
    z, delta, relation = noise_of(r), float(10 ** r.uniform(-8, -1.5)), ("zero-out", "replace-one")[int(r.integers(2))]
    norms, chances = np.sort(r.uniform(0, 2, 3)), r.dirichlet([1, 1, 1])
    event = accounting.MixtureOfGaussians(z, tuple(norms), tuple(chances / chances.sum()))
    stated = accounting.epsilon([(event, 1)], delta, relation, accountant="rdp" if r.random() < 0.9 else "tight")
    signs = (1.0, -1.0 if relation == "replace-one" else 0.0)
    laws = [[(float(c), float(u * s / z)) for c, s in zip(chances, norms, strict=True)] for u in signs]
    return stated, delta, lambda eps: either_way(*laws, eps)


def bins(r: np.random.Generator) -> Point:
    """A run in which each unit draws one of two slots, or has the only one."""
    z, turns, delta = noise_of(r), int(r.integers(1, 20)), float(10 ** r.uniform(-8, -1.5))
    if r.random() < 0.5:
        stated = accounting.epsilon([(BallsInBins(z, 1, turns), 1)], delta, "zero-out")
        return stated, delta, lambda eps: hockey_stick.gaussian_delta(math.sqrt(turns) / z * (1 - 1e-14), eps)
    stated = accounting.epsilon([(BallsInBins(z, 2, 2 * turns), 1)], delta, "zero-out")
    shift = math.sqrt(turns) / z
    true = partial(hockey_stick.of_two_bins, shift, shift)
    return stated, delta, lambda eps: max(true(eps, remove) for remove in (True, False)) / SUMMED


def shares(r: np.random.Generator) -> Point:
    """Noise that several clients bring along in discrete shares."""
    stddev, count, move = int(r.integers(1, 4)), int(r.integers(1, 5)), int(r.integers(1, 5))
    event = accounting.DiscreteGaussianShares(math.sqrt(count) * stddev / move, count, stddev, 1)
    delta = float(10 ** r.uniform(-9, -1.5))
    stated = accounting.epsilon([(event, 1)], delta, "zero-out")
    return stated, delta, lambda eps: hockey_stick.shares_delta(stddev, count, move, eps) / SUMMED


def split(r: np.random.Generator) -> Point:
    """Updates and the count of those that were not clipped, each with its own noise, charged as one Gaussian."""
    cohort, z, delta, rounds = float(10 ** r.uniform(0, 4)), noise_of(r), delta_of(r), int(r.integers(1, 50))
    parts = AdaptiveClipping(clip_count_stddev=float(z * r.uniform(0.6, 10))).split(z, cohort)
    # Of the indicator ½ or −½ a unit has one half.
    mu = math.sqrt(rounds * (parts.update_multiplier**-2 + (2 * parts.count_stddev) ** -2))
    stated = accounting.epsilon([(Gaussian(z), rounds)], delta, "zero-out")
    return stated, delta, lambda eps: hockey_stick.gaussian_delta(mu * (1 - 1e-13), eps)


def groups(r: np.random.Generator) -> Point:
    z, size, delta = noise_of(r), int(r.integers(1, 6)), float(10 ** r.uniform(-8, -1.5))
    stated = accounting.group_epsilon(lambda d: gaussian.epsilon(d, z), delta, size)
    return stated, delta, lambda eps: hockey_stick.gaussian_delta(size / z, eps)


def profile(r: np.random.Generator) -> Point:
    """The delta that is stated for an epsilon, which must not be below the truth either."""
    z, q, relation, eps = noise_of(r), float(10 ** r.uniform(-4, 0)), relation_of(r), float(r.uniform(0, 6))
    stated = accounting.delta([(PoissonSampled(z, q), 1)], eps, relation)
    return eps, stated, lambda at: hockey_stick.sampled_delta(z, q, at, relation) * (1 - 1e-13)


EXACT = (gaussians, correlated, poisson, fixed_size, truncated, mixed, bins, shares, split, groups, profile)


@pytest.mark.parametrize(("points", "seed"), sized((33, 2026), (100, 2026), (5000, 7)))
def test_acc_2_no_epsilon_at_hundreds_of_points_is_below_what_is_exact(points: int, seed: int) -> None:
    r, found, seen = np.random.default_rng(seed), list[str](), Counter[str]()
    for kind in itertools.islice(itertools.cycle(EXACT), points):
        epsilon, delta, true = kind(r)
        seen[kind.__name__] += 1
        assert not math.isnan(epsilon)
        if math.isfinite(epsilon) and true(epsilon) > delta:
            found.append(f"{kind.__name__}: epsilon {epsilon!r} is stated at {delta!r}, true is {float(true(epsilon))!r}")
    assert min(seen.values()) >= points // len(EXACT)
    assert found == []


@pytest.mark.parametrize(("count", "seed"), sized((4, 1), None, (100, 2)))
def test_acc_2_no_composition_of_sampled_rounds_is_below_the_truth(count: int, seed: int) -> None:
    # Of every fifth the truth itself is known, of the others a number that is not above it.
    r = np.random.default_rng(seed)
    for i in range(count):
        q, z, delta = float(r.uniform(0.02, 0.5)), float(r.uniform(0.8, 4)), float(10 ** r.uniform(-10, -3))
        replaced = bool(i % 2)
        rounds = int(r.integers(1, 40) if i % 5 else r.integers(300, 900))
        relation = "replace-one" if replaced else "add-or-remove-one"
        stated = accounting.epsilon([(PoissonSampled(z, q), rounds)], delta, relation)
        if i % 5:
            # Adding or removing is not costlier than replacing.
            how = {"pessimistic_estimate": False, "value_discretization_interval": 1e-3, "use_connect_dots": False}
            law = peer.from_gaussian_mechanism(z, sampling_prob=q, **how)
            assert stated >= law.self_compose(rounds).get_epsilon_for_delta(delta) * (1 - 1e-9)
            continue
        x = np.arange(-40.0, 44.0, 0.02)
        p, other = hockey_stick.mixture(q, 1 / z, x), hockey_stick.mixture(q, -1 / z if replaced else 0.0, x)
        kept = (p > 1e-280) & (other > 1e-280)
        exact = hockey_stick.contour_epsilon([(p[kept], np.log(p[kept] / other[kept]))], 0.02, rounds, delta)
        assert stated >= exact * (1 - 1e-7)


@pytest.mark.parametrize("z", [0.3, 1.0, 4.0, 20.0])
def test_acc_2_a_loss_distribution_on_a_mesh_is_never_below_the_gaussian_and_divergences_never_below_it(z: float) -> None:
    for rounds, delta in itertools.product((1, 100), (1e-3, 1e-9)):
        exact = gaussian.epsilon(delta, z / math.sqrt(rounds))
        # The door answers by the closed form; here the mesh is asked.
        forth, _ = directions(Gaussian(z), "zero-out")
        meshed = accounting.pld.epsilon([(forth, rounds)], delta)
        assert exact <= meshed * (1 + 1e-12)
        assert meshed <= exact + 2 * accounting.pld.tolerance(exact) or exact > 100
        assert accounting.epsilon([(Gaussian(z), rounds)], delta, "zero-out", accountant="rdp") >= exact


def slack(epsilon: float) -> float:
    """How far two answers on different meshes may be apart."""
    return 2 * max(1e-4, 1e-5 * epsilon)


def more_noise(event: Event, factor: float) -> Event:
    changes: dict[str, object] = {"noise_multiplier": event.noise_multiplier * factor}
    if isinstance(event, accounting.DiscreteGaussianShares):
        changes["share_stddev"] = max(1, math.floor(event.share_stddev * factor))
    return replace(event, **changes)


def costlier(event: Event, r: np.random.Generator) -> Event:
    """The same release with more of whatever makes it costlier beside its noise."""
    factor = float(r.uniform(1.1, 2))
    match event:
        case PoissonSampled(sampling_probability=q) | TruncatedPoissonSampled(sampling_probability=q):
            return replace(event, sampling_probability=min(1.0, q * factor))
        case FixedSizeSampled(cohort_size=m, population=n):
            return replace(event, cohort_size=min(n, m + 1 + m // 3))
        case BallsInBins(bins=b, rounds=n):
            return replace(event, rounds=n + b)
        case accounting.TreeAggregation(rounds=leaves):
            return replace(event, rounds=leaves * 2)
        case accounting.MixtureOfGaussians(sensitivities=norms):
            return replace(event, sensitivities=tuple(norm * factor for norm in norms))
        case accounting.DiscreteGaussianShares():
            # C over σ.
            return more_noise(event, 1 / factor)
        case Gaussian(z):
            return Gaussian(z / factor)


def event_of(r: np.random.Generator) -> Event:
    z, q, population = noise_of(r) * 2, float(10 ** r.uniform(-3, -0.1)), int(r.integers(50, 5000))
    kinds: tuple[Callable[[], Event], ...] = (
        lambda: Gaussian(z),
        lambda: PoissonSampled(z, q),
        lambda: FixedSizeSampled(z, max(1, int(q * population)), population),
        lambda: TruncatedPoissonSampled(z, q, max(1, int(2 * q * population)), population),
        lambda: accounting.TreeAggregation(z, int(r.integers(1, 300))),
        lambda: accounting.DiscreteGaussianShares(z, 3, 2000, 10**6),
        lambda: BallsInBins(z * 3, int(r.integers(1, 9)), int(r.integers(9, 30))),
    )
    return kinds[int(r.choice(len(kinds), p=(0.16, 0.26, 0.16, 0.16, 0.13, 0.1, 0.03)))]()


@pytest.mark.parametrize(("points", "seed"), sized((15, 3), None, (3500, 5)))
def test_acc_1_epsilon_is_monotone_in_all_arguments_of_every_event(points: int, seed: int) -> None:
    r, found = np.random.default_rng(seed), list[str]()
    for _ in range(points):
        event, relation, delta = event_of(r), relation_of(r), delta_of(r)
        rounds = 1 if isinstance(event, BallsInBins) else int(10 ** r.uniform(0, 2.5))

        def epsilon(
            event: Event, rounds: int = rounds, delta: float = delta, relation: str = relation, accountant: str = "tight"
        ) -> float:
            return accounting.epsilon([(event, rounds)], delta, relation, accountant=accountant)

        here = epsilon(event)
        # Bins are known to a few thousandths of their delta.
        off = slack(here) + (3e-3 * here if isinstance(event, BallsInBins) else 0.0)
        noisier = more_noise(event, float(r.uniform(1.05, 2)))
        less = {"more noise": epsilon(noisier), "a larger delta": epsilon(event, delta=min(0.5, 3 * delta))}
        more = {
            "more rounds": epsilon(event, rounds=rounds + 1 + rounds // 4),
            "a costlier round": epsilon(costlier(event, r)),
            "replacing in place of emptying": epsilon(event, relation="replace-one") if relation == "zero-out" else here,
        }
        if not isinstance(event, BallsInBins):
            more["divergences alone"] = epsilon(event, accountant="rdp")
        found += [f"{event}, {rounds}, {delta}, {relation}: {why}" for why, cost in less.items() if cost > here + off]
        found += [f"{event}, {rounds}, {delta}, {relation}: {why}" for why, cost in more.items() if cost < here - off]
        near = isinstance(event, Gaussian | PoissonSampled | FixedSizeSampled | accounting.TreeAggregation) and delta > 1e-12
        if near and 0 < here < math.inf and accounting.delta([(event, rounds)], here + off, relation) > delta * 1.01:
            found.append(f"{event}, {rounds}, {delta}, {relation}: delta at that epsilon")
    assert found == []


@pytest.mark.parametrize(("points", "seed"), sized((8, 4), (30, 4), (1500, 6)))
def test_acc_1_epsilon_is_monotone_in_all_arguments_of_every_mechanism(points: int, seed: int) -> None:
    r, found = np.random.default_rng(seed), list[str]()
    for _ in range(points):
        rounds, delta = int(r.integers(2, 40)), delta_of(r)
        b, k = int(r.integers(1, rounds)), int(r.integers(1, rounds))
        strategy = (
            Identity(rounds),
            toeplitz.square_root(rounds, int(r.integers(1, rounds + 1))),
            BinaryTree(rounds),
            blt.BufferedLinearToeplitz(rounds, (0.5, 0.1), (0.9, 0.3)),
        )[int(r.integers(4))]
        z = noise_of(r)
        # In each pair the second allows all that the first does, or more.
        q = float(10 ** r.uniform(-2, -0.4))
        pairs: list[tuple[Strategy, parts.Participation, parts.Participation]] = [
            (strategy, parts.MinSeparation(b, k), parts.MinSeparation(b, k + 1)),
            (strategy, parts.MinSeparation(b + 1, k), parts.MinSeparation(b, k)),
            (strategy, parts.SingleParticipation(), parts.MinSeparation(b, k)),
            (strategy, parts.FixedEpochs(1, rounds), parts.FixedEpochs(math.ceil(rounds / b), b)),
            (Identity(rounds), parts.PoissonSampling(q), parts.PoissonSampling(2 * q)),
            (Identity(rounds), parts.FixedSizeSampling(5, 100), parts.FixedSizeSampling(9, 100)),
            (Identity(rounds), parts.TruncatedPoissonSampling(q, 40, 90), parts.TruncatedPoissonSampling(2 * q, 40, 90)),
            (toeplitz.square_root(rounds, min(b, 4)), parts.CyclicPoissonSampling(q, 4), parts.CyclicPoissonSampling(2 * q, 4)),
            (Identity(rounds), parts.BallsInBinsSampling(7), parts.BallsInBinsSampling(3)),
        ]
        made, one, other = pairs[int(r.choice(len(pairs), p=(0.15, 0.15, 0.12, 0.13, 0.14, 0.1, 0.1, 0.09, 0.02)))]
        relation = "zero-out"

        def epsilon(
            pattern: parts.Participation,
            z: float = z,
            rounds: int = rounds,
            made: Strategy = made,
            delta: float = delta,
            relation: str = relation,
        ) -> float:
            return accounting.guarantee(Mechanism(made, pattern, z), delta, relation, rounds=rounds).epsilon

        here = epsilon(one)
        off = slack(here) + (3e-3 * here if isinstance(one, parts.BallsInBinsSampling) else 0.0)
        laws = {
            "a wider pattern": epsilon(other) >= here - off,
            "more noise": epsilon(one, z=1.3 * z) <= here + off,
            "fewer rounds": epsilon(one, rounds=rounds - 1) <= here + off,
            "a larger delta": epsilon(one, delta=min(0.5, 3 * delta)) <= here + off,
            "replacing": epsilon(one, relation="replace-one") >= here - off,
        }
        found += [f"{made!r}, {one}, {other}, {z}, {delta}: {law}" for law, holds in laws.items() if not holds]
    assert found == []


def test_acc_1_less_noise_for_the_updates_beside_a_quieter_count_costs_the_same_and_never_less() -> None:
    r = np.random.default_rng(8)
    for _ in range(300):
        z, factor = noise_of(r), float(r.uniform(0.6, 10))
        parts = [AdaptiveClipping(clip_count_stddev=z * f).split(z, 100.0) for f in (factor, 1.2 * factor)]
        # A louder count leaves the updates a smaller multiplier; the whole is never below z.
        assert parts[1].update_multiplier <= parts[0].update_multiplier
        assert all(p.update_multiplier**-2 + (2 * p.count_stddev) ** -2 <= z**-2 * (1 + 1e-14) for p in parts)
        assert accounting.split_noise_multiplier(z, z * factor) <= accounting.split_noise_multiplier(1.1 * z, z * factor)


def anything(r: np.random.Generator) -> Event:
    """Any event, from no noise at all to a thousand clip norms, from one unit in a billion to all of them."""
    z, q = float(10 ** r.uniform(-6, 3)), min(1.0, float(10 ** r.uniform(-9, 0.3)))
    if r.random() < 0.4:
        # Where it is decided how a loss is composed.
        z, q = float(10 ** r.uniform(-2.3, -0.5)), float(r.uniform(0.01, 1))
    population, rounds = int(10 ** r.uniform(0, 9)), int(10 ** r.uniform(0, 6))
    size = min(population, max(1, round(q * population)))
    kinds: tuple[Callable[[], Event], ...] = (
        lambda: Gaussian(z),
        lambda: PoissonSampled(z, q),
        lambda: FixedSizeSampled(z, size, population),
        lambda: TruncatedPoissonSampled(z, q, max(1, int(10 ** r.uniform(-1, 1) * size)), population),
        lambda: BallsInBins(z, min(rounds, max(1, round(1 / q))), rounds),
        lambda: accounting.TreeAggregation(z, rounds, int(10 ** r.uniform(0, 1.5)), int(10 ** r.uniform(0, 3))),
        lambda: accounting.MixtureOfGaussians(z, (0.0, float(r.uniform(0, 1)), 1.0), (1 - q / 2, q / 4, q / 4)),
        lambda: accounting.DiscreteGaussianShares(z, *(int(10 ** r.uniform(0, most)) for most in (4, 6, 7))),
    )
    return kinds[int(r.choice(len(kinds), p=(0.03, 0.25, 0.2, 0.2, 0.05, 0.05, 0.15, 0.07)))]()


def precision(event: Event, epsilon: float, delta: float) -> float:
    """How far an answer may lie above the truth, twice: what the accountant states, and what events are known to."""
    # There the tilted law can have two modes, of no round joined and of one, and no tilt resolves what lies between them.
    off = slack(epsilon) + (0.5 * epsilon if delta < 1e-100 else 0.0)
    match event:
        case BallsInBins():
            # A few thousandths of its delta.
            return off + 3e-3 * epsilon
        case TruncatedPoissonSampled(z, q, _, population):
            # Sizes of the cohort are put into ranges, of 11 deviations at most, that count as their costliest.
            ranges = 24 if z >= 0.01 else 8
            return off + epsilon * 11 / ranges * math.sqrt((1 - q) / (q * population) + 1 / (q * population) ** 2)
        case _:
            return off


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("points", "seed"), sized((6, 14), None, *((200, seed) for seed in range(4))))
def test_every_event_has_an_epsilon_and_a_delta_from_no_noise_to_a_thousandfold(points: int, seed: int) -> None:
    """Nor does it grow with noise or delta, or fall with rounds or sampling."""
    r, found = np.random.default_rng(seed), list[str]()
    for _ in range(points):
        event, relation, rounds = anything(r), relation_of(r), int(10 ** r.uniform(0, 6))
        delta = float(10 ** r.choice([r.uniform(-300, -0.31), r.uniform(-12, -0.31)]))
        factor = 1 + float(10 ** r.uniform(-2, 0.5))
        what = f"{event}, {rounds}, {delta}, {relation}, {factor}"

        def epsilon(event: Event = event, rounds: int = rounds, delta: float = delta, relation: str = relation) -> float:
            return accounting.epsilon([(event, rounds)], delta, relation)

        try:
            here = epsilon()
            less = {"more noise": epsilon(more_noise(event, factor)), "a larger delta": epsilon(delta=min(0.5, delta * factor))}
            more = {"more rounds": epsilon(rounds=math.ceil(rounds * factor)), "a costlier round": epsilon(costlier(event, r))}
            shown = accounting.delta([(event, rounds)], here, relation) if math.isfinite(here) else 0.0
        except Exception as error:  # noqa: BLE001
            found.append(f"{what}: {error!r}")
            continue
        off = precision(event, here, delta) if math.isfinite(here) else 0.0
        found += [f"{what}: {here!r}, with {why} {cost!r}" for why, cost in less.items() if not cost <= here + off]
        found += [f"{what}: {here!r}, with {why} {cost!r}" for why, cost in more.items() if not cost >= here - off]
        if not 0 <= shown <= 1 or (math.isinf(here) and not isinstance(event, accounting.DiscreteGaussianShares)):
            found.append(f"{what}: epsilon {here!r}, delta at it {shown!r}")
    assert found == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("relation", ["zero-out", "add-or-remove-one"])
def test_a_loss_that_is_flat_over_most_of_its_mass_has_an_epsilon_near_the_truth(relation: str) -> None:
    z, q, delta = 0.01, 0.25, 1e-5
    for rounds in (10, 100, 10_000, 100_000):
        stated = accounting.epsilon([(PoissonSampled(z, q), rounds)], delta, relation)
        # With so little noise the rounds that were joined are seen: each costs a Gaussian, but for ln 1/q.
        joined = np.arange(rounds + 1)
        weights = binom.pmf(joined, rounds, q)

        mean = joined * (1 / (2 * z * z) + math.log(q)) + (rounds - joined) * math.log1p(-q)

        def beyond(
            epsilon: float, mean: np.ndarray = mean, joined: np.ndarray = joined, weights: np.ndarray = weights
        ) -> float:
            return float(weights @ ndtr((mean - epsilon) * z / np.sqrt(np.maximum(joined, 1e-9))))

        # δ(ε) is at most P(L > ε), and at least (1 − e⁻⁹)·P(L > ε + 9).
        least = brentq(lambda eps: beyond(eps + 9) - delta * 1.001, 0, 1e10)
        most = brentq(lambda eps: beyond(eps) - delta, 0, 1e10)
        # The mesh is as fine as memory allows.
        assert least <= stated <= most * (1 + 1e-3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("z", "q", "part", "rounds", "delta", "relation"),
    [
        (1.5533726689870168e-06, 2.2766295542e-05, 0.8303037012386367, 18354, 1.2416463485505808e-07, "add-or-remove-one"),
        (1.4846228307281893e-05, 1.12798367e-08, 0.18680136556965632, 73862, 5.2466335200863e-07, "replace-one"),
        (5.600812884259785e-06, 0.00096059454788, 0.16383503338655547, 457364, 2.937378918580683e-193, "add-or-remove-one"),
    ],
)
def test_mixtures_of_hardly_any_noise_have_an_epsilon_however_steep_the_tilt(
    z: float, q: float, part: float, rounds: int, delta: float, relation: str
) -> None:
    def epsilon(z: float) -> float:
        event = accounting.MixtureOfGaussians(z, (0.0, part, 1.0), (1 - q, q / 2, q / 2))
        return accounting.epsilon([(event, rounds)], delta, relation)

    most = [accounting.epsilon([(Gaussian(z * f), rounds)], delta, relation) for f in (1, 1.1, 2, 4)]
    found = [epsilon(z * f) for f in (1, 1.1, 2, 4)]
    assert found == sorted(found, reverse=True)
    assert all(0 < one <= bound for one, bound in zip(found, most, strict=True))


@pytest.mark.filterwarnings("error")
def test_far_below_what_releases_cost_delta_is_one() -> None:
    mixture = accounting.MixtureOfGaussians(0.0076, (0.0, 0.2), (0.73, 0.27))
    for event in (mixture, PoissonSampled(0.01, 0.25), BallsInBins(0.01, 3, 30)):
        assert accounting.delta([(event, 1889)], 1.4, "add-or-remove-one") == 1.0


@pytest.mark.parametrize(
    ("others", "q", "most"), [(89_376_418, 1.3946333720532166e-9, 1), (737_216_561, 0.46916524238391966, 345_876_228)]
)
def test_the_chances_of_a_cohorts_size_are_right_for_hundreds_of_millions(others: int, q: float, most: int) -> None:
    found, _ = directions(TruncatedPoissonSampled(1.0, q, most, others + 1), "add-or-remove-one")
    # The first law is that of a cohort that is not cut: fewer than ``most`` others, by a sum over its likely sizes.
    likely = np.arange(most - 1, max(-1, most - 1 - 200_000), -1)
    ratios = likely[:-1] * (1 - q) / ((others - likely[1:]) * q)
    top = mp.binomial(others, most - 1) * mp.mpf(q) ** (most - 1) * (1 - mp.mpf(q)) ** (others - most + 1)
    true = float(top) * float(1 + np.cumprod(ratios).sum())
    assert true <= found.weights[0] <= true * (1 + 1e-8) + 1e-13
    assert 1 <= math.fsum(found.weights) <= 1 + 1e-8


@pytest.mark.parametrize(("targets", "seed"), sized((6, 9), (12, 9), (500, 10)))
def test_acc_3_what_was_calibrated_costs_at_most_its_target(targets: int, seed: int) -> None:
    r, found = np.random.default_rng(seed), list[str]()
    for i in range(targets):
        target, delta = float(10 ** r.uniform(-1.5, 1.3)), float(10 ** r.uniform(-10, -2))
        if i % 2:
            rounds = int(r.integers(2, 30))
            strategy, pattern = strategy_of(r, rounds), pattern_of(r, min(rounds, 9))
            relation = ("zero-out", "replace-one")[int(r.integers(2))]
            if isinstance(pattern, parts.FixedEpochs):
                pattern = parts.MinSeparation(pattern.rounds_per_epoch, pattern.epochs)
            mechanism = accounting.calibrate(strategy, pattern, epsilon=target, delta=delta, neighboring_relation=relation)
            spent, made = accounting.guarantee(mechanism, delta, relation).epsilon, repr(mechanism)
        else:
            event, relation = event_of(r), relation_of(r)
            if isinstance(event, BallsInBins | accounting.DiscreteGaussianShares):
                event = PoissonSampled(1.0, 0.05)
            rounds = int(10 ** r.uniform(0, 2.5))
            z = accounting.calibrate_noise_multiplier(event, rounds, target, delta, relation)
            quiet = replace(event, noise_multiplier=z)
            spent, made = accounting.epsilon([(quiet, rounds)], delta, relation), f"{quiet}, {rounds}"
        if not spent <= target:
            found.append(f"{made}: {spent!r} at {delta!r} exceeds {target!r}")
    assert found == []


def test_acc_4_halves_compose_to_the_whole_and_their_order_does_not_matter() -> None:
    r = np.random.default_rng(11)
    for _ in range(10):
        parts: list[tuple[Event, int]] = [
            (Gaussian(noise_of(r) * 5), int(r.integers(1, 50))),
            (PoissonSampled(noise_of(r), float(10 ** r.uniform(-3, -0.5))), int(r.integers(2, 200))),
            (FixedSizeSampled(noise_of(r) * 2, 5, 100), int(r.integers(2, 50))),
        ][: int(r.integers(1, 4))]
        delta, relation = delta_of(r), relation_of(r)
        whole = accounting.epsilon(parts, delta, relation)
        halves = [(event, part) for event, n in parts for part in (n // 2, n - n // 2) if part]
        shuffled = [halves[i] for i in r.permutation(len(halves))]
        for other in (halves, halves[::-1], shuffled):
            assert accounting.epsilon(other, delta, relation) == pytest.approx(whole, rel=1e-9, abs=1e-9)
            assert accounting.delta(other, whole, relation) == pytest.approx(accounting.delta(parts, whole, relation), rel=1e-9)
        divergences = [accounting.epsilon(each, delta, relation, accountant="rdp") for each in (shuffled, parts)]
        assert divergences[0] == pytest.approx(divergences[1], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_acc_5_a_matrix_that_is_the_identity_costs_what_independent_noise_costs(relation: str) -> None:
    rounds, z, delta = 12, 1.7, 1e-6
    plain = [toeplitz.BandedToeplitz(rounds, (1.0,)), Dense(np.eye(rounds)), Dense(3.5 * np.eye(rounds)), Identity(rounds)]
    for k, b in ((1, 1), (3, 4), (12, 1)):
        # DP-SGD without amplification: each of a client's k rounds is a Gaussian of multiplier z.
        exact = gaussian.epsilon(delta, z / doubled(relation) / math.sqrt(k))
        composed = accounting.epsilon([(Gaussian(z), k)], delta, relation)
        for strategy in plain:
            stated = accounting.guarantee(Mechanism(strategy, parts.MinSeparation(b, k), z), delta, relation).epsilon
            assert stated == pytest.approx(exact, rel=1e-9)
            assert composed == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    "strategy", [toeplitz.square_root(12, 5), BinaryTree(12), Dense(np.tril(np.ones((12, 12))))], ids=lambda s: type(s).__name__
)
def test_acc_5_one_participation_is_one_gaussian_of_the_largest_column(strategy: Strategy) -> None:
    for z in (0.5, 2.0, 9.0):
        mechanism = Mechanism(strategy, parts.SingleParticipation(), z)
        largest = float(np.linalg.norm(strategy.matrix(), axis=0).max())
        assert mechanism.stddev == pytest.approx(z * largest, rel=1e-12)
        assert accounting.guarantee(mechanism, 1e-7).epsilon == pytest.approx(gaussian.epsilon(1e-7, z), rel=1e-9)


@pytest.mark.parametrize(("matrices", "seed"), sized((40, 12), None, (1000, 13)))
def test_acc_6_no_sensitivity_is_below_brute_force_over_every_pattern(matrices: int, seed: int) -> None:
    r, found = np.random.default_rng(seed), list[str]()
    for _ in range(matrices):
        n = int(r.integers(1, 13))
        # Negative entries, holes, columns of any length; triangular, banded, or neither.
        C = r.normal(size=(n, n)) * np.exp(r.normal(size=n)) * (r.random((n, n)) < r.uniform(0.3, 1))
        shape = int(r.integers(3))
        if shape < 2:
            C = np.tril(C) if shape else np.triu(np.tril(C), -int(r.integers(0, n)))
        C += np.diag(np.where(np.diag(C) < 0, -1.0, 1.0))
        b, k = int(r.integers(1, n + 1)), int(r.integers(1, n + 1))
        k = min(k, 6)
        epochs = parts.FixedEpochs(max(1, min(k, math.ceil(n / b))), b)
        for pattern in (parts.SingleParticipation(), parts.MinSeparation(b, k), epochs):
            truth = brute_force_sensitivity(C, pattern)
            # Through the mechanism too, which believes no strategy that is not ours.
            mechanism = Mechanism(Foreign(C, stated=1e-3), pattern, 1.0)
            for stated in (of_matrix(C, pattern), mechanism.sensitivity):
                if stated.value < truth * (1 - 1e-12):
                    found.append(f"{pattern} of {C.tolist()}: {stated.value!r} is stated, {truth!r} is true")
                if stated.exact and not math.isclose(stated.value, truth, rel_tol=1e-9):
                    found.append(f"{pattern} of {C.tolist()}: {stated.value!r} is called exact, {truth!r} is")
    assert found == []


def test_acc_8_no_pattern_is_amplified_and_no_amplification_is_stated_without_its_coins() -> None:
    for rounds, z in ((8, 1.0), (20, 3.0)):
        for pattern in (parts.MinSeparation(2, 3), parts.SingleParticipation(), parts.FixedEpochs(4, 2)):
            stated = accounting.guarantee(Mechanism(Identity(rounds), pattern, z), 1e-6)
            assert not stated.amplified
            assert stated.epsilon == stated.unamplified_epsilon
            k = {parts.MinSeparation: 3, parts.SingleParticipation: 1, parts.FixedEpochs: 4}[type(pattern)]
            assert stated.epsilon >= gaussian.epsilon(1e-6, z / math.sqrt(k)) * (1 - 1e-12)
        # Noise that is correlated over the rounds of a coin is amplified by no theorem here.
        for sampling in (parts.PoissonSampling(0.1), parts.FixedSizeSampling(1, 10), parts.BallsInBinsSampling(4)):
            with pytest.raises(ConfigError, match=r"independent noise only|no theorem"):
                accounting.guarantee(Mechanism(toeplitz.square_root(rounds, 3), sampling, z), 1e-6)
