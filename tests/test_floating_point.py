"""What the last bits of a release say about who took part: in floating point nearly all, on the lattice nothing.

The game, its adversary and its sources: ``twins.membership``.
"""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub import Mechanism, training
from hubbub.errors import NoiseExhaustedError
from hubbub.mechanism.participation import every_round
from hubbub.mechanism.strategies import Identity, Strategy, toeplitz
from hubbub.noise import NoiseSource, NoiseStream, SecureSource, SimulationSource, sources
from hubbub.noise.lattice import Lattice
from twins.membership import Score, certain_call, likely_call

# A statistical test below fails by chance once in a million runs; its seed is fixed, so it does not.
FALSE_ALARM = 1e-6
DIM, TRIALS, CLIP_NORM = 1000, 200, 0.55
LATTICE = Lattice(CLIP_NORM)
# How long the sum of all other clients is, in clip norms, and how much noise there is.
SCALES, NOISE = (0.2, 1, 5), (0.3, 1.0, 3.0)
SETTINGS = [(scale, z) for z in NOISE for scale in SCALES]


def updates(scale: float) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The other clients' updates, whose sum is about ``scale`` clip norms long, and the target's; all are to be clipped."""
    generator = torch.Generator().manual_seed(int(10 * scale))
    others = [torch.randn(DIM, generator=generator, dtype=torch.float64) for _ in range(max(1, round(scale**2)))]
    if scale < 1:
        others = [training.clip(update, scale * CLIP_NORM)[0] for update in others]
    return others, torch.randn(DIM, generator=generator, dtype=torch.float64)


def noise_of(z: float, source: NoiseSource, strategy: Strategy | None = None, trials: int = TRIALS) -> Iterator[torch.Tensor]:
    mechanism = Mechanism(strategy or Identity(trials), every_round(trials), z)
    stream = NoiseStream(mechanism, DIM, source=source)
    return (stream.next_row() * CLIP_NORM for _ in range(trials))


def lattice_sums(scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum without and with the target, in steps, ``(dim,)`` int64."""
    others, target = updates(scale)
    without = torch.stack([LATTICE.encode(update)[0] for update in others]).sum(dim=0)
    return without, without + LATTICE.encode(target)[0]


def numpy_noise(z: float) -> Iterator[torch.Tensor]:
    generator = np.random.default_rng(5)
    return (torch.from_numpy(generator.normal(scale=z * CLIP_NORM, size=DIM)) for _ in range(TRIALS))


PLAIN_NOISE: dict[str, Callable[[float], Iterator[torch.Tensor]]] = {
    "simulation": lambda z: noise_of(z, SimulationSource(0)),
    "numpy": numpy_noise,
    # The addition betrays the sum, whatever the noise.
    "secure": lambda z: noise_of(z, SecureSource(bytes(32))),
}


@pytest.mark.parametrize("noise", PLAIN_NOISE.values(), ids=PLAIN_NOISE)
def test_who_sees_a_sum_in_floating_point_knows_who_took_part(noise: Callable[[float], Iterator[torch.Tensor]]) -> None:
    score = Score()
    for scale, z in SETTINGS:
        # The sum without and with the target, in float64, added in turn as a population does.
        others, target = updates(scale)
        without = torch.zeros(DIM, dtype=torch.float64)
        for update in others:
            without = without + training.clip(update, CLIP_NORM)[0]
        sums = without, without + training.clip(target, CLIP_NORM)[0]
        for trial, row in enumerate(noise(z)):
            truth = trial % 2
            score.count(certain_call(training.PlainSum(sums[truth], {}).open(row), *sums), truth)
    assert score.right + score.undecided == len(SETTINGS) * TRIALS == 1800
    assert score.right >= 0.99 * 1800


