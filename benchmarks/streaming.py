"""A row of correlated noise for a model of ten million parameters, against jax_privacy and opake, and against a floor.

Both sides give rows of stddev·C⁻¹z in float32 for the same C, one after another, z's own cost included: ours and opake's from
torch's generator, jax_privacy's privatizer from jax's default one, compiled; the peers' with a gradient of zeros. The floor
draws z with torch's generator and reads what is remembered once a pass, and computes nothing. opake's BLT takes no parameters,
so that there is none of the same C.

Where 'hubbub kernel noise' built the kernel, rows that it makes are compared with jax_privacy and the floor, too; all others
are made without.

Further rows draw our z from the secure source, which neither the peers' nor torch's generator is. Beside opake nothing was
promised of these; their ratios are shown.

On a GPU, where there is one, a row of a hundred million numbers is compared with a copy of the bytes that have to be moved.

Each side has a process of its own, one after the other: the widest needs 3 GB on our side and 5 GB on a peer's. With
``--quick`` the model has a million parameters, for which no more is promised than to be no slower than jax_privacy; beside
opake, whatever the size.
"""

import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import _runner

DIM, QUICK_DIM, ROUNDS = 10**7, 10**6, 10_000
# A cost is the least mean of this many steps in a row; ours are whole passes.
STEPS = 16
# Of the deviation of as many numbers as a row has, and of the few rounds after which the two sides are compared.
TOLERANCE = 0.01
TOEPLITZ_GOALS = {4: 6.0, 16: 8.0, 64: 15.0}
BUFFERS, BLT_GOAL = 4, 8.0
# We may cost 1.3 times the floor.
FLOOR_GOAL = 1 / 1.3
# Of secure rows, and of a model smaller than the goals are for.
NO_WORSE = 1.0


@dataclass(frozen=True)
class Correlation:
    """C as plain numbers: the coefficients of a banded Toeplitz matrix, or decays and output scales of a BLT."""

    name: str
    goal: float
    coefficients: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()
    output_scales: tuple[float, ...] = ()

    def strategy(self) -> Any:
        from hubbub.strategies.blt import BufferedLinearToeplitz
        from hubbub.strategies.toeplitz import BandedToeplitz

        if self.coefficients:
            return BandedToeplitz(ROUNDS, self.coefficients)
        return BufferedLinearToeplitz.from_decays(ROUNDS, self.decays, self.output_scales)


@dataclass(frozen=True)
class Stream:
    """What a row costs, and its standard deviation per unit of that of z."""

    seconds: float
    deviation: float


def least_mean(step: Callable[[], object], seconds: float) -> float:
    """CPU seconds of a step, after those that were taken before, in repetitions for so many seconds, of at least one."""
    best, stop = math.inf, time.process_time() + seconds
    while math.isinf(best) or time.process_time() < stop:
        begin = time.process_time()
        for _ in range(STEPS):
            step()
        best = min(best, (time.process_time() - begin) / STEPS)
    return best


def our_stream(
    correlation: Correlation, dim: int, seconds: float, *, secure: bool = False, kernel: bool = False
) -> Callable[[], Stream]:
    import torch

    from hubbub.mechanism import Mechanism
    from hubbub.noise import NoiseStream, SecureSource, SimulationSource
    from hubbub.participation import SingleParticipation
    from hubbub.randomness import fresh_key

    os.environ["HUBBUB_KERNEL"] = "on" if kernel else "off"
    torch.set_num_threads(1)
    mechanism = Mechanism(correlation.strategy(), SingleParticipation(), 1.0)
    source = SecureSource(fresh_key()) if secure else SimulationSource(seed=0)
    stream = NoiseStream(mechanism, dim, source=source, dtype=torch.float32)

    def run() -> Stream:
        # Until all is remembered that ever will be.
        for _ in range(math.ceil(len(correlation.coefficients) / STEPS + 1) * STEPS):
            stream.next_row()
        cost = least_mean(stream.next_row, seconds)
        return Stream(cost, float(stream.next_row().std()) / mechanism.stddev)

    return run


