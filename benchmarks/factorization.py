"""Optimal strategies: what they cost and how near the optimum they are, against jax_privacy, opake and limits.

Each call has a fresh process on one core, in float64. Imports are not counted, compilation is: the peer compiles anew in every
call. Ours are the least of three calls, or of one where it takes long; the peer's is one call.

A row is met only where our answer, too, is what was promised: no error above the peer's but for 1e-10, as the peer's own
loss computes both (our utility and our sensitivity where the peer is opake, whose loss is private); or a certified gap, and an
error no lower than the optimum that is known.

For 2,000 rounds and 400 bands jax_privacy's banded optimizer would take more CPU time than all else here together, so that
row is projected: a few steps are measured, after compilation, and multiplied by the steps that it needs to come within 1e-4
of the optimum at 500 rounds and 100 bands, times two. With bands a fifth of the rounds it took 12, 17, 23, 34, 58 steps for
64, 125, 250, 500, 1,000 rounds: a little more than their square root. To fit into memory its loss is differentiated
with its own ``scan_fn="equinox"``; a second row gives it a checkpointed scan of scans, which takes less than half the time.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import _runner

# As jax_privacy's loss computes both: two roundings of the same optimum.
AGREEMENT = 1e-10
# Of what is known of an optimum, in digits.
DIGITS = 1e-8
PEER_STEPS, PEER_STEPS_QUICK = 4, 2
OPAKE_ROUNDS = 2000


@dataclass(frozen=True)
class Found:
    """What a side found: the squared error at sensitivity 1, the certified gap, and C as tuples of numbers."""

    error: float
    gap: float = math.inf
    numbers: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Descent:
    """The peer's losses and CPU seconds after each of its steps, compilation in the first."""

    losses: tuple[float, ...]
    seconds: tuple[float, ...]


def ours(family: str, rounds: int, numbers: Sequence[str] = (), **options: Any) -> Callable[[], Found]:
    """``hubbub.factorization.<family>.optimize`` for prefix sums; ``numbers`` names what describes the strategy."""
    from importlib import import_module

    from hubbub.mechanism import workloads

    optimize = import_module(f"hubbub.factorization.{family}").optimize
    # What a strategy imports when it is first asked.
    import_module("scipy.signal")

    def solve() -> Found:
        result = optimize(workloads.prefix_sum(rounds=rounds), **options)
        described = tuple(tuple(getattr(result.strategy, name)) for name in numbers)
        return Found(result.squared_error, result.relative_gap, described)

    return solve


def measured(seconds: float, *arguments: Any, **options: Any) -> _runner.Spent[Found]:
    """:func:`ours` in a process of its own: the least of three where that is quick."""
    runs = [_runner.alone(partial(ours, *arguments, **options))]
    while len(runs) < 3 and runs[0].seconds < seconds / 3:
        runs.append(_runner.alone(partial(ours, *arguments, **options)))
    return min(runs, key=lambda run: run.seconds)


def limit_row(name: str, found: _runner.Spent[Found], limit: float, optimum: float, gap: float) -> _runner.Row:
    """Against a number of seconds, with a gap to certify."""
    good, note = worth(found.answer, optimum, gap)
    return _runner.Row(f"{name}; peer: a limit of {limit:g} s", found.seconds, limit, 1.0, good=good, note=note)


def worth(found: Found, optimum: float, gap: float) -> tuple[bool, str]:
    """Whether an answer is one: certified, and neither below the known optimum nor farther above than the gap; and in words."""
    near = -DIGITS <= found.error / optimum - 1 <= gap + DIGITS
    note = f"error {found.error:.12g}, certified gap {found.gap:.2g} (at most {gap:g}); optimum {optimum:.9g}"
    return near and found.gap <= gap, note


def judged_row(name: str, found: _runner.Spent[Found], peer: _runner.Spent[Found], judged: float, goal: float) -> _runner.Row:
    """Against the peer's answer, with our C judged by the loss that judged the peer's."""
    good = judged <= peer.answer.error * (1 + AGREEMENT)
    note = f"errors {judged:.13g} and {peer.answer.error:.13g} by the same loss"
    return _runner.Row(name, found.seconds, peer.seconds, goal, good=good, note=note)


