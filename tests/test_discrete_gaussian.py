"""Discrete Gaussian noise: its law against the definition, exactly and by chance; the same work whatever is drawn."""

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from types import FrameType

import numpy as np
import pytest
from scipy import stats

from hubbub._util.prf import seed_key
from hubbub.mechanism import MOST_STDDEV, whole_share
from hubbub.mechanism import discrete_gaussian as module
from hubbub.mechanism.discrete_gaussian import discrete_gaussian, statistical_distance

# Of each statistical test, when the sampler is right.
FALSE_ALARM = 1e-6
COUNT = 200_000
Sampler = Callable[[bytes, int, int], np.ndarray]


@pytest.fixture
def anew() -> Iterator[None]:
    """Tables of what a test has changed, which no other test finds."""
    module._table.cache_clear()
    yield
    module._table.cache_clear()


# By chance, with fixed seeds.


def p_value(sampler: Sampler, stddev: int, count: int = COUNT) -> float:
    """Of the chi-square test of a sampler against the definition, its tails taken together."""
    noise = sampler(seed_key(stddev), stddev, count)
    reach = math.ceil(4 * stddev)
    # P(x) ∝ e^{−x²/2s²}, by summing the weights of all that count.
    far, x = np.arange(-60 * stddev, 60 * stddev + 1), np.arange(-reach, reach + 1)
    inside = np.exp(-(x**2) / (2 * stddev**2)) / math.fsum(np.exp(-(far**2) / (2 * stddev**2)).tolist())
    expected = count * np.append(inside, 1 - inside.sum())
    within = noise[np.abs(noise) <= reach]
    observed = np.append(np.bincount(within + reach, minlength=2 * reach + 1), count - len(within))
    kept = expected >= 10
    expected, observed = np.append(expected[kept], expected[~kept].sum()), np.append(observed[kept], observed[~kept].sum())
    # A class that cannot be is empty.
    possible = expected > 0
    return float(stats.chisquare(observed[possible], expected[possible] * observed.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize("stddev", [1, 2, 3, 5, 40, 140, 141, 400, 2000])
def test_every_whole_number_comes_as_often_as_the_definition_says(stddev: int) -> None:
    assert p_value(discrete_gaussian, stddev) > FALSE_ALARM


_aliased, _ladder = module._aliased, module._ladder


def next_alias(masses: list[int]) -> tuple[list[int], list[int]]:
    thresholds, aliases = _aliased(masses)
    return thresholds, [min(alias + 1, len(masses) - 1) for alias in aliases]


def next_threshold(masses: list[int]) -> tuple[list[int], list[int]]:
    thresholds, aliases = _aliased(masses)
    return [*thresholds[1:], thresholds[0]], aliases


def nothing_taken_off(variance: Fraction) -> list[Fraction]:
    *fine, last = _ladder(variance)
    return [*fine, last + Fraction(module._FINE, module._COARSE) ** 2]


@pytest.mark.parametrize(
    ("part", "broken", "stddev"),
    [("_aliased", next_alias, 3), ("_aliased", next_threshold, 3), ("_ladder", nothing_taken_off, 141), ("_COARSE", 14, 400)],
)
@pytest.mark.usefixtures("anew")
def test_a_broken_sampler_is_caught(part: str, broken: object, stddev: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = _ladder(Fraction(stddev**2))
    monkeypatch.setattr(module, part, broken)
    if part == "_COARSE":
        # The steps alone, not the variances that go with them.
        monkeypatch.setattr(module, "_ladder", lambda variance: known)
    assert p_value(discrete_gaussian, stddev) < FALSE_ALARM


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


# Exactly.


def law_of(table: module._Table) -> dict[int, int]:
    """How many of the words of 704 bits give each value, by where it changes within each bucket."""
    share, law = 1 << (module._BITS - 64 + table.shift), dict.fromkeys(range(-table.zero, table.zero), 0)
    for bucket, threshold in enumerate(table.thresholds):
        for start, end in ((0, threshold), (threshold, share)):
            if start < end:
                first, last = (table.value(bucket << table.shift | at >> 640, at & (2**640 - 1)) for at in (start, end - 1))
                assert first == last
                law[first] += end - start
    return law


def distance(law: dict[int, int], whole: int, variance: Fraction, seen: int | None = None) -> float:
    """In total variation from the discrete Gaussian of a variance, each weight by its own exponential, to 210 digits.

    With ``seen`` from below: of the numbers up to it alone. What the definition has beyond 40 deviations, less than e^−790, is
    left out.
    """
    reach = math.ceil(40 * math.sqrt(variance))
    with localcontext() as context:
        context.prec = 210
        scale = -Decimal(variance.denominator) / (2 * Decimal(variance.numerator))
        right = [(scale * (x * x)).exp() for x in range(reach + 1)]
        total, one = 2 * sum(right) - right[0], Decimal(whole)
        far = min(reach, reach if seen is None else seen)
        near = sum(abs(law.get(x, 0) / one - right[abs(x)] / total) for x in range(-far, far + 1))
        rest = sum(mass for x, mass in law.items() if abs(x) > reach) / one
        return float((near + rest) / 2)


@pytest.mark.parametrize("variance", [Fraction(1), Fraction(9), Fraction(8123, 100), Fraction(1, 7)])
def test_a_table_is_as_near_to_the_discrete_gaussian_as_is_stated(variance: Fraction) -> None:
    law = law_of(module._table(variance))
    assert sum(law.values()) == 2**module._BITS
    assert distance(law, 2**module._BITS, variance) < statistical_distance(1) / module._MOST_TABLES


def summed(stddev: int, seen: int = 10**4) -> dict[int, int]:
    """The exact law of a number of two tables, of numbers up to ``seen``."""
    fine, coarse = (law_of(module._table(variance)) for variance in module._ladder(Fraction(stddev**2)))
    law, row = np.zeros(2 * seen + 1, dtype=object), np.array(list(fine.values()), dtype=object)
    for y, mass in coarse.items():
        start = min(fine) + module._COARSE * y + seen
        kept = slice(max(start, 0), max(min(start + len(row), len(law)), 0))
        if mass and kept.start < kept.stop:
            law[kept] += row[kept.start - start : kept.stop - start] * mass
    return {x: int(mass) for x, mass in enumerate(law, -seen)}


@pytest.mark.slow
def test_a_sum_of_two_tables_is_as_near_as_is_stated_and_not_much_nearer() -> None:
    """The least variance that takes two tables is the worst of all."""
    law = summed(141)
    assert sum(law.values()) == 4**module._BITS
    found = distance(law, 4**module._BITS, Fraction(141**2))
    assert statistical_distance(1) / 1e3 < found < statistical_distance(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "value", "found"),
    [
        ("_COARSE", 14, lambda: distance(summed(141, 200), 4**module._BITS, Fraction(141**2), seen=200)),
        # Its J is 16 deviations without a step to spare.
        ("_REACH", 16, lambda: distance(law_of(module._table(Fraction(16))), 2**module._BITS, Fraction(16))),
    ],
)
@pytest.mark.usefixtures("anew")
def test_one_too_coarse_or_too_short_is_farther_than_was_stated_and_not_farther_than_is_stated_of_it(
    part: str, value: int, found: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = statistical_distance(1)
    monkeypatch.setattr(module, part, value)
    true = found()
    assert before < true < statistical_distance(1) < 1e3 * true


@pytest.mark.parametrize("settled", [0, 1, 3])
def test_the_distance_holds_the_chance_of_more_ties_than_are_settled(settled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLED", settled)
    # The widest table has 2¹³ buckets, so that each word has one rest in 2⁵¹ that ties.
    for numbers in (settled + 1, 1000, module._CHUNK):
        chance = math.comb(numbers, settled + 1) * 2.0 ** (-51 * (settled + 1)) * (1 - 1e-9)
        assert 7 * chance < statistical_distance(numbers)
    assert statistical_distance(module._CHUNK) < 7.1 * chance


def test_the_ladders_of_all_deviations_keep_to_what_the_distance_counts_on() -> None:
    for s in (1, 139, 140, 141, 142, 1000, 1825, 1826, 30_000, *(2**k + d for k in range(8, 28) for d in (-1, 0, 1)), 2**28):
        variances = module._ladder(Fraction(s * s))
        assert len(variances) <= module._MOST_TABLES
        assert max(variances) <= 140**2
        assert sum(variance * 13 ** (2 * i) for i, variance in enumerate(variances)) == s * s
        # What is summed with the finer of two has, with it, more than the widest table.
        rest = list(itertools.accumulate(reversed(variances), lambda whole, fine: fine + 169 * whole))
        assert all(whole > 140**2 for whole in rest[1:])
    for variance in (Fraction(1, 1000), Fraction(1), Fraction(4900), Fraction(140**2)):
        assert module._table(variance).zero >= 29.25 * math.sqrt(variance)


def test_the_distance_grows_with_the_numbers_and_is_nothing_at_any_size_that_is_allowed() -> None:
    assert statistical_distance(0) == 0
    assert statistical_distance(7) == pytest.approx(7 * statistical_distance(1))
    # 10⁹ shares of 10¹² numbers in 10⁹ rounds.
    assert 0 < statistical_distance(10**30) < 1e-150
    with pytest.raises(ValueError, match="numbers = -1"):
        statistical_distance(-1)


# Words that come once in 2⁵¹.


def drawn(words: list[int], more: list[int], table: module._Table) -> list[int]:
    """Numbers of words, and of what comes next, which settles the last ties first."""
    filled = more + [0] * (module._SETTLED - len(more))
    # 640 bits each, as words of this processor, as their bytes are read.
    bits = np.frombuffer(b"".join(number.to_bytes(80, "big") for number in filled), dtype="<u8")
    left = [np.asarray(words, dtype=np.uint64), bits]

    def scripted(number: int) -> np.ndarray:
        assert number == left[0].size
        return left.pop(0)

    return module._drawn(scripted, table, len(words)).tolist()


TABLE = module._table(Fraction(9))
# Of which the threshold is somewhere in the middle.
BUCKETS = [b for b, top in enumerate(TABLE.tops.tolist()) if 0 < top < 2**TABLE.shift - 1]


def test_a_word_below_the_threshold_gives_the_buckets_own_value_and_one_above_its_alias() -> None:
    for bucket in (BUCKETS[0], BUCKETS[-1], BUCKETS[len(BUCKETS) // 2]):
        tie = bucket << TABLE.shift | int(TABLE.tops[bucket])
        own, other = bucket - TABLE.zero, int(TABLE.aliases[bucket])
        assert own != other
        assert drawn([tie - 1, tie + 1], [], TABLE) == [own, other]


def test_a_tie_is_settled_by_the_words_that_come_next() -> None:
    quiet, values = 0, TABLE.value(0, 0)
    for bucket in (BUCKETS[0], BUCKETS[-1]):
        # The word, the bits of the threshold that are beyond it, and both values.
        tie, beyond = bucket << TABLE.shift | int(TABLE.tops[bucket]), TABLE.thresholds[bucket] & (2**640 - 1)
        own, other = bucket - TABLE.zero, int(TABLE.aliases[bucket])
        for place in (0, 1, 4):
            words = [quiet] * 5
            words[place] = tie
            # Whatever is left to settle is settled again at the first place: with what came last.
            for bits, expected in ((beyond - 1, own), (beyond, other), (2**640 - 1, other), (0, own)):
                found = drawn(words, [bits] * module._SETTLED, TABLE)
                assert found == [expected if i == place else values for i in range(5)]


def work(sampler: Sampler, filename: str, key: bytes, stddev: int, count: int) -> list[object]:
    """Each line that a sampler runs, in order, with the shapes and types of all arrays at hand."""
    seen: list[object] = []

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., object] | None:
        if frame.f_code.co_filename != filename:
            return None
        arrays = [(value.shape, value.dtype.str) for value in frame.f_locals.values() if isinstance(value, np.ndarray)]
        seen.append((event, frame.f_code.co_name, frame.f_lineno, arrays))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        sampler(key, stddev, count)
    finally:
        sys.settrace(before)
    return seen


@pytest.mark.parametrize(("stddev", "count"), [(1, 300), (141, 300), (2**24, module._CHUNK + 300), (2**28, 1)])
def test_lines_words_and_shapes_are_the_same_for_every_key(stddev: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    stream = module.word_stream

    def counted(key: bytes) -> Callable[[int], np.ndarray]:
        following = stream(key)

        def words(number: int) -> np.ndarray:
            asked.append(number)
            if key == b"\0" * 32:
                return np.zeros(number, dtype=np.uint64)
            return np.full(number, 2**64 - 1, dtype=np.uint64) if key == b"\xff" * 32 else following(number)

        return words

    monkeypatch.setattr(module, "word_stream", counted)
    discrete_gaussian(seed_key(0), stddev, count)
    done = []
    # Words of zeros and of ones among them: the least and the largest of all, and ties wherever there can be any.
    for key in (seed_key(1), seed_key(2), seed_key(3), b"\0" * 32, b"\xff" * 32):
        asked.clear()
        lines = work(discrete_gaussian, module.__file__, key, stddev, count)
        done.append((lines, list(asked)))
    assert len(done[0][0]) > 20
    assert all(other == done[0] for other in done[1:])
    tables, chunks = len(module._ladder(Fraction(stddev**2))), -(-count // module._CHUNK)
    assert sum(done[0][1]) == tables * (count + chunks * module._SETTLED * module._MORE_WORDS)


def test_a_share_is_the_least_whole_number_that_suffices() -> None:
    for stddev in (Fraction(1, 3), Fraction(7), Fraction(10**6, 7), Fraction(2**27)):
        for shares in (1, 2, 3, 10, 999, 10**9):
            share = whole_share(stddev, shares)
            assert share**2 * shares >= stddev**2 > (share - 1) ** 2 * shares
    with pytest.raises(ValueError, match=r"is at most 2\^28"):
        whole_share(Fraction(2**28 + 1), 1)
