"""Tree aggregation as one Gaussian release.

A tree over T rounds releases C·x plus noise of the same size in every node, where C has a row for each dyadic interval of
rounds. The rounds come one after the other and may be chosen by what was released before; C is lower triangular up to the
order of its rows, so that this is a single Gaussian release of sensitivity that of C (Denisov et al. 2022, Theorem 2.1). A
unit of one participation lies in the ⌈log₂(T+1)⌉ intervals around the first round, so a tree of one epoch costs ρ =
⌈log₂(T+1)⌉/(2z²); after a restart the next tree is another release.

Source: Kairouz et al. 2021, Appendix D, https://arxiv.org/abs/2103.00039; adaptivity: Denisov et al. 2022,
https://arxiv.org/abs/2202.08312.
"""

import math
from functools import lru_cache

from hubbub.accounting.events import Gaussian, TreeAggregation
from hubbub.participation import MinSeparation
from hubbub.strategies.tree import BinaryTree

__all__ = ["as_gaussian"]


def as_gaussian(event: TreeAggregation) -> Gaussian:
    """The single Gaussian release that costs as much as the tree.

    Args:
        event: The tree. Its sensitivity is exact, but for thousands of participations a few rounds apart, where it is a bound.

    Raises:
        ValueError: The tree's sensitivity over its noise multiplier is above 1e12, which is no privacy.

    Example:
        >>> as_gaussian(TreeAggregation(noise_multiplier=2.0, rounds=7)).noise_multiplier
        1.1547005383792517
    """
    squared = _squared_sensitivity(event.rounds, event.min_separation, event.max_participations)
    return Gaussian(event.noise_multiplier / math.sqrt(squared))


@lru_cache(maxsize=256)
def _squared_sensitivity(rounds: int, min_separation: int, max_participations: int) -> int:
    """Of hundreds of participations it takes seconds, and a search asks for the same tree again and again."""
    return round(BinaryTree(rounds).sensitivity(MinSeparation(min_separation, max_participations)).value ** 2)
