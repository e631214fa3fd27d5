"""The audit of a run: its rounds are run again with new noise and with canaries among its clients.

The releases give two kinds of evidence.

* Bounds: can an adversary distinguish present from absent canaries better than the stated epsilon allows?
* Tests: without the contributions of the clients, is the rest the promised noise?

If participation follows a pattern, each canary has a whitened score, and the bounds are compared with the stated epsilon. If
cohorts are random, the stated epsilon is compared with a bound from scores that do not know the cohorts; whitened scores are
compared with the epsilon without amplification.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.special import logsumexp
from torch import nn

from hubbub._util.checks import Array, plain_numbers, positive_integer
from hubbub.accounting.composition import delta
from hubbub.accounting.statement import rounded_up
from hubbub.audit.bounds import EveryThreshold, best_merit, clopper_pearson_epsilon, gdp_epsilon, significance
from hubbub.audit.one_run import count_guesses, one_run_epsilon
from hubbub.audit.verdict import CERTAIN, Audit, Comparison, compared
from hubbub.audit.watching import Watched, plant, watch
from hubbub.audit.whitening import Check, check_noise, check_whitened_scores, mean_outside, present_means, whitened_scores
from hubbub.errors import ConfigError
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    FixedSizeSampling,
    PoissonSampling,
    RandomParticipation,
    TruncatedPoissonSampling,
)
from hubbub.mechanism.sensitivity import is_triangular
from hubbub.mechanism.strategies import OWN, Strategy
from hubbub.mechanism.strategies.strategy import WithLeadingPart
from hubbub.mechanism.utility import noising_matrix
from hubbub.training.aggregate import Population
from hubbub.training.clipping import AdaptiveClipping
from hubbub.training.plan import RunPlan
from hubbub.training.simulation.functional import FlatModel

_MOST_CANARIES, _ENOUGH, _MOST_RUNS = 100, 1000, 10
# Points of the privacy profile that bound the stated trade-off curve.
_POINTS = 9
# Of epsilon in that profile, whose exponential float64 holds.
_STEEPEST = 700.0
# Canaries compete for places in a cohort.
_COMPETING = (FixedSizeSampling, TruncatedPoissonSampling)
# Of the noise, in clip norms: with less its steps show, of 2^-24 each.
_LEAST_STDDEV = 2.0**-20
# Least coordinates of a canary, by default.
_LEAST_BLOCK = 4
# Shares of the canaries that the one-run bound guesses on either side; chosen before any score is seen.
_GUESSED = (0.02, 0.05, 0.1, 0.25)


@dataclass(frozen=True)
class Effort:
    """The size of an audit.

    Args:
        canaries: Canaries in each run; by default half of the clients, at most 100, fewer for a very small model.
        runs: Number of runs; by default as many as 1,000 canaries take, from 2 to 10.
        rounds: Rounds of each run; by default all.

    Raises:
        ValueError: A number below 1.

    Example:
        >>> from hubbub.mechanism.participation import PoissonSampling
        >>> Effort(runs=3).settled(RunPlan(6, PoissonSampling(0.5), 10.0), clients=40, dim=5000)
        (20, 3, 6)
    """

    canaries: int | None = None
    runs: int | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        plain_numbers(self, canaries=positive_integer, runs=positive_integer, rounds=positive_integer)

    def settled(self, plan: RunPlan, clients: int, dim: int) -> tuple[int, int, int]:
        """The numbers of canaries, runs and rounds for a run.

        Args:
            plan: Of the run.
            clients: How many it has.
            dim: How many parameters its model has; each canary needs one of its own.

        Raises:
            ValueError: More canaries than clients or parameters, or more rounds than the run has.
        """
        usual = max(1, min(_MOST_CANARIES, clients // 2, dim // _LEAST_BLOCK))
        canaries = usual if self.canaries is None else self.canaries
        if canaries > min(clients, dim):
            most = "clients in the run" if clients <= dim else "parameters of the model, and each canary needs one of its own"
            raise ValueError(f"canaries = {canaries}: must be at most {min(clients, dim)}, the {most}")
        rounds = plan.rounds if self.rounds is None else self.rounds
        if rounds > plan.rounds:
            raise ValueError(f"rounds = {rounds}: must be at most {plan.rounds}, the rounds of the run; see training.rounds")
        runs = min(_MOST_RUNS, max(2, -(-_ENOUGH // canaries))) if self.runs is None else self.runs
        return canaries, runs, rounds


def audit(
    plan: RunPlan,
    population: Callable[[int], Population],
    model: nn.Module,
    *,
    honest: Population,
    effort: Effort = Effort(),
    noise_rows: int = 1,
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """The findings of an audit: canaries among the clients, the real loop over the real population.

    The run itself is not touched: ledgers are in memory, noise and cohorts have new keys in each run.

    Args:
        plan: The plan of the run.
        population: The clients, by the number of the audit's run; the same or a new population each time.
        model: The initial model; not changed.
        honest: The same clients with sums in the clear, to subtract the contributions of all but the canaries.
        effort: The size of the audit.
        noise_rows: Rows of noise in each sum; several if each key holder adds one.
        seed: Draws the canaries, their directions and their presence; by default random.
        progress: Called after each run with the number of finished runs and of all runs.

    Returns:
        The findings. A lower bound far below the stated epsilon proves nothing.

    Raises:
        ConfigError: The run promises nothing, or noise near a step of the lattice; its cohorts are divided among ranks; no
            canary was ever sampled, or a round was aborted.
        ValueError: More canaries than clients, or more rounds than the run has.

    Example:
        >>> import torch, hubbub
        >>> generator = torch.Generator().manual_seed(0)
        >>> data = [(torch.randn(2, 20, generator=generator), torch.zeros(2, dtype=torch.long)) for _ in range(20)]
        >>> clients = hubbub.SimulatedPopulation(data, nn.functional.cross_entropy)
        >>> mechanism = hubbub.calibrate(rounds=4, participation=hubbub.MinSeparation(2, 2), epsilon=8.0, delta=1e-5)
        >>> plan = RunPlan(4, mechanism.participation, 5, mechanism, clip_norm=1.0, delta=1e-5)
        >>> found = audit(plan, lambda _: clients, nn.Linear(20, 10), honest=clients, effort=Effort(canaries=8, runs=2), seed=1)
        >>> found.holds, found.runs, len(found.present) + len(found.absent) <= 16
        (True, 2, True)
    """
    if plan.mechanism is None:
        raise ConfigError("privacy.mode = 'none': this run promises nothing, so there is nothing to audit")
    if plan.mechanism.stddev < _LEAST_STDDEV:
        raise ConfigError(
            f"noise_multiplier = {plan.mechanism.noise_multiplier!r}: its noise is near a step of the lattice or below, and "
            "the tests are of Gaussian noise; audit a run with more noise"
        )
    first = population(0)
    if first.ranks.size > 1:
        raise ConfigError(f"population: divides its cohorts among {first.ranks.size} ranks; audit one of a single process")
    clients, dim = list(first.clients), FlatModel(model).dim
    canaries, runs, rounds = effort.settled(plan, len(clients), dim)
    audited = replace(plan, rounds=rounds, earlier=(), noise="secure")
    rng = np.random.default_rng(seed)
    clipping = plan.clip_norm
    unclipped = clipping.target_quantile if isinstance(clipping, AdaptiveClipping) else 0.0
    absent = -1.0 if audited.promised.neighboring_relation == "replace-one" else 0.0
    whitener = _whitener(plan.mechanism.strategy, rounds)
    seen = []
    for number in range(runs):
        planted = plant(clients, dim, rounds, canaries=canaries, unclipped=unclipped, rng=rng)
        made = first if number == 0 else population(number)
        seen.append(watch(audited, made, honest, model, planted, absent=absent, rows=max(1, noise_rows)))
        if progress:
            progress(number + 1, runs)
    return _Evidence(audited, plan.mechanism, whitener, seen, absent).found(canaries)


def _whitener(strategy: Strategy, rounds: int) -> Array:
    """What decorrelates the noise of the first rounds, ``(rounds, rounds)``: C if it is triangular."""
    if type(strategy) in OWN and isinstance(strategy, WithLeadingPart):
        strategy = strategy.leading(rounds)
    C = np.asarray(strategy.matrix(), dtype=np.float64)
    if is_triangular(C):
        return C[:rounds, :rounds]
    # C⁻¹ is not unique, the triangular root of the noise's covariance is.
    N = noising_matrix(strategy)[:rounds]
    return np.asarray(solve_triangular(cholesky(N @ N.T, lower=True), np.eye(rounds), lower=True))


class _Evidence:
    """The observations of all runs, and their evaluation."""

    def __init__(self, plan: RunPlan, mechanism: Mechanism, whitener: Array, seen: Sequence[Watched], absent: float) -> None:
        self._plan, self._mechanism, self._whitener, self._seen = plan, mechanism, whitener, seen
        self._reach, self._stated = 1 - absent, plan.promised

    def found(self, canaries: int) -> Audit:
        """The audit."""
        scores = [self._scored(one) for one in self._seen]
        present, absent, means = (np.concatenate([one[i] for one in scores]) for i in range(3))
        if not (present.size and absent.size):
            raise ConfigError(
                f"canaries = {canaries}: of those that were sampled {present.size} were present and {absent.size} absent, "
                "and an audit needs both; take more canaries, runs or rounds"
            )
        participation = self._plan.participation
        # Those of an adversary who does not know the cohorts, if they are secret.
        blind = self._likelihoods(participation) if isinstance(participation, RandomParticipation) else (present, absent)
        return Audit(
            stated=self._stated,
            comparisons=self._comparisons((present, absent), blind),
            checks=(*self._checks(present, absent, means), *self._curve(*blind)),
            present=present,
            absent=absent,
            means=means,
            canaries=canaries,
            runs=len(self._seen),
            rounds=self._plan.rounds,
            notes=self._notes(*blind),
        )

    def _scored(self, one: Watched) -> tuple[Array, Array, Array]:
        """Whitened scores of the sampled canaries, present and absent, and the means of the present."""
        asked, stddev = one.patterns.any(axis=1), self._mechanism.stddev
        if not asked.any():
            return np.zeros(0), np.zeros(0), np.zeros(0)
        patterns, here = one.patterns[asked], one.canaries.present[asked]
        unit = np.eye(len(patterns))
        scores = whitened_scores(self._whitener, one.along[:, asked], patterns, unit, stddev=stddev)
        means = present_means(self._whitener, patterns, unit, stddev=stddev)
        return scores[here], scores[~here], means[here]

    def _comparisons(self, known: tuple[Array, Array], blind: tuple[Array, Array]) -> tuple[Comparison, ...]:
        participation, stated = self._plan.participation, self._stated
        gaussian = partial(gdp_epsilon, *known, delta=stated.delta)
        free = partial(clopper_pearson_epsilon, *blind, delta=stated.delta)
        if isinstance(participation, _COMPETING):
            # Canaries displace one another in a cohort: their scores are dependent.
            total = blind[0].size + blind[1].size
            sides = sorted({max(1, int(part * total)) for part in _GUESSED if 2 * max(1, int(part * total)) <= total})
            counts = [count_guesses(*blind, highest=side, lowest=side) for side in sides]
            free = partial(one_run_epsilon, counts, delta=stated.delta)
        if not isinstance(participation, RandomParticipation):
            return compared("distribution-free", stated.epsilon, free), compared("Gaussian", stated.epsilon, gaussian)
        return (
            compared("distribution-free, cohorts secret", stated.epsilon, free),
            compared("Gaussian, cohorts known: without amplification", stated.unamplified_epsilon, gaussian),
        )

    def _likelihoods(self, participation: RandomParticipation) -> tuple[Array, Array]:
        """Scores that do not know the cohorts, of all present and absent canaries."""
        first = self._plan.clip_norms.first
        largest = 1.0 if first is None else first / self._plan.clip_norms.bound(first)
        parts = self._whitener * (self._reach * largest / self._mechanism.stddev)
        scores = np.concatenate([likelihood_scores(self._whitened(one), parts, participation) for one in self._seen])
        present = np.concatenate([one.canaries.present for one in self._seen])
        return scores[present], scores[~present]

    def _whitened(self, one: Watched) -> Array:
        return np.asarray(self._whitener @ one.along / self._mechanism.stddev)

    def _checks(self, present: Array, absent: Array, means: Array) -> tuple[Check, ...]:
        # The claimed μ without amplification: the largest influence of a client on all releases, in standard deviations.
        sensitivity = min(self._mechanism.sensitivity_after(self._plan.rounds).value, self._mechanism.l2_sensitivity)
        mu, largest = self._reach * sensitivity / self._mechanism.stddev, float(means.max())
        noise = [self._whitener @ one.noise / self._mechanism.stddev for one in self._seen]
        outside = np.concatenate([self._outside(one) for one in self._seen])
        return (
            Check("clients that break the participation pattern", float(self._breaches()), 0.0, 0.0, 0.0),
            Check("largest mu of a canary's rounds", largest, 0.0, mu * (1 + 1e-9), 0.0),
            *check_whitened_scores(absent, present, means, mu=max(mu, largest)),
            *([mean_outside(outside)] if outside.size else []),
            *check_noise(noise),
        )

    def _curve(self, here: Array, gone: Array) -> tuple[Check, ...]:
        """The largest excess of a threshold over the stated trade-off curve, for random cohorts."""
        participation = self._plan.participation
        if not isinstance(participation, RandomParticipation) or isinstance(participation, _COMPETING):
            return ()
        events, relation = self._stated.events or (), self._stated.neighboring_relation
        epsilons = np.linspace(0.0, min(self._stated.epsilon, _STEEPEST), _POINTS)
        kept = 1 - np.array([delta(events, float(epsilon), relation) for epsilon in epsilons])[:, None]
        steep = np.exp(epsilons)[:, None]

        def excess(false_positives: Array, false_negatives: Array) -> Array:
            # Every (epsilon, delta) of the profile bounds the errors of all tests from below, by two lines.
            allowed = np.maximum(kept - steep * false_positives, (kept - false_positives) / steep).max(axis=0)
            return np.asarray(allowed - false_negatives)

        worst = best_merit(here, gone, significance(CERTAIN), EveryThreshold(), excess)
        return (Check("excess over the stated trade-off curve", worst, -math.inf, 0.0, 1 - CERTAIN),)

    def _outside(self, one: Watched) -> Array:
        """N(0, 1) scores of present canaries in the rounds without them."""
        here = one.canaries.present
        patterns, whitened = one.patterns[here], self._whitened(one)[:, here]
        rest = whitened - self._whitener @ patterns.T / self._mechanism.stddev
        idle = self._whitener @ (patterns == 0).T.astype(np.float64)
        lengths = np.linalg.norm(idle, axis=0)
        return np.asarray((rest * idle).sum(axis=0)[lengths > 0] / lengths[lengths > 0])

    def _breaches(self) -> int:
        """The number of clients, canaries or not, in rounds that the pattern does not allow."""
        rounds: dict[tuple[int, str], list[int]] = {}
        for number, one in enumerate(self._seen):
            for t, cohort in enumerate(one.cohorts):
                for client in cohort:
                    rounds.setdefault((number, str(client)), []).append(t)
        return sum(not self._plan.participation.allows(of_one) for of_one in rounds.values())

    def _notes(self, present: Array, absent: Array) -> tuple[str, ...]:
        notes = []
        if isinstance(self._plan.participation, _COMPETING):
            notes.append("Canaries compete for places in a cohort, so the distribution-free bound is the one-run bound.")
        else:
            ones, zeros, at = np.ones(present.size), np.zeros(absent.size), self._stated.delta
            most = clopper_pearson_epsilon(ones, zeros, delta=at, confidence=CERTAIN).epsilon
            if most < self._stated.epsilon:
                notes.append(
                    f"With all {present.size + absent.size:,} canaries distinguished the distribution-free bound would be "
                    f"{rounded_up(most)} at 1 − 10⁻⁶, below the stated epsilon: here that bound cannot fail."
                )
        if self._mechanism.shares is not None:
            notes.append(
                "Each client that answers adds its share of noise, so sums may have had more noise than the guarantee assumes."
            )
        if self._plan.noise_by == "holders":
            notes.append("All key holders are honest here, so sums may have had more noise than the guarantee assumes.")
        return tuple(notes)


def likelihood_scores(whitened: Array, parts: Array, participation: RandomParticipation) -> Array:
    """The log-likelihood ratio of each canary by a test that does not know its rounds, ``(canaries,)``.

    ``whitened`` is y of each canary, ``(rounds, canaries)``; column t of ``parts`` is a_t, ``(rounds, rounds)``.
    """
    rounds = len(parts)
    match participation:
        case PoissonSampling(q) | TruncatedPoissonSampling(sampling_probability=q):
            return _independent(whitened, parts, q)
        case FixedSizeSampling(cohort_size, population):
            return _independent(whitened, parts, cohort_size / population)
        case CyclicPoissonSampling(q, cycle_length):
            groups = [_independent(whitened, parts[:, turn::cycle_length], q) for turn in range(min(cycle_length, rounds))]
            groups += [np.zeros(whitened.shape[1])] * (cycle_length - len(groups))
        case BallsInBinsSampling(bins):
            slots = np.stack([parts[:, turn::bins].sum(axis=1) for turn in range(bins)], axis=1)
            groups = list(_ratios(whitened, slots))
    return np.asarray(logsumexp(np.stack(groups), axis=0) - math.log(len(groups)))


def _ratios(whitened: Array, parts: Array) -> Array:
    """⟨a, y⟩ − ‖a‖²/2 of each part and canary, ``(parts, canaries)``."""
    return np.asarray(parts.T @ whitened - np.square(parts).sum(axis=0)[:, None] / 2)


def _independent(whitened: Array, parts: Array, probability: float) -> Array:
    """The sum over parts of log(1 − q + q·exp(ratio)), ``(canaries,)``."""
    stay = math.log1p(-probability) if probability < 1 else -math.inf
    return np.asarray(np.logaddexp(stay, math.log(probability) + _ratios(whitened, parts)).sum(axis=0))
