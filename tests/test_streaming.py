"""Rows of correlated noise: the same rows, whatever the part or the restart, from keys that nobody knows."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from hubbub import Mechanism, MinSeparation
from hubbub._util.prf import bits, derive
from hubbub.errors import NoiseExhaustedError
from hubbub.mechanism.strategies import BinaryTree, Dense, Identity, Strategy, toeplitz
from hubbub.mechanism.strategies.strategy import progress
from hubbub.mechanism.utility import noising_matrix
from hubbub.noise import NoiseStream, SecureSource, Segments, SimulationSource
from hubbub.noise.sources import IncarnationSource
from small_runs import Foreign

ROUNDS = 41
STRATEGIES = [
    Identity(ROUNDS),
    BinaryTree(ROUNDS),
    toeplitz.square_root(ROUNDS, 4),
    toeplitz.square_root(ROUNDS, 20),
    Dense(np.tril(np.random.default_rng(1).uniform(size=(ROUNDS, ROUNDS))) + np.eye(ROUNDS)),
]
# More than one segment of a row, and no whole number of slices of one.
DIM = 2**16 + 2**14 + 77


def stream(strategy: Strategy, dim: int = 3, **settings: object) -> NoiseStream:
    return NoiseStream(Mechanism(strategy, MinSeparation(20, 2), 0.5), dim, seed=4, **settings)


def rows(noise: NoiseStream, count: int = ROUNDS) -> list[torch.Tensor]:
    return [noise.next_row() for _ in range(count)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: f"{type(s).__name__}{s.rounds}")
def test_rows_are_those_of_the_definition(strategy: Strategy) -> None:
    source = SimulationSource(4)
    z = np.stack([source.row(i, 3).numpy() for i in range(strategy.matrix().shape[0])])
    noise = stream(strategy)
    expected = noise.mechanism.stddev * noising_matrix(strategy) @ z
    np.testing.assert_allclose(torch.stack(rows(noise)), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: f"{type(s).__name__}{s.rounds}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts_of_a_vector_are_together_the_whole_bit_for_bit(strategy: Strategy, dtype: torch.dtype) -> None:
    whole = rows(stream(strategy, DIM, dtype=dtype), 19)
    for borders in ([0, DIM], [0, 1, 5, 2**16, DIM], [0, 40_000, 2**16 + 3, DIM - 1, DIM]):
        parts = [stream(strategy, DIM, dtype=dtype, part=part) for part in itertools.pairwise(borders)]
        for row in whole:
            assert torch.equal(torch.cat([part.next_row() for part in parts]), row)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: f"{type(s).__name__}{s.rounds}")
def test_a_stream_goes_on_bit_for_bit_from_any_round(strategy: Strategy) -> None:
    whole = rows(stream(strategy, 50))
    for stop in (0, 1, 5, 6, 15, 16, 17, 36, 40, 41):
        first = stream(strategy, 50)
        rows(first, stop)
        second = stream(strategy, 50)
        second.load_state_dict(first.state_dict())
        # Its own state, taken at once, is the one that it was given.
        third = stream(strategy, 50)
        third.load_state_dict(second.state_dict())
        assert second.drawn == first.drawn == progress(strategy, stop).drawn
        for row, again, once_more in zip(whole[stop:], rows(second, ROUNDS - stop), rows(third, ROUNDS - stop), strict=True):
            assert torch.equal(row, again)
            assert torch.equal(row, once_more)
        with pytest.raises(NoiseExhaustedError, match="rounds 0 to 40 only"):
            second.next_row()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: f"{type(s).__name__}{s.rounds}")
def test_skipped_rows_are_the_same_noise(strategy: Strategy) -> None:
    whole = rows(stream(strategy, 5))
    noise = stream(strategy, 5)
    for target in (3, 3, 20, 29):
        noise.skip_to(target)
        assert noise.drawn == progress(strategy, target).drawn
    assert torch.equal(noise.next_row(), whole[29])
    noise.skip_to(ROUNDS)
    with pytest.raises(NoiseExhaustedError):
        noise.next_row()


def test_no_row_of_z_is_drawn_early() -> None:
    drawn = []

    class Watched(SimulationSource):
        def segments(self, index: int, first: int) -> Segments:
            drawn.append(index)
            return super().segments(index, first)

    mechanism = Mechanism(toeplitz.square_root(9, 4), MinSeparation(4, 2), 1.0)
    noise = NoiseStream(mechanism, 3, source=Watched(0))
    for t in range(9):
        noise.next_row()
        assert drawn == list(range(t + 1))


def test_a_row_belongs_to_its_caller() -> None:
    # Kept rows, views of dropped ones, and rows written to: none of them is a later row, nor changes one.
    expected = [row.clone() for row in rows(stream(STRATEGIES[2], DIM), 24)]
    noise = stream(STRATEGIES[2], DIM)
    kept, views = [], []
    for t in range(24):
        row = noise.next_row()
        if t % 3 == 0:
            kept.append((t, row))
        if t % 3 == 1:
            views.append((t, row.view(-1)[5:9]))
        if t % 3 == 2:
            assert torch.equal(row, expected[t])
            row.zero_()
        del row
    for t, row in kept:
        assert torch.equal(row, expected[t])
    for t, view in views:
        assert torch.equal(view, expected[t][5:9])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: f"{type(s).__name__}{s.rounds}")
def test_a_row_that_a_thread_draws_is_given_out_once_and_the_state_waits_for_it(strategy: Strategy) -> None:
    plain, noise = rows(stream(strategy), 5), stream(strategy)
    for round_index in (0, 1):
        noise.prepare()
        assert noise.round_index == round_index
        with pytest.raises(NoiseExhaustedError, match=f"round {round_index}: its row was prepared; take it before"):
            noise.state_dict()
        with ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(noise.next_row) for _ in range(4)]
        given = [one.result() for one in asked if one.exception() is None]
        assert not noise.prepared
        # A thread that came late drew the rows after it.
        assert all(any(torch.equal(row, right) for right in plain) for row in given)
        assert len({row.numpy().tobytes() for row in given}) == len(given)
        noise = stream(strategy)
        noise.skip_to(1)
    noise.prepare()
    noise.skip_to(3)
    assert torch.equal(noise.next_row(), plain[3])


def test_a_step_that_fails_in_the_middle_of_a_row_changes_nothing() -> None:
    class Failing(SimulationSource):
        left = 10**9

        def segments(self, index: int, first: int) -> Segments:
            fill = super().segments(index, first)

            def failing(out: torch.Tensor) -> None:
                self.left -= 1
                if self.left < 0:
                    with pytest.raises(NoiseExhaustedError, match="another thread draws its row"):
                        noise.next_row()
                    raise MemoryError
                fill(out)

            return failing

    mechanism, source = Mechanism(toeplitz.square_root(ROUNDS, 4), MinSeparation(20, 2), 0.5), Failing(4)
    expected = rows(NoiseStream(mechanism, DIM, seed=4), 9)
    noise = NoiseStream(mechanism, DIM, source=source)
    for t in range(9):
        source.left = 1
        with pytest.raises(MemoryError):
            noise.next_row()
        assert (noise.round_index, noise.drawn) == (t, t)
        source.left = 10**9
        assert torch.equal(noise.next_row(), expected[t])


@pytest.mark.parametrize("length", [5, 16_384, 20_000, 24_576])
def test_segments_of_any_length_are_filled_each_to_its_end(length: int) -> None:
    class Own(SimulationSource):
        segment_length = length

        def segments(self, index: int, first: int) -> Segments:
            numbers = itertools.count(first)
            return lambda out: out.copy_(SimulationSource(1000 * index + next(numbers)).row(0, len(out)))

    dim = min(50_000, 40 * length)
    for strategy in STRATEGIES[:3]:
        mechanism = Mechanism(strategy, MinSeparation(20, 2), 0.5)
        whole = rows(NoiseStream(mechanism, dim, source=Own(0)), 3)
        parts = [NoiseStream(mechanism, dim, source=Own(0), part=part) for part in ((0, 7), (7, dim - 3), (dim - 3, dim))]
        for row in whole:
            assert torch.equal(torch.cat([part.next_row() for part in parts]), row)
            deviations = row[: dim // 5 * 5].view(5, -1).std(dim=1) / row.std()
            assert length == 5 or bool(((deviations - 1).abs() < 0.1).all())


@pytest.mark.parametrize("kept", [False, True], ids=["row", "memory"])
def test_a_step_that_makes_rows_of_another_length_is_refused_before_numbers_go_without_noise(kept: bool) -> None:
    strategy = Foreign(np.eye(4))
    strategy.step = lambda t, draw, memory: (draw(t), (draw(t)[:1],)) if kept else (draw(t)[:1], ())  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"its step makes a row of shape \(1,\) of rows of z of 3 numbers"):
        stream(strategy).next_row()


@pytest.mark.parametrize(
    "source", [SecureSource(bytes(32)), IncarnationSource([(0, bytes(32))])], ids=["secure", "incarnation"]
)
def test_rng_4_secret_rows_belong_to_one_stream(source: SecureSource) -> None:
    mechanism = Mechanism(Identity(2), MinSeparation(3, 2), 1.3)
    NoiseStream(mechanism, 3, source=source)
    with pytest.raises(NoiseExhaustedError, match=f"another stream gives out the rows of this {type(source).__name__}"):
        NoiseStream(mechanism, 3, source=source)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.int64])
def test_noise_of_less_precision_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="dtype"):
        stream(Identity(3), dtype=dtype)


def test_coefficients_beyond_a_dtype_are_refused() -> None:
    noise = NoiseStream(Mechanism(Dense([[1e-45]]), MinSeparation(1, 1), 1.0), 3, seed=0, dtype=torch.float32)
    with pytest.raises(ValueError, match="float32"):
        noise.next_row()


def test_no_two_segments_of_a_simulation_are_alike() -> None:
    source, filled = SimulationSource(0), set()
    for row, segment in ((0, 0), (0, 1), (1, 0), (2**20, 0), (0, 2**12)):
        out = torch.empty(8)
        source.segments(row, segment)(out)
        filled.add(tuple(out.tolist()))
    assert len(filled) == 5


def test_rng_6_two_real_streams_have_nothing_in_common() -> None:
    rows = [NoiseStream(Mechanism(Identity(2), MinSeparation(3, 2), 1.3), dim=1000).next_row() for _ in range(2)]
    assert not torch.isclose(rows[0], rows[1], atol=1e-9).any()


def test_rng_1_a_global_seed_does_not_reach_the_noise() -> None:
    rows = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 # what users do at the start of a script
        rows.append(NoiseStream(Mechanism(Identity(2), MinSeparation(3, 2), 1.3), dim=100).next_row())
    assert not torch.equal(rows[0], rows[1])


def test_fpt_6_the_secure_radius_reaches_beyond_what_53_bits_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.noise.sources.word_stream", lambda key, start: lambda count: np.zeros(count, dtype=np.uint64))
    # With the smallest uniform number of 53 bits the radius would end at 8.6.
    assert SecureSource(bytes(32)).row(0, 2)[0] > 11


def test_cra_17_known_rows_stay_what_they_are() -> None:
    # A change here makes every run that is under way unable to continue its noise.
    row = SecureSource(bytes(32)).row(0, 4).tolist()
    assert row == pytest.approx([-0.5227651607771238, 0.3607379426343679, 0.9866531811351936, -0.2646511181813312], rel=1e-12)


def test_rng_3_named_keys_differ_and_a_key_always_gives_the_same_bits() -> None:
    keys = {derive(bytes(32), *name) for name in (("a",), ("a", 1), ("a", "1"), ("a1",), (1,), ("1",))}
    assert len(keys) == 6
    assert (bits(bytes(32), 10) == bits(bytes(32), 20)[:10]).all()