@pytest.mark.parametrize("strategy", [Identity(TRIALS), toeplitz.square_root(TRIALS, 4)], ids=lambda s: type(s).__name__)
def test_fpt_1_no_bit_of_a_release_on_the_lattice_says_who_took_part(strategy: Strategy) -> None:
    score = Score()
    for number, (scale, z) in enumerate(SETTINGS):
        totals = lattice_sums(scale)
        integers = [total.to(torch.float64) for total in totals]
        known = [total * LATTICE.step for total in integers]
        for trial, row in enumerate(noise_of(z, SecureSource(bytes([number] * 32)), strategy)):
            truth = trial % 2
            y = training.LatticeSum(totals[truth], LATTICE, {}).open(row)
            assert LATTICE.holds(y)
            score.count(certain_call(y, *known), truth)
            # Neither on the grid of whole numbers.
            score.count(certain_call(y / LATTICE.step, *integers), truth)
    assert score == Score(undecided=2 * 1800)


@pytest.mark.parametrize("trials", [TRIALS, pytest.param(20 * TRIALS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("z", NOISE)
def test_fpt_1_the_likeliest_guess_on_the_lattice_is_right_as_often_as_the_noise_allows(z: float, trials: int) -> None:
    score = Score()
    for number, scale in enumerate(SCALES):
        totals = lattice_sums(scale)
        known = [total.double() * LATTICE.step for total in totals]
        # What hides the target is its norm after it was encoded: the clip norm, less the rounding that is kept free.
        assert CLIP_NORM * (1 - 1e-5) < float((known[1] - known[0]).norm()) <= CLIP_NORM
        for trial, row in enumerate(noise_of(z, SecureSource(bytes([100 + number] * 32)), trials=trials)):
            truth = trial % 2
            score.count(likely_call(training.LatticeSum(totals[truth], LATTICE, {}).open(row), *known), truth)
    expected, trials = stats.norm.cdf(1 / (2 * z)), trials * len(SCALES)
    # Three deviations: with another key it would fail once in 370 times, with this one never.
    assert abs(score.right / trials - expected) < 3 * math.sqrt(expected * (1 - expected) / trials)


def population(lattice: bool, target_has_data: bool) -> training.SimulatedPopulation:
    """Five clients; the first is the target."""
    generator = torch.Generator().manual_seed(1)
    examples = [(torch.randn(4, 99, generator=generator), torch.randint(10, (4,), generator=generator)) for _ in range(5)]
    if not target_has_data:
        examples[0] = (examples[0][0][:0], examples[0][1][:0])
    local = training.LocalTraining(batch_size=2, learning_rate=0.5)
    return training.SimulatedPopulation(examples, F.cross_entropy, local, lattice=lattice)


def attacked(strategy: Strategy, noise: str, folder: Path) -> Score:
    """The score over two whole runs, with the target's data and without, of whoever sees each release in the folder."""
    score, lattice = Score(), noise == "secure"
    adversary = [population(lattice, target_has_data=bool(guess)) for guess in (0, 1)]
    mechanism = Mechanism(strategy, every_round(strategy.rounds), 1.0)
    plan = training.RunPlan(strategy.rounds, mechanism.participation, 5, mechanism, clip_norm=CLIP_NORM, noise=noise)
    for truth in (0, 1):
        torch.manual_seed(0)
        model = nn.Linear(99, 10)
        public = deepcopy(model)
        store = training.RunStore(folder / str(truth))
        for result in training.train(plan, population(lattice, target_has_data=bool(truth)), model, store):
            t = result.round_index
            y = store.parse_release(t, store.release_content(t))
            assert (y.dtype, y.shape) == (torch.float64, (DIM,))
            sums = [clients.collect(range(5), public, CLIP_NORM, t).open(None) for clients in adversary]
            score.count(certain_call(y, *sums), truth)
            public = deepcopy(model)
    return score


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Identity(20), toeplitz.square_root(20, 4)], ids=lambda s: type(s).__name__)
def test_no_secure_release_says_who_took_part_and_nearly_every_simulated_one_does(strategy: Strategy, tmp_path: Path) -> None:
    assert attacked(strategy, "secure", tmp_path / "secure") == Score(undecided=40)
    score = attacked(strategy, "simulation", tmp_path / "simulation")
    assert score.wrong == 0
    assert score.right >= 38


@pytest.mark.parametrize("server", [training.ServerOptimizer(), training.ServerOptimizer("fedadam", 0.1)], ids=lambda s: s.name)
def test_fpt_5_a_model_is_made_of_the_one_before_and_of_the_release_alone(
    server: training.ServerOptimizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two populations, of other data, and the releases of the first for both: no bit of any weight tells them apart.
    strategy = toeplitz.square_root(5, 2)
    mechanism = Mechanism(strategy, every_round(5), 1.0)
    plan = training.RunPlan(5, mechanism.participation, 5, mechanism, clip_norm=CLIP_NORM, server=server)
    right, released = training.LatticeSum.open, list[torch.Tensor]()
    models: list[list[torch.Tensor]] = [[], []]
    for learnt, has_data in zip(models, (True, False), strict=True):

        def opened(total: training.LatticeSum, row: torch.Tensor | None, learnt: list[torch.Tensor] = learnt) -> torch.Tensor:
            if learnt is models[0]:
                released.append(right(total, row))
            return released[len(learnt)]

        monkeypatch.setattr(training.LatticeSum, "open", opened)
        torch.manual_seed(0)
        model, store = nn.Linear(99, 10), training.RunStore(tmp_path / str(has_data))
        for result in training.train(plan, population(lattice=True, target_has_data=has_data), model, store):
            t = result.round_index
            kept = store.parse_release(t, store.release_content(t))
            assert torch.equal(kept, released[t])
            assert LATTICE.holds(kept)
            learnt.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(torch.stack(models[0]), torch.stack(models[1]))
    assert len(released) == 5


def frequencies_fit(whole: torch.Tensor, deviation: float) -> bool:
    """Whether whole numbers are distributed as a Gaussian of this deviation, rounded; and all within 3 deviations occur."""
    far = math.ceil(6 * deviation) + 1
    counts = np.bincount((whole.clamp(-far, far) + far).numpy(), minlength=2 * far + 1)
    edges = np.concatenate([[-np.inf], np.arange(-far, far) + 0.5, [np.inf]])
    expected = len(whole) * np.diff(stats.norm.cdf(edges / deviation))
    # Rare numbers count together, so that chi-squared holds.
    common = expected > 20
    pooled = [np.append(part[common], part[~common].sum()) for part in (counts, expected)]
    near = slice(far - int(3 * deviation), far + int(3 * deviation) + 1)
    return bool((counts[near] > 0).all()) and stats.chisquare(*pooled).pvalue > FALSE_ALARM


@pytest.mark.parametrize("deviation", [0.7, 3.0, 300.0])
def test_fpt_2_every_whole_number_is_released_as_often_as_rounded_noise_says(deviation: float) -> None:
    lattice, total, n = Lattice(1.0), 12345, 2 * 10**6
    z = SecureSource(bytes(32)).row(int(deviation), n)

    def released(z: torch.Tensor) -> torch.Tensor:
        y = lattice.release(torch.full((n,), total), z * (deviation * lattice.step))
        return (y / lattice.step).to(torch.int64) - total

    assert frequencies_fit(released(z), deviation)
    # A broken twin: noise that is 2% low.
    assert not frequencies_fit(released(0.98 * z), deviation)


@pytest.mark.parametrize("deviation", [0.7, 3.0, 300.0])
def test_fpt_2_all_whole_numbers_within_8_deviations_can_be_released(deviation: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not by chance, which is below 1e-15 at the ends: for each there are random words that lead to it.
    lattice, far = Lattice(1.0), math.ceil(8 * deviation)
    wanted = torch.arange(-far, far + 1)
    z = (wanted / deviation).tolist()
    # Of which the sampler makes these numbers; the first half of a row is made of cosines.
    uniform = [Fraction(math.exp(-(number**2) / 2)) * 2**106 for number in z]
    coarse, fine = zip(*(divmod(min(int(number), 2**106 - 1), 2**53) for number in uniform), strict=True)
    turn = [0 if number >= 0 else 2**52 for number in z]
    words = np.array([*coarse, *fine, *turn], dtype=np.uint64) << np.uint64(11)
    monkeypatch.setattr(sources, "word_stream", lambda key, start: lambda count: words.copy())
    z = SecureSource(bytes(32)).row(0, 2 * len(wanted))[: len(wanted)]
    for total in (0, 12345, -lattice.radius):
        y = lattice.release(torch.full_like(wanted, total), z * (deviation * lattice.step))
        assert torch.equal((y / lattice.step).to(torch.int64) - total, wanted)


def test_fpt_1_the_last_bits_of_a_release_are_even_whatever_the_sum_and_not_with_noise_of_fewer_bits() -> None:
    lattice, n = Lattice(1.0), 2**20

    def pvalue(z: torch.Tensor, total: int) -> float:
        steps = (lattice.release(torch.full((n,), total), z) / lattice.step).to(torch.int64)
        return stats.chisquare(torch.bincount(steps & 255, minlength=256).numpy()).pvalue

    z = SecureSource(bytes(32)).row(1, n)
    for total in (0, 1, 2**24):
        assert pvalue(z, total) > FALSE_ALARM
        assert pvalue(z * 8e6, total) > FALSE_ALARM
        for coarse in (z.to(torch.float32), z.to(torch.float16)):
            assert pvalue(coarse.to(torch.float64), total) < FALSE_ALARM
            with pytest.raises(ValueError, match=r"must be torch\.float64"):
                pvalue(coarse, total)


def test_num_12_noise_beyond_exact_whole_numbers_is_refused() -> None:
    total = torch.zeros(2, dtype=torch.int64)
    largest = 2.0**52 * LATTICE.step
    assert LATTICE.holds(LATTICE.release(total + 2**52, torch.tensor([largest, -largest]).double()))
    for beyond in (math.nextafter(largest, math.inf) * 2, math.inf, math.nan):
        with pytest.raises(NoiseExhaustedError):
            LATTICE.release(total, torch.tensor([0.0, beyond], dtype=torch.float64))


def test_fpt_3_a_thousand_orders_of_the_clients_give_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(3)
    raw = torch.randn(20, DIM, generator=generator, dtype=torch.float64)
    whole = torch.stack([LATTICE.encode(update)[0] for update in raw])
    plain = torch.stack([training.clip(update, CLIP_NORM)[0] for update in raw])
    digests: tuple[set[str], set[str]] = (set(), set())
    for _ in range(1000):
        order = torch.randperm(20, generator=generator).tolist()
        for found, rows, lattice in zip(digests, (whole, plain), (LATTICE, None), strict=True):
            total = torch.zeros_like(rows[0])
            for client in order:
                total += rows[client]
            found.add((training.LatticeSum(total, lattice, {}) if lattice else training.PlainSum(total, {})).digest(bytes(32)))
    assert len(digests[0]) == 1
    assert len(digests[1]) > 900


def norms_and_steps(update: torch.Tensor, lattice: Lattice) -> tuple[int, list[int]]:
    """The squared norm of an encoded update, in Python's unbounded integers."""
    steps = lattice.encode(update)[0].tolist()
    return sum(q * q for q in steps), steps


def half_steps(lattice: Lattice, dim: int) -> torch.Tensor:
    """Odd whole numbers and a half, which all round up; their norm is as near below the clip norm as such numbers allow."""
    level = math.floor(lattice.radius / math.sqrt(dim) - 0.5)
    level += level % 2 - 0.5
    while dim * level**2 > lattice.radius**2:
        level -= 2
    raised = int((lattice.radius**2 - dim * level**2) // (4 * level + 4))
    steps = torch.full((dim,), level, dtype=torch.float64)
    steps[:raised] += 2
    return steps * lattice.step


@pytest.mark.parametrize(
    "clip_norm", [1.0, CLIP_NORM, 1e-12, 1e12, math.nextafter(1, 0), math.nextafter(1, 2), math.nextafter(2, 0), 1 / 3]
)
def test_fpt_4_the_worst_updates_are_no_longer_than_the_clip_norm_in_exact_integers(clip_norm: float) -> None:
    lattice, c = Lattice(clip_norm), clip_norm
    assert Fraction(lattice.radius) * Fraction(lattice.step) <= Fraction(clip_norm)
    gaussian = torch.randn(DIM, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    worst = {
        **{f"half steps, {dim}": half_steps(lattice, dim) for dim in (1, 2, 1000, 50_001)},
        "the clip norm on one axis": torch.tensor([0, c, 0], dtype=torch.float64),
        "the clip norm on 1,024 axes": torch.full((1024,), -c / 32, dtype=torch.float64),
        "the clip norm, by Pythagoras": torch.tensor([0.6 * c, -0.8 * c], dtype=torch.float64),
        "the clip norm, anywhere": gaussian * (c / float(gaussian.norm())),
        "a bit more": gaussian * (math.nextafter(c, math.inf) / float(gaussian.norm())),
        "float32, 1e30": torch.full((DIM,), 1e30),
        "float32, the largest": torch.full((DIM,), -torch.finfo(torch.float32).max),
        "float64, the largest": torch.full((DIM,), torch.finfo(torch.float64).max, dtype=torch.float64),
        "float32, denormal": torch.full((DIM,), 1e-45),
        "float64, denormal": torch.full((DIM,), 5e-324, dtype=torch.float64),
        "denormal beside huge": torch.tensor([5e-324, -1e308, 1e308], dtype=torch.float64),
        "float16": gaussian.to(torch.float16),
        "bfloat16": (1e20 * gaussian).to(torch.bfloat16),
        "zeros": torch.zeros(DIM),
        "none": torch.zeros(0),
    }
    for name, update in worst.items():
        squared, steps = norms_and_steps(update, lattice)
        assert squared <= lattice.radius**2, name
        assert len(steps) == len(update)
    # A broken twin, which clips, then rounds, and leaves no room for the rounding, is caught.
    update = half_steps(lattice, 1000)
    scale = min(1.0, clip_norm / float(update.norm()))
    broken = (update * scale / lattice.step).round().to(torch.int64).tolist()
    assert sum(q * q for q in broken) > lattice.radius**2


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=30),
    st.floats(1e-12, 1e12),
    st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
)
def test_num_10_no_update_is_longer_than_the_clip_norm(values: list[float], clip_norm: float, dtype: torch.dtype) -> None:
    lattice, update = Lattice(clip_norm), torch.tensor(values, dtype=torch.float64).to(dtype)
    squared, steps = norms_and_steps(update, lattice)
    assert squared <= lattice.radius**2
    encoded, clipped = lattice.encode(update)
    assert encoded.dtype == torch.int64
    if not torch.isfinite(update).all():
        assert clipped
        assert not any(steps)
    elif not clipped:
        # Each coordinate moves by half a step at most, so the update by half a step times the root of its dimension.
        for value, q in zip(update.tolist(), steps, strict=True):
            assert abs(Fraction(q) * Fraction(lattice.step) - Fraction(value)) <= Fraction(lattice.step) / 2


def test_what_is_short_is_rounded_and_what_is_long_keeps_its_direction_and_nearly_its_norm() -> None:
    gaussian = torch.randn(DIM, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    short = gaussian * (0.99 * CLIP_NORM / float(gaussian.norm()))
    steps, clipped = LATTICE.encode(short)
    assert not clipped
    assert float((steps * LATTICE.step - short).norm()) <= math.sqrt(DIM) / 2 * LATTICE.step
    steps, clipped = LATTICE.encode(1e30 * gaussian)
    assert clipped
    # Room for the rounding, and the rounding itself.
    assert float(steps.double().norm()) >= LATTICE.radius - math.sqrt(DIM) - 1
    direction = gaussian / gaussian.norm() * steps.double().norm()
    assert float((steps - direction).norm()) <= math.sqrt(DIM)


@pytest.mark.parametrize("hostile", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_num_7_num_8_an_update_that_is_not_finite_counts_as_zero(hostile: float, dtype: torch.dtype) -> None:
    update = torch.full((DIM,), 0.01, dtype=dtype)
    update[17] = hostile
    steps, clipped = LATTICE.encode(update)
    assert clipped
    assert not steps.any()
