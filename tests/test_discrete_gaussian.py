"""Discrete Gaussian noise is exact: its law is compared with the definition, and samplers that are nearly right are caught."""

import math
from collections.abc import Callable
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from hubbub import discrete_gaussian as module
from hubbub.discrete_gaussian import MOST_STDDEV, discrete_gaussian, whole_share
from hubbub.randomness import seed_key

# Of each statistical test, when the sampler is right.
FALSE_ALARM = 1e-6
COUNT = 200_000
Sampler = Callable[[bytes, int, int], np.ndarray]


def by_definition(stddev: int, reach: int) -> np.ndarray:
    """P(x) for |x| up to ``reach``, ∝ e^{−x²/2s²}, by summing the weights of all that count."""
    far = np.arange(-60 * stddev, 60 * stddev + 1)
    whole = math.fsum(np.exp(-(far**2) / (2 * stddev**2)).tolist())
    x = np.arange(-reach, reach + 1)
    return np.exp(-(x**2) / (2 * stddev**2)) / whole


def p_value(sampler: Sampler, stddev: int, count: int = COUNT) -> float:
    """Of the chi-square test of a sampler against the definition, its tails taken together."""
    noise = sampler(seed_key(stddev), stddev, count)
    reach = math.ceil(4 * stddev)
    inside = by_definition(stddev, reach)
    expected = count * np.append(inside, 1 - inside.sum())
    within = noise[np.abs(noise) <= reach]
    observed = np.append(np.bincount(within + reach, minlength=2 * reach + 1), count - len(within))
    kept = expected >= 10
    expected, observed = np.append(expected[kept], expected[~kept].sum()), np.append(observed[kept], observed[~kept].sum())
    # A class that cannot be is empty.
    possible = expected > 0
    return float(stats.chisquare(observed[possible], expected[possible] * observed.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize("stddev", [1, 2, 3, 5, 40])
def test_every_whole_number_comes_as_often_as_the_definition_says(stddev: int) -> None:
    assert p_value(discrete_gaussian, stddev) > FALSE_ALARM


def rounded_normal(key: bytes, stddev: int, count: int) -> np.ndarray:
    return np.rint(np.random.default_rng(key[0]).normal(0, stddev, count)).astype(np.int64)


def test_a_rounded_normal_is_told_from_it_where_the_steps_are_large() -> None:
    assert p_value(rounded_normal, 1) < FALSE_ALARM
    assert p_value(rounded_normal, 2) < FALSE_ALARM


def one_place_late(words: Callable[[int], np.ndarray], p: np.ndarray, m: int) -> np.ndarray:
    """p/(m + q) in the place of p/m: the harmonic race begins at 2."""
    return _event(words, p, m + 1)


_event = module._event


@pytest.mark.parametrize(
    ("part", "broken"), [("_far", lambda words, b, quotient, s: np.ones(len(b), dtype=bool)), ("_event", one_place_late)]
)
def test_a_sampler_with_one_part_broken_is_caught(part: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    patched: ModuleType = module
    monkeypatch.setattr(patched, part, broken)
    assert p_value(discrete_gaussian, 2) < FALSE_ALARM


@pytest.mark.parametrize("stddev", [2**12, 2**24, MOST_STDDEV])
def test_of_many_steps_it_is_the_normal_law(stddev: int) -> None:
    noise = discrete_gaussian(seed_key(7), stddev, COUNT) / stddev
    # The two laws differ by less than 1/stddev, which this many samples do not see.
    assert stats.kstest(noise, "norm").pvalue > FALSE_ALARM
    # Five standard errors: false alarm 6e-7 each.
    assert abs(noise.mean()) < 5 / math.sqrt(COUNT)
    assert abs((noise**2).mean() - 1) < 5 * math.sqrt(2 / COUNT)
    assert abs((noise**3).mean()) < 5 * math.sqrt(15 / COUNT)
    assert abs((noise**4).mean() - 3) < 5 * math.sqrt(96 / COUNT)
    # The last bits are coins.
    whole = np.abs(discrete_gaussian(seed_key(7), stddev, COUNT))
    for bit in range(4):
        assert abs(int(((whole >> bit) & 1).sum()) - COUNT / 2) < 5 * math.sqrt(COUNT) / 2


@pytest.mark.parametrize("stddev", [1, 2**24])
def test_its_tails_are_as_heavy_as_they_must_be(stddev: int) -> None:
    count = 2_000_000
    far = int((np.abs(discrete_gaussian(seed_key(3), stddev, count)) >= 4 * stddev).sum())
    x = np.arange(4, 60) if stddev == 1 else None
    chance = 2 * float(by_definition(1, 59)[59 + 4 :].sum()) if x is not None else 2 * float(stats.norm.sf(4))
    # Two-sided, of a binomial law.
    assert stats.binomtest(far, count, chance).pvalue > FALSE_ALARM


def test_the_same_key_gives_the_same_noise_and_another_key_other_noise() -> None:
    one, again = (discrete_gaussian(seed_key(1), 1000, 5000) for _ in range(2))
    other = discrete_gaussian(seed_key(2), 1000, 5000)
    assert (one == again).all()
    # Of 5000 pairs about one in 3500 is equal.
    assert (one == other).sum() < 15
    # Correlation of independent samples is N(0, 1/5000): five standard errors.
    assert abs(float(np.corrcoef(one, other)[0, 1])) < 5 / math.sqrt(5000)


def test_one_sample_does_not_hang_on_the_next() -> None:
    noise = discrete_gaussian(seed_key(4), 2**20, COUNT) / 2**20
    for lag in (1, 2, 17):
        assert abs(float(np.corrcoef(noise[:-lag], noise[lag:])[0, 1])) < 5 / math.sqrt(COUNT)


def test_no_noise_is_an_empty_array() -> None:
    assert discrete_gaussian(seed_key(0), 1, 0).shape == (0,)


@pytest.mark.parametrize("stddev", [0, -1, MOST_STDDEV + 1])
def test_a_standard_deviation_that_cannot_be_drawn_exactly_is_refused(stddev: int) -> None:
    with pytest.raises(ValueError, match=r"stddev = "):
        discrete_gaussian(seed_key(0), stddev, 1)


def test_a_standard_deviation_that_is_no_whole_number_and_a_short_key_are_refused() -> None:
    with pytest.raises(TypeError, match=r"stddev = 1\.5: must be a whole number"):
        discrete_gaussian(seed_key(0), 1.5, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be 32 bytes"):
        discrete_gaussian(b"short", 1, 1)


def test_a_key_that_is_not_random_is_refused_and_does_not_loop_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(key: bytes, start: int = 0) -> Callable[[int], np.ndarray]:
        return lambda count: np.zeros(count, dtype="<i8")

    monkeypatch.setattr(module, "word_stream", stuck)
    with pytest.raises(OverflowError, match="the key is not random"):
        discrete_gaussian(seed_key(0), MOST_STDDEV, 1)


def test_a_word_that_belongs_to_no_number_is_drawn_again() -> None:
    """2⁶⁴ is no multiple of 3: its last word would be a fourth number, or one of the three more often than the others."""
    given = [np.array([2**64 - 1, 5], dtype=np.uint64), np.array([2**64 - 2], dtype=np.uint64)]
    assert module._below(lambda count: given.pop(0), 3, 2).tolist() == [2, 0]
    assert given == []


def test_a_share_is_the_least_whole_number_that_suffices() -> None:
    for stddev in (Fraction(1, 3), Fraction(7), Fraction(10**6, 7), Fraction(2**27)):
        for shares in (1, 2, 3, 10, 999, 10**9):
            share = whole_share(stddev, shares)
            assert share**2 * shares >= stddev**2 > (share - 1) ** 2 * shares
    with pytest.raises(ValueError, match=r"is at most 2\^28"):
        whole_share(Fraction(2**28 + 1), 1)