def jax_stream(correlation: Correlation, dim: int, seconds: float) -> Callable[[], Stream]:
    import jax
    import jax.numpy as jnp
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz
    from jax_privacy.noise_addition import matrix_factorization_privatizer

    if correlation.coefficients:
        matrix = toeplitz.inverse_as_streaming_matrix(jnp.array(correlation.coefficients, jnp.float32))
    else:
        # It insists on float64 for the parameters; outside of this block the rows are float32.
        warnings.filterwarnings("ignore", message="Explicitly requested dtype float64")
        with jax.enable_x64():
            parameters = {"buf_decay": correlation.decays, "output_scale": correlation.output_scales}
            matrix = buffered_toeplitz.BufferedToeplitz.build(**parameters).inverse_as_streaming_matrix()
    privatizer = matrix_factorization_privatizer(matrix, stddev=1.0, prng_key=0)

    def run() -> Stream:
        gradient = jnp.zeros(dim, jnp.float32)
        update = jax.jit(privatizer.update)
        # The first call compiles.
        row, state = jax.block_until_ready(update(gradient, privatizer.init(gradient)))

        def step() -> None:
            nonlocal row, state
            row, state = jax.block_until_ready(update(gradient, state))

        cost = least_mean(step, seconds)
        if row.dtype != jnp.float32:
            raise SystemExit(f"the peer's rows are {row.dtype}: must be float32, as ours")
        return Stream(cost, float(row.std()))

    return run


def opake_stream(correlation: Correlation, dim: int, seconds: float) -> Callable[[], Stream]:
    """The rows of its banded square root, which for these numbers is the same C."""
    import torch
    from opake.dpftrl.noise import bsr_strategy, mf_gaussian_noise
    from opake.random import key
    from opake.types import clipped

    torch.set_num_threads(1)
    strategy = bsr_strategy(bandwidth=len(correlation.coefficients), alpha=1.0, beta=0.0)
    gradient = clipped(torch.zeros(dim), max_norm=1.0)
    add, state = mf_gaussian_noise(gradient.pytree, strategy, n_steps=ROUNDS, noise_multiplier=1.0, key=key(0))

    def run() -> Stream:
        row = gradient

        def step() -> None:
            nonlocal row, state
            row, state = add(gradient, state)

        for _ in range(math.ceil(len(correlation.coefficients) / STEPS + 1) * STEPS):
            step()
        cost = least_mean(step, seconds)
        if row.pytree.dtype != torch.float32:
            raise SystemExit(f"the peer's rows are {row.pytree.dtype}: must be float32, as ours")
        return Stream(cost, float(row.pytree.std()))

    return run


def floor(rows: int, rounds_per_pass: int, dim: int, seconds: float) -> Callable[[], float]:
    """z alone, and a read of the remembered rows, shared by the rounds of a pass."""
    import torch

    torch.set_num_threads(1)

    def run() -> float:
        row, remembered = torch.zeros(dim), torch.ones(rows, dim)
        return least_mean(row.normal_, seconds / 2) + least_mean(remembered.sum, seconds / 2) / rounds_per_pass

    return run


def rows_of(correlation: Correlation, seconds: float) -> list[_runner.Row]:
    whole = seconds >= _runner.FULL
    dim = DIM if whole else QUICK_DIM
    ours = _runner.alone(partial(our_stream, correlation, dim, seconds, secure=False))
    secure = _runner.alone(partial(our_stream, correlation, dim, seconds, secure=True))
    peer = _runner.alone(partial(jax_stream, correlation, dim, seconds))
    name = f"{correlation.name}, {dim:,} numbers"
    for answer in (ours.answer, secure.answer):
        _runner.require_agreement(name, answer.deviation, peer.answer.deviation, TOLERANCE)
    memory = f"peak memory {ours.peak_bytes / 1e9:.2g} GB, the peer's {peer.peak_bytes / 1e9:.2g} GB"
    cost, secure_cost, peer_cost = ours.answer.seconds, secure.answer.seconds, peer.answer.seconds
    rows = [
        _runner.Row(f"{name}; peer: jax_privacy", cost, peer_cost, correlation.goal if whole else NO_WORSE, note=memory),
        _runner.Row(f"{name}, secure; peer: jax_privacy, not secure", secure_cost, peer_cost, NO_WORSE),
    ]
    if whole:
        rows.append(beside_the_floor(correlation, name, cost, seconds))
    return rows


