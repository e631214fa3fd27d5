"""Rows of noise by the compiled kernel: what the definition says, the same bits in every part and after every restart.

Where a machine cannot have the kernel, these tests say why and are skipped; streams without it are those of test_streaming.py.
"""

import itertools
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hubbub.errors import ConfigError, RunFolderError
from hubbub.mechanism import Mechanism
from hubbub.noise import NoiseStream, SimulationSource
from hubbub.noise.rows import KERNEL, FusedPass, measured
from hubbub.participation import MinSeparation
from hubbub.strategies import BinaryTree, BufferedLinearToeplitz, Dense, Identity, Strategy, toeplitz
from hubbub.utility import noising_matrix
from kernel_caches import kernels_in

ROUNDS = 41
# The kernel's groups of outputs: whole ones, one and three outputs more, and more than one group.
STRATEGIES: list[Strategy] = [
    Identity(ROUNDS),
    BinaryTree(ROUNDS),
    toeplitz.square_root(ROUNDS, 4),
    toeplitz.square_root(ROUNDS, 20),
    BufferedLinearToeplitz.from_decays(ROUNDS, (0.9, 0.5, 0.2), (0.2, 0.2, 0.1)),
    Dense(np.tril(np.random.default_rng(1).uniform(size=(ROUNDS, ROUNDS))) + np.eye(ROUNDS)),
]
# More than one segment of a row, and no whole number of vectors.
DIM = 2**16 + 2**14 + 77
UNIT = 2.0**-24


def lacking() -> str | None:
    """Why this machine cannot have the kernel."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the kernel is for Linux on x86_64, and this is {sys.platform} on {platform.machine()}"
    if " fma " not in Path("/proc/cpuinfo").read_text():
        return "this processor has no fused multiply-add"
    return None if any(map(shutil.which, ("cc", "gcc", "clang"))) else "there is no C compiler"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the kernel in it."""
    if reason := lacking():
        pytest.skip(reason)
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch, kernels_in(cache, patch):
        KERNEL.build()
    return cache


@pytest.fixture(autouse=True)
def _built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with kernels_in(folder, monkeypatch):
        assert KERNEL.standing().startswith("in use")
        yield


def stream(strategy: Strategy, dim: int = 50, **settings: object) -> NoiseStream:
    mechanism = Mechanism(strategy, MinSeparation(20, 2), 0.5)
    return NoiseStream(mechanism, dim, **{"seed": 4, "dtype": torch.float32, **settings})  # type: ignore[arg-type]


def rows(noise: NoiseStream, count: int = ROUNDS) -> list[torch.Tensor]:
    return [noise.next_row() for _ in range(count)]


def name(strategy: Strategy) -> str:
    return type(strategy).__name__


@pytest.mark.parametrize("seed", range(40))
def test_its_sums_are_those_of_the_definition(seed: int) -> None:
    generator = np.random.default_rng(seed)
    highest = (70, 20, 40, 2000, 40, 40)
    remembered, fresh, outputs, columns, at, to = (int(generator.integers(0, high)) for high in highest)
    fresh, outputs = fresh + 1, outputs + 1
    factors = generator.standard_normal((outputs, remembered + fresh)).astype(np.float32)
    # Zeros anywhere: in whole rows and columns, and in a triangle.
    factors[generator.random(factors.shape) < generator.random()] = 0
    factors[:, remembered:] *= np.tri(outputs, fresh, int(generator.integers(-2, 3)), dtype=np.float32)
    memory = torch.from_numpy(generator.standard_normal((remembered, at + columns + 3), np.float32))
    z = generator.standard_normal((fresh, columns), np.float32)
    kept, released = torch.full((outputs, at + columns + 5), torch.nan), torch.full((outputs, to + columns + 5), torch.nan)
    which = generator.integers(0, 4, size=outputs)
    here = {i: kept[i] for i in range(outputs) if which[i] & 1}
    there = {i: released[i] for i in range(outputs) if which[i] & 2}
    library = KERNEL.library()
    assert library is not None
    FusedPass(library, factors, list(memory), here, there, 0.3)(z, at, to)

    inputs = np.concatenate([memory.numpy()[:, at : at + columns], z]).astype(np.float64)
    expected = np.einsum("ij,jk->ik", factors.astype(np.float64), inputs)
    # The error of a sum in any order, and of its product: Higham, Accuracy and Stability of Numerical Algorithms, eq. 3.5.
    allowed = (len(inputs) + 2) * UNIT * (np.abs(factors).astype(np.float64) @ np.abs(inputs)) + 1e-30
    for i in range(outputs):
        for to_row, first, scale, written in ((kept[i], at, 1.0, i in here), (released[i], to, 0.3, i in there)):
            part = to_row.numpy()[first : first + columns]
            if written:
                assert (np.abs(part - scale * expected[i]) <= 1.01 * scale * allowed[i]).all()
            untouched = np.delete(to_row.numpy(), np.arange(first, first + columns * written))
            assert np.isnan(untouched).all()


