"""Contract tests for your own strategies and populations."""

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from hubbub._util.checks import Array
from hubbub.errors import HubbubError
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Pattern, SingleParticipation, every_round
from hubbub.mechanism.sensitivity import is_balanced
from hubbub.mechanism.strategies import Strategy
from hubbub.mechanism.strategies.strategy import memory_rows
from hubbub.mechanism.utility import require_inverse, require_no_look_ahead
from hubbub.training import Population
from hubbub.training.clipping import AdaptiveClipping

__all__ = ["ContractError", "brute_force_sensitivity", "check_population", "check_strategy"]

# Strategies of more rounds are compared with brute force on this many sets of rounds only.
_MOST_SETS = 3000
_MOST_SIGNS = 10


class ContractError(HubbubError, AssertionError):
    """An implementation breaks the contract of its protocol."""


def check_strategy(strategy: Strategy, patterns: Sequence[Pattern] | None = None) -> None:
    """Check that matrix, steps and sensitivity of a strategy agree.

    From unit vectors, its steps must give a noising matrix N with N·C = I. No row may need a later round, and a row past
    the last must be refused. Steps must not carry more rows than ``memory_rows`` states, if the strategy has it. Stated
    sensitivities must not be below brute force, and exact ones not above it where signs decide.

    Args:
        strategy: The strategy; up to about 500 rounds this takes seconds.
        patterns: Participation patterns to check; by default several.

    Raises:
        ContractError: The first property that fails.

    Example:
        >>> from hubbub.mechanism.strategies import Identity
        >>> check_strategy(Identity(rounds=4))
    """
    C = np.asarray(strategy.matrix(), dtype=np.float64)
    if C.ndim != 2 or C.shape[1] != strategy.rounds or not np.isfinite(C).all():
        raise ContractError(f"matrix has shape {C.shape}: must be finite and (rows, rounds = {strategy.rounds})")
    _check_stream(strategy)
    for pattern in patterns if patterns is not None else _patterns(strategy.rounds):
        _check_sensitivity(strategy, C, pattern)


def _check_stream(strategy: Strategy) -> None:
    try:
        require_inverse(strategy)
        require_no_look_ahead(strategy)
    except ValueError as error:
        raise ContractError(str(error)) from error
    drawn: list[int] = []
    memory: tuple[Any, ...] = ()

    def draw(row: int) -> Array:
        drawn.append(row)
        return np.ones(1)

    most, stated = 0, memory_rows(strategy)
    for t in range(strategy.rounds):
        _, memory = strategy.step(t, draw, memory)
        most = max(most, len(memory))
    if stated is not None and stated < most:
        raise ContractError(f"memory_rows = {stated}: its steps carry {most} rows")
    if drawn != sorted(set(drawn)):
        raise ContractError("rows of z are drawn twice or out of order")
    try:
        strategy.step(strategy.rounds, draw, memory)
    except (HubbubError, ValueError):
        return
    raise ContractError(f"round {strategy.rounds} is past the last and gets noise; it must be refused")


def _check_sensitivity(strategy: Strategy, C: Array, pattern: Pattern) -> None:
    stated = strategy.sensitivity(pattern)
    truth = brute_force_sensitivity(C, pattern, most_sets=_MOST_SETS)
    if stated.value < truth * (1 - 1e-9):
        raise ContractError(f"{pattern}: states a sensitivity of {stated.value}, brute force finds {truth}")
    everything = strategy.rounds <= _MOST_SIGNS and not any(itertools.islice(_sets(strategy.rounds, pattern), _MOST_SETS, None))
    X = C.T @ C
    # Else vectors may move further than any signs.
    everything = everything and is_balanced(np.where(np.abs(X) < 1e-12 * X.max(), 0.0, X))
    if stated.exact and everything and stated.value > truth * (1 + 1e-9):
        raise ContractError(f"{pattern}: states {stated.value} as exact, brute force finds {truth}")


