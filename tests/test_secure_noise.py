"""Statistics of secure noise, each shown to catch a broken twin: a test that cannot fail says nothing."""

import hashlib
import hmac
import itertools
import math
import multiprocessing
import os
import random
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import linalg, stats
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import raising
from hubbub._util.prf import fresh_key, word_stream
from hubbub.errors import NoiseExhaustedError
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import MinSeparation, every_round
from hubbub.mechanism.strategies import BinaryTree, Identity, Strategy, toeplitz
from hubbub.noise import NoiseStream, SecureSource, sources
from hubbub.noise.lattice import Lattice
from hubbub.training import LocalTraining, RunPlan, RunStore, SimulatedPopulation, train
from small_runs import until

Array = npt.NDArray[np.float64]

# A statistical test below fails by chance once in a million runs; its keys are fixed, so it does not.
FALSE_ALARM = 1e-6
MILLION = 10**6
# Two further keys than those of the other tests.
KEY, OTHER = bytes(range(1, 33)), bytes(range(2, 34))


def row(index: int, dim: int, key: bytes = KEY) -> Array:
    return SecureSource(key).row(index, dim).numpy()


# One row


def tails_fit(counts: Array, n: int) -> bool:
    """Whether as many numbers are beyond 3, 4, 4.5 and 5 deviations, on each side, as an exact binomial allows."""
    beyond = stats.norm.sf(DEVIATIONS)
    low, high = stats.binom.ppf([[FALSE_ALARM / 16], [1 - FALSE_ALARM / 16]], n, beyond)
    return bool(((low <= counts) & (counts <= high)).all())


DEVIATIONS = np.array([3, 4, 4.5, 5])


def test_fpt_6_the_tails_of_twenty_million_numbers_are_as_heavy_as_they_should_be() -> None:
    counts, low_noise = np.zeros((2, 4)), np.zeros((2, 4))
    for index in range(10):
        z = row(index, 2 * MILLION, OTHER)
        far = z[np.abs(z) > 2.9]
        for found, numbers in ((counts, far), (low_noise, 0.98 * far)):
            found += [[(side * numbers > d).sum() for d in DEVIATIONS] for side in (1, -1)]
    assert tails_fit(counts, 20 * MILLION)
    assert counts.sum(axis=0)[3] > 0
    assert not tails_fit(low_noise, 20 * MILLION)


