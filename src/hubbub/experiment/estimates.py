"""Estimates for a planned run: epsilon over rounds, noise in releases and models, its memory, and the cost of encryption.

Letters: A workload, C strategy, N noising matrix ``(rounds, rows)`` with N·C = I, B = A·N; β momentum, η learning rates.
"""

import math
import secrets
import time
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import solve_banded, solve_triangular

from hubbub._util.checks import Array
from hubbub.ledger.promise import Promise
from hubbub.mechanism.sensitivity import is_triangular
from hubbub.mechanism.strategies import Strategy, own
from hubbub.mechanism.strategies.strategy import memory_rows, progress
from hubbub.mechanism.utility import noising_matrix
from hubbub.mechanism.workloads import Workload
from hubbub.training.encryption import Encryption
from hubbub.training.plan import RunPlan

if TYPE_CHECKING:
    from hubbub.secagg.paillier import PublicKey
    from hubbub.secagg.protocol import Agreement

# The size of a number of the noise in memory, and of the model that a client downloads.
NUMBER_BYTES, MODEL_BYTES = 8, 4
# Numbers of a row that one rank makes together, at least; as in hubbub.noise.sources.
_SEGMENT = 1 << 16
# The number of ciphertexts that are timed.
_TRIED = 8


def epsilons(promise: Promise, delta: float, parts: int = 4) -> list[tuple[int, float]]:
    """Pairs (rounds, epsilon): after the first round, and after each of ``parts`` equal parts of the rounds.

    Example:
        >>> from hubbub import Mechanism, PoissonSampling
        >>> from hubbub.mechanism.strategies import Identity
        >>> promise = Promise(8, Mechanism(Identity(8), PoissonSampling(0.1), 1.0), settings={"clip_norm": 1.0})
        >>> [rounds for rounds, epsilon in epsilons(promise, delta=1e-5) if 0 < epsilon < 4]
        [1, 2, 4, 6, 8]
    """
    after = sorted({1, *(math.ceil(promise.rounds * i / parts) for i in range(1, parts + 1))})
    return [(rounds, promise.after(rounds, delta).epsilon) for rounds in after]


def noise_estimate(plan: RunPlan, parameters: int | None, noise_rows: int = 0) -> dict[str, float | None] | None:
    """Signal and noise of a run, by name; ``None`` for one without noise, or if the noise takes long to compute.

    ``noise_rows`` key holders add a whole row of noise each; it is 0 if the server or the clients add the noise. Standard
    deviations are of a coordinate, in the units of an update: of the sum and of the mean over the expected cohort the largest
    over rounds, and of the last model. ``model_rmse``, by which strategies are compared, is the root mean square over rounds of
    that, in clip norms. Norms are expected ones over the clip norm. The signal over them is at most one clip norm in a mean,
    and in the last model all updates in one direction. What depends on an unknown number of parameters is ``None``.

    Example:
        >>> from hubbub import Mechanism, PoissonSampling
        >>> from hubbub.mechanism.strategies import Identity
        >>> mechanism = Mechanism(Identity(16), PoissonSampling(0.1), noise_multiplier=2.0)
        >>> plan = RunPlan(16, mechanism.participation, expected_cohort_size=100, mechanism=mechanism, clip_norm=0.5)
        >>> found = noise_estimate(plan, parameters=10_000)
        >>> found["sum_stddev"], found["mean_stddev"], round(found["signal_to_noise"], 2), round(found["model_stddev"], 3)
        (1.0, 0.01, 0.5, 0.04)
    """
    clip = plan.clip_norms.first
    if plan.mechanism is None or clip is None:
        return None
    workload = plan.server.workload(plan.scheduled_rounds)
    levels = noise_levels(workload, plan.mechanism.strategy)
    if levels is None:
        return None
    # Of a run that stop_epsilon ends, the rounds that it has.
    z, (releases, models) = deviation(plan, noise_rows), (level[: plan.rounds] for level in levels)
    each, last = z * float(releases.max()), z * float(models[-1])
    # The expected norm of so many independent standard normal numbers.
    norm = parameters and math.sqrt(2) * math.exp(math.lgamma((parameters + 1) / 2) - math.lgamma(parameters / 2))
    most = float(_models(workload, np.ones((workload.rounds, 1)))[plan.rounds - 1, 0])
    return {
        "sum_stddev": each * clip * plan.expected_cohort_size,
        "mean_stddev": each * clip,
        "norm_over_clip": None if norm is None else each * norm,
        "signal_to_noise": None if norm is None else 1 / (each * norm),
        "model_stddev": last * clip,
        "model_rmse": z * float(np.sqrt(np.square(models).mean())),
        "final_norm_over_clip": None if norm is None else last * norm,
        "final_signal_to_noise": None if norm is None else most / (last * norm),
    }


