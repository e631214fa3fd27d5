"""Contract tests that others may run on what they wrote: a strategy, a population."""

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
    """An implementation breaks the contract of its protocol; the message says where."""


def check_strategy(strategy: Strategy, patterns: Sequence[Pattern] | None = None) -> None:
    """Check that a strategy's matrix, stream and sensitivity agree.

    Fed with unit vectors, its stream must give a noising matrix N with N·C = I; no row may need a later round; a row past
    the last must be refused; steps must not carry more rows than its ``memory_rows``, where it has them, says; and its
    stated sensitivities must not be below brute force, nor above it where they say exact.

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
    everything = _count(strategy.rounds, pattern) <= _MOST_SETS and strategy.rounds <= _MOST_SIGNS
    if stated.exact and everything and stated.value > truth * (1 + 1e-9):
        raise ContractError(f"{pattern}: states {stated.value} as exact, brute force finds {truth}")


def brute_force_sensitivity(C: Array, pattern: Pattern, *, most_sets: int | None = None) -> float:
    """The largest ‖C·u‖ over the sets of rounds that the pattern allows and all signs of a client's contributions.

    By definition, in exponential time: every set of rounds is tried (or ``most_sets`` of them), and of each every sign for
    up to 10 rounds, beyond that the equal and a few random ones.
    """
    rounds = C.shape[1]
    sets = _sets(rounds, pattern)
    tried = list(itertools.islice(sets, most_sets)) if most_sets else list(sets)
    generator = np.random.default_rng(0)
    best = 0.0
    for chosen in tried:
        if len(chosen) <= _MOST_SIGNS:
            rest = itertools.product([1.0, -1.0], repeat=len(chosen) - 1)
            signs = np.array([(1.0, *others) for others in rest])
        else:
            signs = np.vstack([np.ones(len(chosen)), generator.choice([-1.0, 1.0], (64, len(chosen)))])
        best = max(best, float(np.linalg.norm(C[:, list(chosen)] @ signs.T, axis=0).max()))
    return best


def _sets(rounds: int, pattern: Pattern) -> Iterator[tuple[int, ...]]:
    """The sets of rounds that the pattern allows; of fixed epochs the whole ones, which cover their parts."""
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


def _count(rounds: int, pattern: Pattern) -> int:
    return sum(1 for _ in itertools.islice(_sets(rounds, pattern), _MOST_SETS + 1))


def _patterns(rounds: int) -> list[Pattern]:
    """One participation, a few epochs and separations, and every round."""
    period = max(1, rounds // 3)
    chosen: list[Pattern] = [SingleParticipation(), FixedEpochs(math.ceil(rounds / period), period)]
    chosen += [MinSeparation(b, k) for b, k in ((period, 2), (max(1, period - 1), 3))]
    return [*chosen, every_round(rounds)] if rounds <= _MOST_SIGNS else chosen


def check_population(population: Population, model: nn.Module, clip_norm: float) -> None:
    """Check that a population answers for the clip: no client, and no cohort, moves the sum by more than it may.

    Make the population from clients of every kind that it may meet: honest ones, and ones whose updates are huge, infinite,
    not a number, or zero. Where it can count the updates that were not clipped (its ``takes_split``), an update
    together with its indicator is kept within its own bound, too.

    Args:
        population: Its clients are asked one by one and together.
        model: The global model.
        clip_norm: Above 0.

    Raises:
        ContractError: A sum that is too long, not finite, or that depends on the order of clients, or a false indicator.
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
        # Of a client that sent nothing there is none.
        if min(abs(indicator - value) for value in (-whole, 0.0, whole)) > 1e-6 * whole:
            raise ContractError(
                f"client {client!r}: its indicator is {indicator}, must be ±{whole}, or 0 where it sent nothing"
            )


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