def brute_force_sensitivity(C: Array, pattern: Pattern, *, most_sets: int | None = None) -> float:
    """The largest ‖C·u‖ over the allowed sets of rounds and all signs of a client's contributions.

    By definition, in exponential time: over every set of rounds (or ``most_sets`` of them), with all signs for up to 10
    rounds, beyond that with equal signs and a few random ones.

    Args:
        C: ``(rows, rounds)``.
        pattern: Which sets of rounds are allowed.
        most_sets: How many sets are tried, in order; by default all.

    Returns:
        A lower bound on the sensitivity, which it equals if all sets and all signs are tried and in each set some signs make
        all inner products of columns of C at least 0; else a client's vectors may move C·x further than any signs do.

    Example:
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> from hubbub.mechanism.strategies import BinaryTree
        >>> pattern = MinSeparation(min_separation=2, max_participations=2)
        >>> round(brute_force_sensitivity(BinaryTree(4).matrix(), pattern) ** 2, 6)
        8.0
    """
    best, generator = 0.0, np.random.default_rng(0)
    for chosen in itertools.islice(_sets(C.shape[1], pattern), most_sets or None):
        if len(chosen) <= _MOST_SIGNS:
            rest = itertools.product([1.0, -1.0], repeat=len(chosen) - 1)
            signs = np.array([(1.0, *others) for others in rest])
        else:
            signs = np.vstack([np.ones(len(chosen)), generator.choice([-1.0, 1.0], (64, len(chosen)))])
        best = max(best, float(np.linalg.norm(C[:, list(chosen)] @ signs.T, axis=0).max()))
    return best


def _sets(rounds: int, pattern: Pattern) -> Iterator[tuple[int, ...]]:
    """The sets of rounds that the pattern allows; for fixed epochs only the complete ones, which dominate."""
    if isinstance(pattern, FixedEpochs):
        last = min(rounds, pattern.epochs * pattern.rounds_per_epoch)
        for start in range(min(pattern.rounds_per_epoch, last)):
            yield tuple(range(start, last, pattern.rounds_per_epoch))
        return
    stack: list[tuple[int, ...]] = [(r,) for r in reversed(range(rounds))]
    while stack:
        chosen = stack.pop()
        yield chosen
        stack.extend((*chosen, r) for r in range(chosen[-1] + 1, rounds) if pattern.allows([*chosen, r]))


def _patterns(rounds: int) -> list[Pattern]:
    """Patterns to check: one participation, a few epochs and separations, and every round."""
    period = max(1, rounds // 3)
    chosen: list[Pattern] = [SingleParticipation(), FixedEpochs(math.ceil(rounds / period), period)]
    chosen += [MinSeparation(b, k) for b, k in ((period, 2), (max(1, period - 1), 3))]
    return [*chosen, every_round(rounds)] if rounds <= _MOST_SIGNS else chosen


def check_population(population: Population, model: nn.Module, clip_norm: float) -> None:
    """Check that a population clips: no client moves the sum by more than the clip norm, and cohorts are sums of clients.

    Make the population from clients of every kind: honest ones, and ones whose updates are huge, infinite, NaN, or zero. If
    it can count unclipped updates (``takes_split``), an update with its indicator must be within its bound, too.

    Args:
        population: Its clients are summed one by one and together.
        model: The global model.
        clip_norm: Above 0.

    Raises:
        ContractError: A sum that is too long, not finite, or depends on the order of clients, or a wrong indicator.

    Example:
        >>> from hubbub.training import SimulatedPopulation
        >>> clients = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long)), (torch.full((4, 3), 1e30), torch.ones(4).long())]
        >>> population = SimulatedPopulation(clients, nn.functional.cross_entropy)
        >>> check_population(population, nn.Linear(3, 2), clip_norm=1.0)
    """
    clients = list(population.clients)
    _check_sums(lambda cohort: population.collect(cohort, model, clip_norm, 0).open(None), clients, clip_norm)
    if not population.takes_split:
        return
    split = AdaptiveClipping().split(1.0, len(clients))

    def counted(cohort: Sequence[Hashable]) -> torch.Tensor:
        return population.collect(cohort, model, clip_norm, 0, split).open(None)

    _check_sums(counted, clients, split.joint_norm(clip_norm))
    whole = split.count_scale(clip_norm) / 2
    for client in clients:
        indicator = float(counted([client])[-1])
        # A client that sent nothing has indicator 0.
        if min(abs(indicator - value) for value in (-whole, 0.0, whole)) > 1e-6 * whole:
            raise ContractError(f"client {client!r}: its indicator is {indicator}, must be ±{whole}, or 0 if it sent nothing")


def _check_sums(opened: Callable[[Sequence[Hashable]], torch.Tensor], clients: list[Hashable], largest: float) -> None:
    alone = [opened([client]) for client in clients]
    for client, total in zip(clients, alone, strict=True):
        norm = float(total.to(torch.float64).norm())
        if not norm <= largest:
            raise ContractError(f"client {client!r} moves the sum by {norm}: must be at most clip_norm = {largest}")
    together, backwards = opened(clients), opened(clients[::-1])
    slack = 1e-9 * largest * len(clients)
    for total in (torch.stack(alone).sum(dim=0), backwards):
        if not float((total - together).abs().max()) <= slack:
            raise ContractError("the sum of a cohort is not the sum of its clients, in whatever order they come")
    if float(opened([]).abs().max()) != 0:
        raise ContractError("an empty cohort must have a sum of zero")
