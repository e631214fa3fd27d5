"""Independent noise: C = I, which is DP-SGD and DP-FedAvg.

Source: Abadi et al. 2016, https://arxiv.org/abs/1607.00133; McMahan et al. 2018, https://arxiv.org/abs/1710.06963.
"""

import math
from dataclasses import dataclass

import numpy as np

from hubbub._util.checks import Array, plain_numbers, rounds_count
from hubbub.mechanism.participation import Participation, covering, worst_rounds
from hubbub.mechanism.sensitivity import Sensitivity
from hubbub.mechanism.strategies.strategy import Description, Draw, Memory, Row, require_dense, require_round


@dataclass(frozen=True)
class Identity:
    """Fresh noise in every round.

    Args:
        rounds: Number of rounds, at least 1.

    Example:
        >>> Identity(rounds=2).matrix()
        array([[1., 0.],
               [0., 1.]])
    """

    rounds: int

    def __post_init__(self) -> None:
        plain_numbers(self, rounds=rounds_count)

    @property
    def description(self) -> Description:
        """Words, bands and sources, for statements and reports."""
        return Description("Identity", 1, (), toeplitz=True)

    @property
    def memory_rows(self) -> int:
        """Zero: rounds are independent."""
        return 0

    def matrix(self) -> Array:
        """I, ``(rounds, rounds)``."""
        require_dense(self.rounds)
        return np.eye(self.rounds)

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """The root of the largest number of rounds that one client may join; exact."""
        _, most = worst_rounds(covering(participation, self.rounds), self.rounds)
        return Sensitivity(math.sqrt(most), True, "orthogonal columns of norm 1: the most rounds of one client", square=most)

    def leading(self, rounds: int) -> "Identity":
        """The first ``rounds`` rounds."""
        return Identity(rounds)

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of z as it is."""
        require_round(round_index, self.rounds)
        return draw(round_index), memory