def jax_banded(rounds: int, bands: int, steps: int, target: float, scan_fn: str = "plain") -> Callable[[], Descent]:
    """At most so many steps, until the loss is at most ``target``.

    ``scan_fn``: ``"plain"`` where the memory suffices; ``"equinox"``, the peer's own for less memory; or ``"ours"`` for it.
    """
    import jax
    from jax_privacy.matrix_factorization import banded

    outer = next(size for size in range(math.isqrt(rounds), 0, -1) if rounds % size == 0)

    def scan_of_scans(f: Any, start: Any, xs: Any) -> Any:
        inner = jax.checkpoint(lambda state, x: jax.lax.scan(f, state, x))
        state, y = jax.lax.scan(inner, start, xs.reshape(outer, -1))
        return state, y.reshape(-1)

    def solve() -> Descent:
        begin, losses, seconds = time.process_time(), [], []

        def note_step(step: Any) -> bool:
            losses.append(float(step.loss))
            seconds.append(time.process_time() - begin)
            return losses[-1] <= target

        with jax.enable_x64():
            scan = {"plain": jax.lax.scan, "ours": scan_of_scans, "equinox": "equinox"}[scan_fn]
            banded.optimize(rounds, bands=bands, max_optimizer_steps=steps, scan_fn=scan, callback=note_step)
        return Descent(tuple(losses), tuple(seconds))

    return solve


def banded_rows(seconds: float) -> list[_runner.Row]:
    gap, optimum, small = 1e-4, 11.718722, 8.9642396
    few = PEER_STEPS if seconds >= _runner.FULL else PEER_STEPS_QUICK
    near = _runner.alone(partial(jax_banded, 500, 100, 200, small * (1 + gap))).answer
    found = measured(seconds, "banded", 500, bands=100, relative_gap=gap)
    good, note = worth(found.answer, small, gap)
    name = "banded, 500 rounds, 100 bands"
    rows = [_runner.Row(f"{name}; peer: jax_privacy to 1e-4", found.seconds, near.seconds[-1], 40, good=good, note=note)]

    # The loss of a step is known before the step: as many as there are losses before the first that is low enough.
    needed = 2 * (len(near.losses) - 1)
    found = measured(seconds, "banded", 2000, bands=400, relative_gap=gap)
    good, quality = worth(found.answer, optimum, gap)
    name = "banded, 2,000 rounds, 400 bands"
    # The goal of the second is ours: it is a peer that nobody ships.
    for scan_fn, goal, peer in (("equinox", 300, "jax_privacy"), ("ours", 200, "jax_privacy with a faster scan of ours")):
        far = _runner.alone(partial(jax_banded, 2000, 400, few + 1, 0.0, scan_fn))
        step = (far.answer.seconds[-1] - far.answer.seconds[0]) / few
        note = (
            f"{quality}; the peer's {step:.1f} s a step, measured over {few}, times {needed} steps: 2 x {needed // 2}, which "
            f"it took from 500 rounds and 100 bands; it reached {far.answer.losses[-1]:.5g}, "
            f"and used {far.peak_bytes / 1e9:.2g} GB"
        )
        rows.append(
            _runner.Row(f"{name}; peer: {peer} to 1e-4", found.seconds, step * needed, goal, "CPU seconds", True, good, note)
        )
    megabytes = found.peak_bytes / 1e6
    rows.append(_runner.Row(f"{name}, peak memory; peer: a limit of 400 MB", megabytes, 400, 1.0, unit="MB"))
    found = measured(seconds, "banded", 2000, bands=1000, relative_gap=gap)
    return [*rows, limit_row("banded, 2,000 rounds, 1,000 bands", found, 10, 10.251593, gap)]


def jax_dense(rounds: int) -> Callable[[], Found]:
    """Until its own rule stops it."""
    import jax
    import jax.numpy as jnp
    from jax_privacy.matrix_factorization import dense

    def solve() -> Found:
        with jax.enable_x64():
            C = dense.optimize(rounds)
            sensitivity = jnp.linalg.norm(C, axis=0).max()
            errors = dense.per_query_error(strategy_matrix=C, skip_checks=True)
            return Found(float(errors.mean() * sensitivity**2))

    return solve