def remembered_rows(plan: RunPlan) -> int:
    """The largest number of rows of noise in memory, as the strategy says, or found by its first steps.

    Example:
        >>> from hubbub import Mechanism, MinSeparation
        >>> from hubbub.mechanism.strategies import BandedToeplitz
        >>> noise = Mechanism(BandedToeplitz(100, (1.0, 0.5, 0.25)), MinSeparation(10, 10), noise_multiplier=2.0)
        >>> remembered_rows(RunPlan(100, noise.participation, expected_cohort_size=20, mechanism=noise, clip_norm=1.0))
        2
    """
    if plan.mechanism is None:
        return 0
    known = memory_rows(plan.mechanism.strategy)
    return progress(plan.mechanism.strategy, min(plan.rounds, 4096)).most_remembered if known is None else known


def remembered_bytes(rows: int | None, plan: RunPlan, parameters: int | None, ranks: int = 1) -> int | None:
    """The memory of rows of noise, each as long as a release; ``None`` if the rows or the parameters are unknown.

    Several ranks divide it by whole segments of 65,536 numbers; the memory then is that of the one with the most.

    Example:
        >>> from hubbub import PoissonSampling
        >>> plan = RunPlan(8, PoissonSampling(0.1), expected_cohort_size=10)
        >>> remembered_bytes(3, plan, parameters=1000), remembered_bytes(1, plan, parameters=10**6, ranks=4)
        (24000, 2097152)
    """
    if rows is None or parameters is None:
        return None
    numbers = parameters + plan.clip_norms.further
    if ranks > 1:
        numbers = min(numbers, math.ceil(math.ceil(numbers / _SEGMENT) / ranks) * _SEGMENT)
    return NUMBER_BYTES * rows * numbers


def encryption_costs(plan: RunPlan, terms: Encryption, parameters: int, clients: int) -> dict[str, float]:
    """The cost of encryption in a round, by name, measured with a temporary key."""
    import gmpy2

    from hubbub.secagg import paillier
    from hubbub.secagg.protocol import framed

    most, private = math.ceil(plan.expected_cohort_size), paillier.generate(terms.key_bits)
    agreement = agreed(plan, terms, private.public_key, parameters, secrets.token_hex(16))
    public, count = agreement.public_key, agreement.ciphertexts
    # The first call makes a table.
    public.encrypt(0)
    started = time.perf_counter()
    sums = public.encrypt([1] * _TRIED)
    encrypted = time.perf_counter()
    sums = sums + sums
    added = time.perf_counter()
    if agreement.whole_key:
        private.decrypt(sums)
    else:
        # A part is a power as long as n, in constant time, mod n².
        for c in sums.integers:
            gmpy2.powmod_sec(c, public.n, public.n_square)
    opened = time.perf_counter()
    noise = agreement.noising_holders or int(agreement.server_noise and agreement.packing.noise > 0)
    upload, many = framed(str(clients - 1), count, public.bits), count / _TRIED
    parts = most * upload + noise * framed(f"holder {noise}", count, public.bits)
    return {
        "upload_bytes": upload,
        # The owner of the whole key gets the sum alone; holders of shares get what it is made of.
        "request_bytes": framed("server", count, public.bits) if agreement.whole_key else parts,
        "encrypt_seconds": (encrypted - started) * many,
        "add_seconds": (added - encrypted) * many * max(0, most + noise - 1),
        # One after another: the noise that the holders or the server encrypt, and decryption by ``threshold`` holders.
        "open_seconds": many * ((encrypted - started) * noise + (opened - added) * terms.threshold),
        "download_bytes": MODEL_BYTES * parameters,
        "ciphertexts": count,
    }