@pytest.mark.slow
def test_fpt_6_a_billion_numbers_are_normal_in_the_middle_and_in_the_tails() -> None:
    # A chi-square of 2,000 equally likely intervals, Kolmogorov and Smirnov's distance of the counts, and exact tail counts.
    edges = stats.norm.ppf(np.arange(1, 2000) / 2000)
    inside, counts, largest, n = np.zeros(2000), np.zeros((2, 5)), 0.0, 1000 * MILLION
    deviations = np.array([3, 4, 4.5, 5, 5.5])
    for index in range(n // (2 * MILLION)):
        z = np.sort(row(index, 2 * MILLION))
        inside += np.diff(np.searchsorted(z, edges), prepend=0, append=len(z))
        counts += [len(z) - np.searchsorted(z, deviations), np.searchsorted(z, -deviations)]
        largest = max(largest, -z[0], z[-1])
    assert stats.chisquare(inside).pvalue > FALSE_ALARM
    distance = np.abs(np.cumsum(inside) / n - np.arange(1, 2001) / 2000).max()
    assert stats.kstwobign.sf(distance * math.sqrt(n)) > FALSE_ALARM
    low, high = stats.binom.ppf([[FALSE_ALARM / 20], [1 - FALSE_ALARM / 20]], n, stats.norm.sf(deviations))
    assert ((low <= counts) & (counts <= high)).all()
    # Of a billion the largest is beyond 5.2 but for a chance of 1e-86, and beyond 8 with one of 1e-6.
    assert 5.2 < largest < 8
    # What is 0.1 % low is caught.
    assert stats.chisquare(inside, n * np.diff(stats.norm.cdf(edges / 0.999), prepend=0, append=1)).pvalue < FALSE_ALARM


def test_rng_5_no_number_comes_twice() -> None:
    # Two of a million float64 numbers agree with a probability of 2e-5; numbers of fewer bits do.
    z = row(2, MILLION)
    assert len(np.unique(z)) == MILLION
    assert len(np.unique(z.astype(np.float32))) < MILLION - 1000
    assert len(np.unique(z.astype(np.float16))) < MILLION // 10


def related(a: Array, b: Array) -> bool:
    """Whether two sequences of independent pairs are correlated, or their squares are."""
    bound = stats.norm.isf(FALSE_ALARM / 4) / math.sqrt(len(a))
    return any(abs(np.corrcoef(x, y)[0, 1]) > bound for x, y in ((a, b), (a**2, b**2)))


def test_rng_5_rows_and_the_numbers_of_a_row_are_independent() -> None:
    rows = [row(index, MILLION) for index in range(3)]
    for a, b in itertools.combinations(rows, 2):
        assert not related(a, b)
        # Shifted by one, as if one row went on where the other began.
        assert not related(a[1:], b[:-1])
    for z in rows:
        for lag in (1, 2, 3, MILLION // 2, MILLION // 2 + 1):
            assert not related(z[lag:], z[:-lag])
    # Broken twins: one row used twice, the same radius for both halves, and a moving average.
    z = rows[0]
    assert related(z, z)
    radius = np.hypot(z[: MILLION // 2], z[MILLION // 2 :])
    angle = np.random.default_rng(0).uniform(0, 2 * math.pi, MILLION // 2)
    assert related(z[: MILLION // 2], radius * np.cos(angle))
    assert related(z[1:], z[:-1] + 0.01 * z[1:])


def test_rng_5_the_epochs_of_a_run_are_independent_and_a_key_used_again_is_not() -> None:
    first, second = (row(5, MILLION, key) for key in (KEY, OTHER))
    assert not related(first, second)
    assert related(first, row(5, MILLION, KEY))


def test_rng_5_no_other_row_and_no_other_key_gives_a_number_of_this_row() -> None:
    rows = [row(index, 100_000, key) for key in (KEY, OTHER, bytes(32)) for index in (0, 1, 10, 2**40)]
    numbers = np.abs(np.concatenate(rows))
    assert len(np.unique(numbers)) == len(numbers)


def derived(key: bytes, part: str) -> bytes:
    return hmac.new(key, part.encode(), hashlib.sha256).digest()


class Oracle:
    """A row of noise by its definition: block by block of the bare cipher, in 200 bits."""

    SEGMENT = 2**16

    def __init__(self, key: bytes, index: int, dim: int) -> None:
        key = derived(derived(key, "str:5:noise"), f"int:{len(str(index))}:{index}")
        self._cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 # a counter mode by hand
        self._dim = dim

    def bits53(self, position: int) -> int:
        """The upper 53 bits of the word at a position; a block of the cipher holds two words, the lower byte first."""
        counter, half = divmod(position, 2)
        block = self._cipher.update(counter.to_bytes(16, "big"))
        return int.from_bytes(block[8 * half : 8 * half + 8], "little") >> 11

    def number(self, position: int) -> tuple[mpmath.mpf, mpmath.mpf]:
        """The number at a position of the row, and its radius."""
        segment, position = divmod(position, self.SEGMENT)
        pairs = (min(self.SEGMENT, self._dim - segment * self.SEGMENT) + 1) // 2
        sine, pair = divmod(position, pairs)
        # Of each segment first all coarse bits of the uniform numbers, then all fine ones, then all angles.
        start = 3 * segment * self.SEGMENT // 2
        coarse, fine, turn = (self.bits53(start + part * pairs + pair) for part in range(3))
        # As a float64 number: near 1 it has 53 bits after the point, near 0 it has 106.
        uniform = mpmath.mpf(float(mpmath.mpf(2 * (coarse * 2**53 + fine) + 1) / 2**107))
        radius, angle = mpmath.sqrt(-2 * mpmath.log(uniform)), 2 * mpmath.pi * turn / 2**53
        return radius * (mpmath.sin(angle) if sine else mpmath.cos(angle)), radius


@pytest.mark.parametrize(("index", "dim"), [(0, 1), (1, 2), (3, 7), (12, 2**16 + 1), (2**31, 140_001)])
def test_a_row_is_what_its_definition_says(index: int, dim: int) -> None:
    ours, oracle, pairs = row(index, dim), Oracle(KEY, index, dim), (dim + 1) // 2
    # The ends of both halves and of the blocks, and some between.
    near = [edge + i for edge in (0, 2**15, 2**16, pairs, pairs + 2**15, pairs + 2**16, dim) for i in range(-3, 3)]
    chosen = {p for p in near if 0 <= p < dim} | set(np.random.default_rng(0).integers(0, dim, 1000).tolist())
    with mpmath.workprec(200):
        for position in chosen:
            number, radius = oracle.number(position)
            assert abs(mpmath.mpf(float(ours[position])) - number) <= 4 * 2.0**-52 * radius


class Work(TorchDispatchMode):
    """Every operation on tensors with the shapes that it works on, and how many random words are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[object] = []

    def __torch_dispatch__(self, operation: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        shapes = [tuple(part.shape) if isinstance(part, torch.Tensor) else type(part) for part in args]
        self.done.append((str(operation), shapes))
        return operation(*args, **(kwargs or {}))  # type: ignore[operator]

    def asked(self, words: Callable[[int], npt.NDArray[np.uint64]]) -> Callable[[int], npt.NDArray[np.uint64]]:
        def following(count: int) -> npt.NDArray[np.uint64]:
            self.done.append(count)
            return words(count)

        return following


SOME_WORDS: dict[str, Callable[[int], npt.NDArray[np.uint64]]] = {
    "zeros, the largest noise that there is": lambda count: np.zeros(count, dtype=np.uint64),
    "ones, the smallest": lambda count: np.full(count, 2**64 - 1, dtype=np.uint64),
    "one key's": lambda count: word_stream(KEY)(count),
    "another's": lambda count: word_stream(OTHER)(count),
}


def work_of(words: Callable[[int], npt.NDArray[np.uint64]], dim: int, total: int) -> list[object]:
    """What is done for a release: from random words to the sum with its noise."""
    with pytest.MonkeyPatch.context() as patch, Work() as work:
        patch.setattr("hubbub.noise.sources.word_stream", lambda key, start: work.asked(words))
        stream = NoiseStream(Mechanism(BANDED, PATTERN, 1.5), dim, source=SecureSource(KEY))
        for _ in range(3):
            Lattice(1.0).release(torch.full((dim,), total), stream.next_row())
    return work.done


@pytest.mark.parametrize("dim", [7, 2**16 + 1])
def test_fpt_7_the_work_of_a_release_hangs_neither_on_its_noise_nor_on_its_sum(dim: int) -> None:
    done = [work_of(words, dim, total) for words in SOME_WORDS.values() for total in (0, 2**40)]
    assert len(done[0]) > 50
    assert all(work == done[0] for work in done)


def test_fpt_7_a_sampler_by_rejection_is_told_by_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sources._box_muller

    def again(words: Callable[[int], npt.NDArray[np.uint64]], out: torch.Tensor) -> None:
        right(words, out)
        # The tails are cut off at 4.5 deviations.
        while bool((out.abs() > 4.5).any()):
            right(words, out)

    monkeypatch.setattr(sources, "_box_muller", again)
    streams = [word_stream(bytes([number] * 32)) for number in range(4)]
    done = [work_of(words, 2**16, 0) for words in streams]
    assert any(work != done[0] for work in done)


def test_rng_2_a_fork_cannot_draw_the_rows_of_its_parent() -> None:
    source = SecureSource(KEY)
    expected = source.row(0, 10)

    def draw_in_child(end: Connection) -> None:
        try:
            end.send(source.row(0, 10).tolist())
        except NoiseExhaustedError as error:
            end.send(str(error))

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=draw_in_child, args=(theirs,))
    child.start()
    answer = ours.recv() if ours.poll(30) else None
    child.join()
    assert f"process {child.pid} was forked from {os.getpid()}" in answer
    assert torch.equal(source.row(0, 10), expected)


def test_rng_1_noise_neither_reads_nor_moves_a_global_generator() -> None:
    expected = row(0, 1000)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 # what users do at the start of a script
    torch.manual_seed(0)
    states = random.getstate(), str(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002 # users' own
    assert (row(0, 1000) == expected).all()
    assert random.getstate() == states[0]
    assert str(np.random.get_state()) == states[1]  # noqa: NPY002 # users' own
    assert torch.equal(torch.get_rng_state(), states[2])


# Whole runs: clients without data release the noise alone

ROUNDS, DIM, CLIP_NORM = 8, 20_000, 0.55
PATTERN = MinSeparation(2, 4)


def released(strategy: Strategy, folder: Path, stops: Sequence[int] = (ROUNDS,)) -> Array:
    """What a secure run releases that is interrupted after some rounds, ``(rounds, dim)``, per unit of clip norm and z."""
    silent = SimulatedPopulation([(torch.zeros(0, DIM), torch.zeros(0, 1))] * 12, F.mse_loss, LocalTraining())
    plan = RunPlan(ROUNDS, PATTERN, 3, Mechanism(strategy, PATTERN, 1.5), clip_norm=CLIP_NORM)
    for stop in stops:
        until(train(plan, silent, nn.Linear(DIM, 1, bias=False), RunStore(folder)), stop)
    store = RunStore(folder)
    releases = [store.parse_release(t, store.release_content(t)) for t in range(ROUNDS)]
    return torch.stack(releases).numpy() / (CLIP_NORM * 1.5)


def wrong_covariance(white: Array) -> bool:
    """Whether rows that should be white are not: by the sum of all squares, or by one entry of their covariance."""
    low, high = stats.chi2.ppf([FALSE_ALARM / 4, 1 - FALSE_ALARM / 4], white.size)
    n, dim = white.shape
    error = np.abs(white @ white.T / dim - np.eye(n))
    bound = stats.norm.isf(FALSE_ALARM / (2 * n * (n + 1))) * np.sqrt((1 + np.eye(n)) / dim)
    return not low < (white**2).sum() < high or bool((error > bound).any())


BANDED = toeplitz.square_root(ROUNDS, 3)
# C by its coefficients, in units of its largest column norm.
C = linalg.toeplitz(np.pad([1, 1 / 2, 3 / 8], (0, ROUNDS - 3)), np.zeros(ROUNDS)) / math.sqrt(1 + 1 / 4 + 9 / 64)


def tree_noise() -> Array:
    """How a round's noise is made of the tree's nodes, ``(rounds, nodes)``, in units of the sensitivity of 2.

    Each prefix of rounds is tiled by the dyadic intervals of its length's binary digits; a round has the difference of two.
    """
    tilings = []
    for length in range(1, ROUNDS + 1):
        sizes, start, tiling = [2**h for h in (3, 2, 1, 0) if length >> h & 1], 0, set()
        for size in sizes:
            tiling.add((start, size))
            start += size
        tilings.append(tiling)
    nodes = sorted(set().union(*tilings))
    prefixes = np.array([[float(node in tiling) for node in nodes] for tiling in tilings])
    return 2 * np.diff(prefixes, axis=0, prepend=0)


def whitened_tree(noise: Array) -> Array:
    N = tree_noise()
    return linalg.solve_triangular(linalg.cholesky(N @ N.T, lower=True), noise, lower=True)


WHITENED: dict[Strategy, Callable[[Array], Array]] = {
    Identity(ROUNDS): lambda noise: noise,
    BANDED: lambda noise: C @ noise,
    BinaryTree(ROUNDS): whitened_tree,
}


@pytest.mark.parametrize("stops", [(ROUNDS,), (3, 6, ROUNDS)], ids=["in one go", "with two restarts"])
@pytest.mark.parametrize("strategy", WHITENED, ids=lambda s: type(s).__name__)
def test_the_noise_of_a_secure_run_has_the_stated_covariance(
    strategy: Strategy, stops: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Keys that are the same in each run of this test, and another at each call.
    calls = itertools.count()
    monkeypatch.setattr(os, "urandom", lambda size: hashlib.shake_256(str(next(calls)).encode()).digest(size))
    noise = released(strategy, tmp_path, stops)
    assert len(list((tmp_path / "state" / "keys").glob("epoch-*"))) == len(stops)
    assert not wrong_covariance(WHITENED[strategy](noise))
    others = [whiten for other, whiten in WHITENED.items() if other != strategy]
    assert all(wrong_covariance(whiten(noise)) for whiten in others)


def test_noise_of_another_covariance_is_caught() -> None:
    z = np.stack([row(index, DIM) for index in range(ROUNDS)])
    N, half = linalg.inv(C), ROUNDS // 2
    assert not wrong_covariance(C @ N @ z)
    twice, again, bare = z.copy(), z.copy(), N @ z
    twice[3] = z[2]
    again[half:] = z[:half]
    bare[:, :1000] = 0
    broken = {
        "independent": z,
        "C z in place of its inverse": C @ z,
        "minus bands": linalg.inv(2 * np.diag(np.diag(C)) - C) @ z,
        "2% low": 0.98 * N @ z,
        "one row of z used twice": N @ twice,
        "z drawn again at a restart": N @ again,
        "memory lost at a restart": np.vstack([N[:half, :half] @ z[:half], N[:half, :half] @ z[half:]]),
        "one layer without noise": bare,
    }
    for name, noise in broken.items():
        assert wrong_covariance(C @ noise), name


@pytest.mark.parametrize("failure", [NotImplementedError("no source of randomness"), OSError("no entropy")], ids=repr)
def test_rng_7_no_run_starts_without_the_operating_system_s_randomness(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", raising(failure))
    with pytest.raises(type(failure)):
        fresh_key()
    with pytest.raises(type(failure)):
        NoiseStream(Mechanism(Identity(2), every_round(2), 1.0), dim=3)
    with pytest.raises(type(failure)):
        released(Identity(ROUNDS), tmp_path)
    assert not list(tmp_path.rglob("releases/*"))