def dense_rows(seconds: float) -> list[_runner.Row]:
    from hubbub.mechanism.participation import FixedEpochs

    once = "dense, {:,} rounds, one participation".format
    small, peer = measured(seconds, "dense", 512), _runner.alone(partial(jax_dense, 512))
    good, note = worth(small.answer, 7.504228294, 1e-8)
    note += f"; the peer stops at {peer.answer.error:.9g}"
    epochs = measured(seconds, "dense", 2000, participation=FixedEpochs(20, 100))
    largest = measured(seconds, "dense", 256, objective="max")
    return [
        _runner.Row(f"{once(512)}; peer: jax_privacy", small.seconds, peer.seconds, 300, good=good, note=note),
        limit_row(once(2000), measured(seconds, "dense", 2000), 0.2, 10.0164910561, 1e-8),
        limit_row(once(10**5), measured(seconds, "dense", 10**5), 10, 19.33185, 1e-8),
        limit_row("dense, 2,000 rounds, 20 participations 100 apart", epochs, 10, 326.58153, 1e-6),
        limit_row("dense, 256 rounds, maximum error", largest, 5, 2.5327161**2, 1e-6),
    ]


def jax_toeplitz(rounds: int, bands: int, coefficients: tuple[float, ...] = ()) -> Callable[[], Found]:
    """Its optimum, or its loss of given coefficients."""
    import jax
    import jax.numpy as jnp
    from jax_privacy.matrix_factorization import toeplitz

    def solve() -> Found:
        with jax.enable_x64():
            c = jnp.array(coefficients) if coefficients else toeplitz.optimize_banded_toeplitz(rounds, bands)
            return Found(float(toeplitz.loss(c, rounds)))

    return solve


def toeplitz_rows(seconds: float) -> list[_runner.Row]:
    rows = []
    for rounds, bands in ((2000, 400), (10_000, 64)):
        found = measured(seconds, "toeplitz", rounds, ["coefficients"], bands=bands)
        peer = _runner.alone(partial(jax_toeplitz, rounds, bands))
        judged = _runner.alone(partial(jax_toeplitz, rounds, bands, found.answer.numbers[0])).answer.error
        name = f"banded Toeplitz, {rounds:,} rounds, {bands} bands; peer: jax_privacy"
        rows.append(judged_row(name, found, peer, judged, 300))
    return rows


def jax_blt(rounds: int, separation: int, most: int, parameters: tuple[tuple[float, ...], ...] = ()) -> Callable[[], Found]:
    """Its optimum of the maximum error, for as many buffers as it finds worth it; or its loss of given decays and scales."""
    import jax
    import jax.numpy as jnp
    from jax_privacy.matrix_factorization import buffered_toeplitz as blt

    def solve() -> Found:
        with jax.enable_x64():
            if parameters:
                best = blt.BufferedToeplitz.build(buf_decay=parameters[0], output_scale=parameters[1])
            else:
                best = blt.optimize(n=rounds, min_sep=separation, max_participations=most, error="max")
            loss = blt.LossFn.build_min_sep(n=rounds, error="max", min_sep=separation, max_participations=most)
            numbers = tuple(jnp.asarray(best.buf_decay).tolist()), tuple(jnp.asarray(best.output_scale).tolist())
            return Found(float(loss.loss(best)), numbers=numbers)

    return solve


def blt_rows(seconds: float) -> list[_runner.Row]:
    from hubbub.mechanism.participation import MinSeparation, SingleParticipation

    rows = []
    for pattern, spacing in ((SingleParticipation(), (1, 1)), (MinSeparation(100, 20), (100, 20))):
        peer = _runner.alone(partial(jax_blt, 2000, *spacing))
        buffers = len(peer.answer.numbers[0])
        options = {"buffers": buffers, "participation": pattern, "objective": "max"}
        found = measured(seconds, "blt", 2000, ["theta", "omega"], **options)
        judged = _runner.alone(partial(jax_blt, 2000, *spacing, found.answer.numbers)).answer.error
        name = f"BLT, 2,000 rounds, {spacing[1]} participations, {buffers} buffers; peer: jax_privacy"
        row = judged_row(name, found, peer, judged, 50)
        rows.append(row)
    found = measured(seconds, "blt", 10**7, buffers=4, objective="max")
    good = abs(found.answer.error - 40.87) < 0.005
    note = f"error {found.answer.error:.9g}"
    return [
        *rows,
        _runner.Row("BLT, 10,000,000 rounds, 4 buffers; peer: a limit of 2 s", found.seconds, 2.0, 1.0, good=good, note=note),
    ]


