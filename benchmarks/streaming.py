"""A row of correlated noise as a run draws it, against jax_privacy and opake, and against a floor.

Ours is secret and in float64, one round at a time, from the secure source. The peers' is not secret and in float32, for the
same C, with a gradient of zeros: jax_privacy's privatizer from jax's default generator, compiled, and opake's from torch's.
opake's BLT takes no parameters, so that there is none of the same C. The floor draws our z alone and reads what is remembered
once a round, and computes nothing.

Each side has a process of its own, one after the other: the widest needs 6 GB on our side and 5 GB on a peer's. With
``--quick`` the model has a million parameters in place of ten.
"""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import _runner

DIM, QUICK_DIM, ROUNDS = 10**7, 10**6, 10_000
# A cost is the least mean of this many steps in a row.
STEPS = 16
# Of the deviation of as many numbers as a row has, and of the few rounds after which the two sides are compared.
TOLERANCE = 0.01
BANDS = (4, 16, 64)
BUFFERS = 4
# At least as fast as jax_privacy; twice as fast at 16 bands.
NO_WORSE, GOALS = 1.0, {16: 2.0}
# We may cost 1.3 times the floor.
FLOOR_GOAL = 1 / 1.3


@dataclass(frozen=True)
class Correlation:
    """C as plain numbers: the coefficients of a banded Toeplitz matrix, or decays and output scales of a BLT."""

    name: str
    goal: float
    coefficients: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()
    output_scales: tuple[float, ...] = ()

    def strategy(self) -> Any:
        from hubbub.mechanism.strategies.blt import BufferedLinearToeplitz
        from hubbub.mechanism.strategies.toeplitz import BandedToeplitz

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


def our_stream(correlation: Correlation, dim: int, seconds: float) -> Callable[[], Stream]:
    import torch

    from hubbub.mechanism import Mechanism
    from hubbub.mechanism.participation import SingleParticipation
    from hubbub.noise import NoiseStream

    torch.set_num_threads(1)
    mechanism = Mechanism(correlation.strategy(), SingleParticipation(), 1.0)
    stream = NoiseStream(mechanism, dim)

    def run() -> Stream:
        # Until all is remembered that ever will be.
        stream.skip_to(len(correlation.coefficients) + 1)
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


def floor(rows: int, dim: int, seconds: float) -> Callable[[], float]:
    """z alone, and a read of the remembered rows."""
    import torch

    from hubbub._util.prf import fresh_key
    from hubbub.noise import SecureSource

    torch.set_num_threads(1)

    def run() -> float:
        source, remembered = SecureSource(fresh_key()), torch.ones(rows, dim, dtype=torch.float64)
        return least_mean(lambda: source.row(0, dim), seconds / 2) + least_mean(remembered.sum, seconds / 2)

    return run


def rows_of(correlation: Correlation, seconds: float, *, opake: bool) -> list[_runner.Row]:
    dim = DIM if seconds >= _runner.FULL else QUICK_DIM
    ours = _runner.alone(partial(our_stream, correlation, dim, seconds))
    name, cost = f"{correlation.name}, {dim:,} numbers", ours.answer.seconds
    rows = []
    peers = {"jax_privacy": jax_stream, "opake": opake_stream} if opake else {"jax_privacy": jax_stream}
    for peer, stream in peers.items():
        other = _runner.alone(partial(stream, correlation, dim, seconds))
        _runner.require_agreement(name, ours.answer.deviation, other.answer.deviation, TOLERANCE)
        note = f"peak memory {ours.peak_bytes / 1e9:.2g} GB, the peer's {other.peak_bytes / 1e9:.2g} GB"
        goal = correlation.goal if peer == "jax_privacy" else None
        rows.append(_runner.Row(f"{name}; peer: {peer}, float32, not secret", cost, other.answer.seconds, goal, note=note))
    remembered = correlation.strategy().memory_rows
    least = _runner.alone(partial(floor, remembered, dim, seconds)).answer
    note = f"{1000 * least:.1f} ms: secure z, and {remembered} rows read once"
    return [*rows, _runner.Row(f"{name}; peer: a floor", cost, least, FLOOR_GOAL, note=note)]


def toeplitz_rows(seconds: float) -> list[_runner.Row]:
    from hubbub.mechanism.strategies.toeplitz import square_root

    found = []
    for bands in BANDS:
        coefficients = square_root(ROUNDS, bands).coefficients
        correlation = Correlation(f"banded Toeplitz, {bands} bands", GOALS.get(bands, NO_WORSE), coefficients)
        found += rows_of(correlation, seconds, opake=True)
    return found


def blt_rows(seconds: float) -> list[_runner.Row]:
    from hubbub import factorization
    from hubbub.mechanism import workloads

    best = factorization.blt.optimize(workloads.prefix_sum(rounds=ROUNDS), buffers=BUFFERS, objective="max").strategy
    correlation = Correlation(f"BLT, {BUFFERS} buffers", NO_WORSE, decays=best.theta, output_scales=best.omega)
    return rows_of(correlation, seconds, opake=False)


if __name__ == "__main__":
    _runner.main(__doc__, toeplitz_rows, blt_rows)