def beside_the_floor(correlation: Correlation, name: str, cost: float, seconds: float) -> _runner.Row:
    from hubbub.noise.blocks import rounds_per_pass

    strategy = correlation.strategy()
    remembered, many = strategy.memory_rows, rounds_per_pass(strategy)
    least = _runner.alone(partial(floor, remembered, many, DIM, seconds)).answer
    note = f"{1000 * least:.1f} ms: torch's generator, and {remembered} rows read once in {many} rounds"
    return _runner.Row(f"{name}; peer: a floor", cost, least, FLOOR_GOAL, note=note)


def rows_beside_opake(correlation: Correlation, seconds: float) -> list[_runner.Row]:
    dim = DIM if seconds >= _runner.FULL else QUICK_DIM
    name = f"{correlation.name}, {dim:,} numbers"
    ours, secure = (_runner.alone(partial(our_stream, correlation, dim, seconds, secure=secure)) for secure in (False, True))
    peer = _runner.alone(partial(opake_stream, correlation, dim, seconds))
    for side in (ours, secure):
        _runner.require_agreement(name, side.answer.deviation, peer.answer.deviation, TOLERANCE)
    memory = f"peak memory {ours.peak_bytes / 1e9:.2g} GB, the peer's {peer.peak_bytes / 1e9:.2g} GB"
    return [
        _runner.Row(f"{name}; peer: opake", ours.answer.seconds, peer.answer.seconds, NO_WORSE, note=memory),
        _runner.Row(f"{name}, secure; peer: opake, not secure", secure.answer.seconds, peer.answer.seconds, None),
    ]


def square_roots() -> list[Correlation]:
    from hubbub.strategies.toeplitz import square_root

    return [
        Correlation(f"banded Toeplitz, {bands} bands", goal, square_root(ROUNDS, bands).coefficients)
        for bands, goal in TOEPLITZ_GOALS.items()
    ]


def toeplitz_rows(seconds: float) -> list[_runner.Row]:
    return [row for correlation in square_roots() for row in rows_of(correlation, seconds)]


def opake_rows(seconds: float) -> list[_runner.Row]:
    return [row for correlation in square_roots() for row in rows_beside_opake(correlation, seconds)]


def buffered() -> Correlation:
    from hubbub import workloads
    from hubbub.strategies import blt

    best = blt.optimize(workloads.prefix_sum(rounds=ROUNDS), buffers=BUFFERS, objective="max").strategy
    return Correlation(f"BLT, {BUFFERS} buffers", BLT_GOAL, decays=best.theta, output_scales=best.omega)


def blt_rows(seconds: float) -> list[_runner.Row]:
    return rows_of(buffered(), seconds)


def kernel_rows(seconds: float) -> list[_runner.Row | _runner.Skipped]:
    from hubbub.noise.rows import KERNEL

    if seconds < _runner.FULL:
        return [_runner.Skipped("rows by the compiled kernel", f"the floor is for {DIM:,} numbers; leave --quick out")]
    if KERNEL.library() is None:
        return [_runner.Skipped("rows by the compiled kernel", f"it is {KERNEL.standing()}")]
    found: list[_runner.Row | _runner.Skipped] = []
    for correlation in (*square_roots(), buffered()):
        name = f"{correlation.name}, {DIM:,} numbers"
        plain, fused = (
            _runner.alone(partial(our_stream, correlation, DIM, seconds, kernel=use)).answer for use in (False, True)
        )
        peer = _runner.alone(partial(jax_stream, correlation, DIM, seconds)).answer
        for other in (plain, peer):
            _runner.require_agreement(name, fused.deviation, other.deviation, TOLERANCE)
        name = f"{name}, with the compiled kernel"
        found += [
            _runner.Row(f"{name}; peer: jax_privacy", fused.seconds, peer.seconds, correlation.goal),
            beside_the_floor(correlation, name, fused.seconds, seconds),
        ]
    return found


def gpu_rows(seconds: float) -> Sequence[_runner.Row | _runner.Skipped]:
    import _streaming_gpu

    widest = square_roots()[-1]
    return _streaming_gpu.gpu_rows(seconds, {one.name: one.strategy() for one in (widest, buffered())})


if __name__ == "__main__":
    _runner.main(__doc__, toeplitz_rows, blt_rows, opake_rows, kernel_rows, gpu_rows)