def test_a_sum_rounds_once_a_term_in_the_order_of_the_inputs() -> None:
    # (1 + 2^-12)² − (1 + 2^-11) is 2^-24 where the product is not rounded. And 1 is lost beside 2^25, so that the order tells.
    near = 1 + 2.0**-12
    factors = np.array([[-1, near, 0, 0, 0], [0, 0, 1, 1, 1]], np.float32)
    inputs = np.repeat(np.array([[1 + 2.0**-11], [near], [2.0**25], [1], [-(2.0**25)]], np.float32), 100, axis=1)
    out = torch.empty(2, 100)
    library = KERNEL.library()
    assert library is not None
    FusedPass(library, factors, [], {0: out[0], 1: out[1]}, {}, 1.0)(inputs, 0, None)
    assert torch.equal(out, torch.tensor([[2.0**-24], [0.0]]).expand(2, 100))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=name)
@pytest.mark.parametrize("rounds_per_pass", [None, 1, 7, 100])
def test_a_stream_with_it_makes_the_definitions_rows(strategy: Strategy, rounds_per_pass: int | None) -> None:
    noise = stream(strategy, rounds_per_pass=rounds_per_pass)
    z = torch.empty(strategy.matrix().shape[0], 50)
    for index, row in enumerate(z):
        SimulationSource(4).segments(index, 0)(row)
    expected = noise.mechanism.stddev * noising_matrix(strategy) @ z.double().numpy()
    assert noise.state_dict()["kernel"] is True
    np.testing.assert_allclose(torch.stack(rows(noise)), expected, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=name)
def test_parts_of_a_vector_are_together_the_whole_bit_for_bit(strategy: Strategy) -> None:
    whole = rows(stream(strategy, DIM), 19)
    for borders in ([0, 1, 5, 2**16, DIM], [0, 40_000, 2**16 + 3, DIM - 1, DIM]):
        parts = [stream(strategy, DIM, part=part) for part in itertools.pairwise(borders)]
        for row in whole:
            assert torch.equal(torch.cat([part.next_row() for part in parts]), row)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=name)
@pytest.mark.parametrize("rounds_per_pass", [None, 1, 6])
def test_a_stream_goes_on_bit_for_bit_as_it_was_begun(strategy: Strategy, rounds_per_pass: int | None) -> None:
    def begun(kernel: bool) -> NoiseStream:
        noise = stream(strategy, rounds_per_pass=rounds_per_pass)
        noise.load_state_dict(noise.state_dict() | {"kernel": kernel})
        return noise

    for kernel in (True, False):
        whole = rows(begun(kernel))
        for stop in (0, 1, 6, 15, 16, 17, 36, 41):
            first, second = begun(kernel), stream(strategy, rounds_per_pass=rounds_per_pass)
            rows(first, stop)
            second.load_state_dict(first.state_dict())
            assert second.state_dict()["kernel"] is kernel
            for row, again in zip(whole[stop:], rows(second, ROUNDS - stop), strict=True):
                assert torch.equal(row, again)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=name)
def test_skipped_rows_are_the_same_noise(strategy: Strategy) -> None:
    # What is given to nobody is not computed; what is remembered of it is.
    whole, noise = rows(stream(strategy)), stream(strategy)
    for target in (3, 20, 40):
        noise.skip_to(target)
    assert torch.equal(noise.next_row(), whole[40])


