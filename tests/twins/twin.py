"""A system, what is measured of it, and its broken twins; and the laws of the statistics that several of them use."""

import hashlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

__all__ = ["FALSE_ALARM", "Array", "System", "Twin", "apart", "binomial", "chi_square", "instead", "normal"]

Array = npt.NDArray[np.float64]
# Of each statistic, on a right system.
FALSE_ALARM = 1e-6


@dataclass(frozen=True)
class Twin:
    """A system with one thing broken.

    Args:
        what: What is broken.
        caught_by: The statistic that must notice.
        breaks: Puts something else in the place of a part of the package.
    """

    what: str
    caught_by: str
    breaks: Callable[[pytest.MonkeyPatch], None]


def instead(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """What is made of a part of the package stands in its place."""
    return lambda patch: patch.setattr(owner, name, make(getattr(owner, name)))


@dataclass(frozen=True)
class System:
    """A part of the package as it is.

    Args:
        run: Runs it once, and returns what is to be seen of it.
        statistics: By name: whether what was seen raises an alarm.
        twins: The same, broken.
    """

    run: Callable[[], Any]
    statistics: Mapping[str, Callable[[Any], bool]]
    twins: Sequence[Twin]

    def seen(self, seed: int, twin: Twin | None = None) -> Any:
        """One run, right or broken; all that the operating system's randomness would give is a function of the seed."""
        with pytest.MonkeyPatch.context() as patch:
            calls = itertools.count()
            patch.setattr(os, "urandom", lambda size: hashlib.shake_256(f"{seed} {next(calls)}".encode()).digest(size))
            if twin:
                twin.breaks(patch)
            return self.run()

    def alarms(self, seed: int) -> list[str]:
        """The statistics that raise an alarm at a right run."""
        seen = self.seen(seed)
        return [name for name, alarmed in self.statistics.items() if alarmed(seen)]

    def caught(self, twin: Twin, seed: int) -> bool:
        """Whether the statistic that is named for a twin raises an alarm at a run of it."""
        return self.statistics[twin.caught_by](self.seen(seed, twin))


# Each of several values has an equal part of the false alarm, on either side (Bonferroni).


def normal(values: Array) -> bool:
    """Whether one of several standard normal numbers, dependent or not, is too far from 0."""
    return bool(np.abs(values).max() > stats.norm.isf(FALSE_ALARM / (2 * values.size)))


def chi_square(sums: Array, each: int) -> bool:
    """Whether one of several sums of ``each`` squares of standard normal numbers is too small or too large."""
    part = FALSE_ALARM / (2 * sums.size)
    low, high = stats.chi2.ppf(part, each), stats.chi2.isf(part, each)
    return bool((sums < low).any() or (sums > high).any())


def binomial(counts: Array, trials: int, chances: Array | float) -> bool:
    """Whether one of several binomial counts is too small or too large."""
    part = FALSE_ALARM / (2 * counts.size)
    low, high = stats.binom.cdf(counts, trials, chances), stats.binom.sf(counts - 1, trials, chances)
    return bool((low < part).any() or (high < part).any())


def apart(first: Array, second: Array) -> Array:
    """For each row ⟨a, b⟩/‖a‖: exactly standard normal where b is, whatever a is, as long as a tells nothing of b."""
    return np.einsum("ij,ij->i", first, second) / np.linalg.norm(first, axis=1)