def agreed(plan: RunPlan, terms: Encryption, key: "PublicKey", parameters: int, name: str) -> "Agreement":
    """The agreement of the clients, the server and the key holders of a run."""
    packing = terms.packing(math.ceil(plan.expected_cohort_size), plan.mechanism)
    return terms.agreement(key, packing, parameters + plan.clip_norms.further, name)


def deviation(plan: RunPlan, noise_rows: int) -> float:
    """The standard deviation of z in a mean over the expected cohort, for clip norm 1; 0 without noise.

    Example:
        >>> from hubbub import Mechanism, PoissonSampling
        >>> from hubbub.mechanism.strategies import Identity
        >>> noise = Mechanism(Identity(16), PoissonSampling(0.1), noise_multiplier=2.0)
        >>> plan = RunPlan(16, noise.participation, expected_cohort_size=100, mechanism=noise, clip_norm=0.5)
        >>> deviation(plan, noise_rows=0), deviation(plan, noise_rows=4)
        (0.02, 0.04)
    """
    if plan.mechanism is None:
        return 0.0
    split = plan.clip_norms.split
    multiplier = split.update_multiplier if split else plan.mechanism.noise_multiplier
    return multiplier * plan.mechanism.column_norm * math.sqrt(noise_rows or 1) / plan.expected_cohort_size


# Beyond, the matrix of a strategy without a closed form takes minutes.
MOST_ROUNDS = 4096


def noise_levels(workload: Workload, strategy: Strategy) -> tuple[Array, Array] | None:
    """Standard deviations of a coordinate for noise z of standard deviation 1: of each release, and of the model after it.

    Each ``(rounds,)``: the norms of the rows of N and of A·N. ``None`` if that needs a matrix of more than :data:`MOST_ROUNDS`
    rounds, as Toeplitz C do not.

    Example:
        >>> from hubbub.mechanism.strategies import Identity
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> releases, models = noise_levels(prefix_sum(rounds=4), Identity(rounds=4))
        >>> models.round(3)
        array([1.   , 1.414, 1.732, 2.   ])
    """
    said = own(strategy)
    if workload.toeplitz and said is not None and said.toeplitz:
        # The first column of N: what the strategy's steps make of a unit of noise in the first round.
        first, memory = np.empty((strategy.rounds, 1)), ()
        for t in range(strategy.rounds):
            first[t], memory = strategy.step(t, lambda row: float(row == 0), memory)
        models = _models(workload, first)
        return np.sqrt(np.cumsum(np.square(first[:, 0]))), np.sqrt(np.cumsum(np.square(models[:, 0])))
    if workload.rounds > MOST_ROUNDS:
        return None
    C = np.asarray(strategy.matrix(), dtype=np.float64)
    N = solve_triangular(C, np.eye(len(C)), lower=True) if is_triangular(C) else noising_matrix(strategy)
    return np.linalg.norm(N, axis=1), np.linalg.norm(_models(workload, N), axis=1)


def _models(workload: Workload, releases: Array) -> Array:
    """A times a matrix, ``(rounds, columns)``: the models of the optimizer, of the releases of each column.

    Example:
        >>> _models(Workload(3, momentum=0.5, learning_rates=(1.0, 1.0, 2.0)), np.ones((3, 1))).ravel()
        array([1. , 2.5, 6. ])
    """
    rates = np.ones(workload.rounds) if workload.learning_rates is None else np.asarray(workload.learning_rates)
    # Each buffer minus β times the buffer before it is the release of its round.
    buffers = solve_banded((1, 0), [[1.0], [-workload.momentum]] * np.ones(workload.rounds), releases)
    return np.asarray(np.cumsum(rates[:, None] * buffers, axis=0))