def opake(kind: str, spacing: tuple[int, int], **options: int) -> Callable[[], tuple[float, ...]]:
    """The coefficients of the C that its ``band_mf`` or ``blt`` strategy finds for prefix sums."""
    import torch
    from opake.dpftrl import noise

    torch.set_num_threads(1)
    strategy = getattr(noise, f"{kind}_strategy")(**options)
    separation, most = spacing
    return lambda: tuple(strategy.coefficients(n_steps=OPAKE_ROUNDS, min_sep=separation, max_participations=most).tolist())


def judged_by_us(peer: _runner.Spent[tuple[float, ...]], participation: Any, objective: str) -> _runner.Spent[Found]:
    """What its coefficients are worth by our utility and our sensitivity."""
    from hubbub.mechanism import utility, workloads
    from hubbub.mechanism.strategies.toeplitz import BandedToeplitz

    C = BandedToeplitz(OPAKE_ROUNDS, peer.answer)
    error = getattr(utility, f"{objective}_squared_error")(workloads.prefix_sum(rounds=OPAKE_ROUNDS), C)
    return replace(peer, answer=Found(error * C.sensitivity(participation).value ** 2))


def opake_rows(seconds: float) -> list[_runner.Row | _runner.Skipped]:
    from hubbub.mechanism.participation import MinSeparation, SingleParticipation

    once, often = (SingleParticipation(), (1, 1)), (MinSeparation(100, 20), (100, 20))
    found = measured(seconds, "toeplitz", OPAKE_ROUNDS, bands=400)
    peer = judged_by_us(_runner.alone(partial(opake, "band_mf", once[1], bands=400)), once[0], "mean")
    rows: list[_runner.Row | _runner.Skipped] = [
        judged_row(f"banded Toeplitz, {OPAKE_ROUNDS:,} rounds, 400 bands; peer: opake", found, peer, found.answer.error, 1)
    ]
    for pattern, spacing in (once, often):
        found = measured(seconds, "blt", OPAKE_ROUNDS, buffers=2, participation=pattern, objective="max")
        peer = judged_by_us(_runner.alone(partial(opake, "blt", spacing)), pattern, "max")
        name = f"BLT, {OPAKE_ROUNDS:,} rounds, {spacing[1]} participations, 2 buffers; peer: opake"
        rows.append(judged_row(name, found, peer, found.answer.error, 1))
    return [*rows, *inverse_rows(16, *often)]


def inverse_rows(bands: int, participation: Any, spacing: tuple[int, int]) -> list[_runner.Row | _runner.Skipped]:
    """What its banded inverse is worth with the sensitivity that it states, and what it states where columns have norm 1."""
    from opake.dpftrl.noise import bisr_strategy

    from hubbub import factorization
    from hubbub.mechanism import utility, workloads
    from hubbub.mechanism.sensitivity import of_matrix
    from hubbub.mechanism.strategies import banded_inverse

    schema = {"n_steps": OPAKE_ROUNDS, "min_sep": spacing[0], "max_participations": spacing[1]}
    name = f"{OPAKE_ROUNDS:,} rounds, {spacing[1]} participations, inverse of {bands} bands"
    try:
        plain, normalized = (bisr_strategy(bandwidth=bands, normalized=value).sensitivity(**schema) for value in (False, True))
    except TypeError as error:
        return [_runner.Skipped(f"{name}; peer: opake", f"{error}; make the environment with Python 3.13")]
    workload, root = workloads.prefix_sum(rounds=OPAKE_ROUNDS), banded_inverse.square_root(OPAKE_ROUNDS, bands)
    best = factorization.banded_inverse.optimize(workload, bands=bands, participation=participation)
    C = root.matrix()
    ours = of_matrix(C / np.linalg.norm(C, axis=0), participation).value
    peer = utility.mean_squared_error(workload, root) * plain**2
    return [
        _runner.Row(f"{name}; peer: opake's closed form", best.squared_error, peer, 1, unit="mean squared error"),
        _runner.Row(f"{name}, columns of norm 1, stated sensitivity; peer: opake", ours, normalized, 1, unit="sensitivity"),
    ]


if __name__ == "__main__":
    _runner.main(__doc__, banded_rows, dense_rows, toeplitz_rows, blt_rows, opake_rows)
