"""Time-varying BLT: noise from a few buffers whose coefficients change from round to round.

Letters: C_ii = d_i and C_ij = a_i·Φ_{i−1}···Φ_{j+1}·b_j below the diagonal; y rows of C⁻¹z, s the buffers,
y_t = (z_t − a_t·s_t) / d_t and s_{t+1} = Φ_t·s_t + b_t·y_t.

The best strategy of all for one participation is of this form with one buffer for each of some thirty poles, and within a
fraction of a percent of it with six.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hubbub._util.checks import Array, Rebuilt, real_array
from hubbub.mechanism.participation import Participation, covering, worst_rounds
from hubbub.mechanism.sensitivity import Sensitivity, of_columns, of_matrix
from hubbub.mechanism.strategies.matrices import require_invertible
from hubbub.mechanism.strategies.strategy import Description, Draw, Memory, Row, require_dense, require_round

# The relative rounding error of one operation.
_ROUNDOFF = 2.0**-53
# If more than this cancels in a column norm, it is computed from the matrix.
_LEAST_KEPT = 1e-6


class Recursion(NamedTuple):
    """The arrays of :class:`Semiseparable`; the last transition and the last inputs are never used."""

    diagonal: Array
    outputs: Array
    transitions: Array
    inputs: Array


@dataclass(frozen=True, eq=False)
class Semiseparable(Rebuilt):
    """C by its buffers: how each round reads, mixes and fills them.

    Args:
        diagonal: d, ``(rounds,)``, none of them 0.
        outputs: a, ``(rounds, buffers)``: how the buffers enter a round.
        transitions: Φ, how they continue to the next round: a factor for each, ``(rounds, buffers)``, or a matrix,
            ``(rounds, buffers, buffers)``. The last is not used.
        inputs: b, ``(rounds, buffers)``: how the round enters the buffers. The last is not used.

    Raises:
        ValueError: Shapes that do not fit, a zero on the diagonal, or a number that is not finite.

    Example:
        >>> Semiseparable(diagonal=[1, 1, 1], outputs=[[1], [1], [1]], transitions=[[0.5]] * 3, inputs=[[0.5]] * 3).matrix()
        array([[1.  , 0.  , 0.  ],
               [0.5 , 1.  , 0.  ],
               [0.25, 0.5 , 1.  ]])
    """

    diagonal: npt.ArrayLike
    outputs: npt.ArrayLike
    transitions: npt.ArrayLike
    inputs: npt.ArrayLike

    def __post_init__(self) -> None:
        diagonal = real_array("diagonal", self.diagonal, ndim=1)
        outputs = real_array("outputs", self.outputs, ndim=2)
        full = np.ndim(self.transitions) == 3
        transitions = real_array("transitions", self.transitions, ndim=3 if full else 2)
        inputs = real_array("inputs", self.inputs, ndim=2)
        each = (len(diagonal), outputs.shape[1])
        for name, array, expected in (
            ("diagonal", diagonal, diagonal.shape),
            ("outputs", outputs, each),
            ("inputs", inputs, each),
            ("transitions", transitions, (*each, each[1]) if full else each),
        ):
            if array.shape != expected:
                raise ValueError(f"{name} has shape {array.shape}: must be {expected} to fit diagonal and outputs")
            object.__setattr__(self, name, array)
        require_invertible("diagonal[{0}]", diagonal)

    @property
    def rounds(self) -> int:
        """Number of rounds n."""
        return len(self.recursion().diagonal)

    @property
    def buffers(self) -> int:
        """The number of buffers."""
        return int(self.recursion().outputs.shape[1])

    @property
    def description(self) -> Description:
        """Words, bands and sources, for statements and reports."""
        return Description(f"time-varying buffers, {self.memory_rows} of them", self.rounds, ("choquettechoo2023multi",))

    @property
    def memory_rows(self) -> int:
        """The most rows that :meth:`step` remembers: one a buffer."""
        return self.buffers if self.rounds > 1 else 0

    def recursion(self) -> Recursion:
        """The four arrays, read-only."""
        return Recursion(self.diagonal, self.outputs, self.transitions, self.inputs)  # type: ignore[arg-type] # made arrays above

    def matrix(self) -> Array:
        """C as a dense matrix, ``(rounds, rounds)``."""
        require_dense(self.rounds)
        return dense(self.recursion())

    def leading(self, rounds: int) -> "Semiseparable":
        """The first ``rounds`` rounds."""
        return Semiseparable(*(array[:rounds] for array in self.recursion()))

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """How far one client can move C·x: for one participation by exact column norms without the matrix."""
        recursion, most = self.recursion(), worst_rounds(covering(participation, self.rounds), self.rounds)[1]
        norms = magnitude = column_norms(recursion)
        if any((part < 0).any() for part in recursion[1:]):
            # Numbers of both signs cancel.
            magnitude = column_norms(Recursion(*(np.abs(part) for part in recursion)))
        # Round up by the possible rounding error of each round's additions, relative to the squared norms that columns would
        # have if nothing cancelled.
        rounding = self.rounds * (4 + 2 * self.buffers) * _ROUNDOFF
        if most == 1 and (norms > _LEAST_KEPT * magnitude).all():
            return of_columns(norms + rounding * magnitude, participation)
        stated = of_matrix(self.matrix(), participation)
        return replace(stated, value=stated.value + rounding * most * float(np.sqrt(magnitude.max())))

    def step(self, round_index: int, draw: Draw, memory: Memory) -> tuple[Row, Memory]:
        """Row ``round_index`` of C⁻¹z, from the buffers alone."""
        require_round(round_index, self.rounds)
        diagonal, outputs, transitions, inputs = self.recursion()
        row = draw(round_index)
        for read, buffer in zip(outputs[round_index].tolist(), memory, strict=False):
            row = row - read * buffer
        row = (1 / float(diagonal[round_index])) * row
        if round_index == self.rounds - 1:
            return row, ()
        filled = tuple(fill * row for fill in inputs[round_index].tolist())
        if not memory:
            return row, filled
        factors, mixed = transitions[round_index], list(filled)
        for i, line in enumerate((np.diag(factors) if factors.ndim == 1 else factors).tolist()):
            for factor, buffer in zip(line, memory, strict=True):
                if factor:
                    mixed[i] = mixed[i] + factor * buffer
        return row, tuple(mixed)


def column_norms(recursion: Recursion) -> Array:
    """``(n,)``: the squared norm of each column, in O(n · states²) time for diagonal transitions."""
    diagonal, outputs, transitions, inputs = recursion
    n, states = outputs.shape
    G = np.zeros((states, states))
    norms = np.square(diagonal)
    for j in range(n - 2, -1, -1):
        # G becomes the Gram matrix of the map from the state after round j to rows j + 1 and on.
        step = transitions[j + 1]
        G = G * np.multiply.outer(step, step) if step.ndim == 1 else step.T @ G @ step
        G += np.multiply.outer(outputs[j + 1], outputs[j + 1])
        norms[j] += inputs[j] @ G @ inputs[j]
    return norms


def dense(recursion: Recursion) -> Array:
    """The matrix, ``(n, n)``."""
    diagonal, outputs, transitions, inputs = recursion
    n = len(diagonal)
    C = np.diag(diagonal)
    states = np.zeros((outputs.shape[1], n))
    for i in range(n):
        C[i, :i] = outputs[i] @ states[:, :i]
        step = transitions[i]
        states[:, :i] = step[:, None] * states[:, :i] if transitions.ndim == 2 else step @ states[:, :i]
        states[:, i] = inputs[i]
    return C