def test_a_state_from_before_kernels_goes_on_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = STRATEGIES[3]
    monkeypatch.setenv("HUBBUB_KERNEL", "off")
    first = stream(strategy)
    rows(first, 20)
    state = first.state_dict()
    assert state.pop("kernel") is False
    expected = rows(first, 10)
    monkeypatch.delenv("HUBBUB_KERNEL")
    second = stream(strategy)
    second.load_state_dict(state)
    for row, again in zip(expected, rows(second, 10), strict=True):
        assert torch.equal(row, again)


def test_a_state_of_a_kernel_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = stream(STRATEGIES[3])
    rows(first, 20)
    state = first.state_dict()
    monkeypatch.setenv("HUBBUB_KERNEL", "off")
    with pytest.raises(RunFolderError, match=r"kernel = True.*HUBBUB_KERNEL is off"):
        stream(STRATEGIES[3]).load_state_dict(state)
    monkeypatch.delenv("HUBBUB_KERNEL")
    with pytest.raises(RunFolderError, match="for float32 on a processor"):
        stream(STRATEGIES[3], dtype=torch.float64).load_state_dict(state)
    with pytest.raises(RunFolderError, match="kernel = 1"):
        stream(STRATEGIES[3]).load_state_dict(state | {"kernel": 1})
    monkeypatch.setenv("HUBBUB_CACHE", str(tmp_path))
    KERNEL.forget()
    with pytest.raises(RunFolderError, match="not built: 'hubbub kernel noise' builds it"):
        stream(STRATEGIES[3]).load_state_dict(state)


def test_a_stream_whose_kernel_is_switched_off_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = stream(STRATEGIES[3])
    rows(noise, 16)
    monkeypatch.setenv("HUBBUB_KERNEL", "off")
    with pytest.raises(ConfigError, match="the noise kernel is to do this, and is not used: HUBBUB_KERNEL is off"):
        noise.next_row()
    monkeypatch.delenv("HUBBUB_KERNEL")
    assert torch.equal(noise.next_row(), rows(stream(STRATEGIES[3]), 17)[16])


def test_float64_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    # A real run's noise is the same bits whatever its machine has built.
    with_one = stream(STRATEGIES[3], dtype=torch.float64)
    assert with_one.state_dict()["kernel"] is False
    made = rows(with_one)
    monkeypatch.setenv("HUBBUB_KERNEL", "off")
    for row, again in zip(made, rows(stream(STRATEGIES[3], dtype=torch.float64)), strict=True):
        assert torch.equal(row, again)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("j < to;", "j < to - 1;"),
        ("at < stop;", "at < stop - 1;"),
        ("at += COLUMNS", "at += COLUMNS + 1"),
        ("sums[i][k] * b->scale", "sums[i][k]"),
        ("sum = __builtin_fmaf(b->coefficients[j * b->outputs + i], b->inputs[j][at], sum)", "sum += b->inputs[j][at]"),
        ("(vector){0}", "(vector){1}"),
        ("used[1], used[2]", "used[1] + 1, used[2]"),
    ],
)
def test_one_that_answers_wrongly_is_not_kept(old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBBUB_CACHE", str(tmp_path))
    text = KERNEL.source.read_text()
    assert old in text
    (tmp_path / "wrong.c").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=r"sums \d+ rows of \d+ numbers wrongly: it is not used"):
        replace(KERNEL, source=tmp_path / "wrong.c").build()
    assert not list(tmp_path.rglob("*.so"))


def test_one_that_rounds_twice_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBBUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="wrongly: it is not used"):
        replace(KERNEL, flags=("-ffp-contract=off",)).build()


def test_narrower_vectors_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows(stream(STRATEGIES[3], DIM), 18)
    monkeypatch.setenv("HUBBUB_CACHE", str(tmp_path))
    narrow = replace(KERNEL, flags=(*KERNEL.flags, "-mno-avx512f"))
    narrow.build()
    monkeypatch.setattr("hubbub.noise.rows.KERNEL", narrow)
    monkeypatch.setattr("hubbub.noise.slots.KERNEL", narrow)
    for row, again in zip(expected, rows(stream(STRATEGIES[3], DIM), 18), strict=True):
        assert torch.equal(row, again)


def test_what_it_gains_is_measured() -> None:
    (gain,) = measured()
    assert "row of noise" in gain.what
    assert min(gain.kernel, gain.without) > 0
