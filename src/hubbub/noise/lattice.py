"""Clipped updates as integers, summed exactly, so that the last bits of a release reveal nothing.

Floating-point addition rounds differently for different sums: an observer of ``x + noise`` to the last bit who knows all other
clients can often exclude one of two values of x with certainty, however large the noise. So updates are rounded to whole
multiples of a step, sums are of integers, and noise is rounded to the same lattice before it is added. As x lies on the
lattice, x + round(w) = round(x + w): the release is a *rounding of the ideal real mechanism*, so that the guarantee of the
ideal mechanism, with correlated noise too, holds by post-processing.

Source: Mironov 2012, "On significance of the least significant bits for differential privacy"; Casacuberta et al. 2022,
https://arxiv.org/abs/2207.10635 (sums); Jin et al. 2021, https://arxiv.org/abs/2112.05307.
"""

import math
import os
from dataclasses import dataclass
from typing import Any, NoReturn, SupportsIndex

import torch

from hubbub._util.checks import lattice_bits, scale
from hubbub._util.prf import require_own_process
from hubbub.errors import NoiseExhaustedError
from hubbub.noise.steps import LARGEST, MOST_BITS, step_of

_SHRINK = 1 - 2.0**-30
# A MiB of float64: calls cost as much as a thousand numbers.
_BLOCK = 2**17
# Updates that a GPU encodes together, the numbers in them at most, and a length that gives all of them one alignment.
_TOGETHER, _NUMBERS, _ALIGNED = 64, 2**25, 4
# Sums of squares between these have lost nothing that a float holds.
_LEAST_SQUARE, _LARGEST_SQUARE = 2.0**-900, 2.0**900


@dataclass(frozen=True)
class Lattice:
    """The whole multiples of the power of two at or below 2^−bits clip norms.

    As the step is a power of two, values on the lattice are exact in float64, and a coarser lattice of the same clip norm is a
    subset of a finer one. Coarse steps cost accuracy, never privacy: the norm after rounding is at most the clip norm.

    Args:
        clip_norm: The largest L2 norm of one update, from 1e-12 to 1e12.
        bits: From 8 to 24, for updates of at most 4^bits numbers.

    Example:
        >>> lattice = Lattice(clip_norm=1.0)
        >>> lattice.step == 2**-24, lattice.radius == 2**24
        (True, True)
    """

    clip_norm: float
    bits: int = MOST_BITS

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", scale("clip_norm", self.clip_norm))
        object.__setattr__(self, "bits", lattice_bits("bits", self.bits))

    @property
    def step(self) -> float:
        """The distance of adjacent points."""
        return step_of(self.clip_norm, self.bits)

    @property
    def radius(self) -> int:
        """The largest norm of an update in steps: from 2^bits to 2^(bits+1) − 1, never above ``clip_norm`` over ``step``."""
        return math.floor(self.clip_norm / self.step)

    def encode(self, update: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """An update in steps, clipped to ``radius``, and whether it had to be.

        An update with a number that is not finite counts as zero: whether a round is released must not depend on one client.
        That the squares of the integers add up to at most ``radius``² is checked exactly. The update is ``(dim,)`` of any
        floating dtype, the steps are int64.

        Raises:
            ValueError: The update is no vector of real numbers, or has more of them than the lattice has room for.
        """
        if update.ndim != 1 or update.is_complex():
            raise ValueError(f"update has shape {tuple(update.shape)} and {update.dtype}: must be one vector of real numbers")
        self.require_dim(len(update))
        whole = torch.empty(len(update), dtype=torch.float64, device=update.device).zero_()
        clipped = self.add(update.detach(), whole)
        return whole.to(torch.int64), clipped is not False

    def encode_rows(self, rows: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """Add the encoding of each row to ``total``, in place, with the bits of :meth:`encode`; which had to be clipped.

        The rows are ``(updates, dim)`` of any floating dtype, and stay as they are; ``total`` is ``(dim,)`` int64.

        Raises:
            ValueError: As for :meth:`encode`, or a total of another shape or dtype.
        """
        if rows.ndim != 2 or rows.is_complex() or total.shape != rows.shape[1:] or total.dtype != torch.int64:
            raise ValueError(
                f"rows has shape {tuple(rows.shape)} and {rows.dtype}, total {tuple(total.shape)} and {total.dtype}: must be "
                "(updates, dim) of real numbers and (dim,) of int64"
            )
        self.require_dim(rows.shape[1])
        # Whole numbers of at most 2^25, of which float64 adds 2^27 exactly.
        gathered = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
        if rows.device.type == "cpu":
            buffer = self.buffer(gathered)
            clipped = gathered.new_tensor([self.add(row, gathered, buffer) is not False for row in rows.detach()]).bool()
        else:
            clipped, finite = self._add_together(rows.detach(), gathered)
            clipped = (clipped | ~finite).cpu()
        total += gathered.to(torch.int64)
        return clipped

    def add(self, update: torch.Tensor, total: torch.Tensor, buffer: torch.Tensor | None = None) -> bool | None:
        """Add the encoding of an update to a sum of others, in place, by blocks that stay in the cache; whether it was clipped.

        ``None`` where it is not finite and nothing was added. The update is ``(dim,)`` of any floating dtype, the sum float64,
        whole numbers, exact for up to 2^27 updates; where many are added, ``buffer`` is that of :meth:`buffer`.
        """
        if total.device.type != "cpu":
            was_clipped, finite = self._add_together(update.unsqueeze(0), total)
            return bool(was_clipped) if finite else None
        blocks = _Blocks(update, total, self.buffer(total) if buffer is None else buffer)
        norm, scale = blocks.norm()
        if not 0 < norm < math.inf:
            return None if norm else False
        # Rounding moves each coordinate by half a step at most.
        room = self.radius - math.sqrt(len(total)) / 2
        clipped = norm * (scale / self.step) > room
        factor = room / norm if clipped else scale / self.step
        # Σ q² ≤ radius² < 2⁵⁰, exactly: float64 adds whole numbers exactly up to 2⁵³, and never rounds a larger sum below that.
        while blocks.add(factor, scale) > self.radius**2:
            blocks.add(factor, scale, sign=-1)
            clipped, factor = True, factor * _SHRINK
        return clipped

    def _add_together(
        self, rows: torch.Tensor, total: torch.Tensor, careful: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """:meth:`add` for many updates on a GPU, where starting a kernel costs more than its numbers.

        ``careful`` where one is not finite, very small or large, or rounds to more than the clip norm, as is found without.

        Returns:
            Which had to be clipped and which are finite, ``(updates,)`` each.
        """
        dim, one, flags, gathered = rows.shape[1], total.new_ones(()), list[torch.Tensor](), torch.zeros_like(total)
        room, length = self.radius - math.sqrt(dim) / 2, torch.linalg.vector_norm
        # Calls of one shape, filled with zeros: an update's bits do not depend on its place or on how many there are.
        together = max(1, min(_TOGETHER, _NUMBERS // max(1, dim)))
        wide = total.new_zeros(together, dim + -dim % _ALIGNED)
        for some in rows.split(together):
            wide[: len(some), :dim] = some
            wide[len(some) :] = 0
            if careful:
                largest = wide.abs().amax(1)
                finite = largest < math.inf
                wide.masked_fill_(~finite[:, None], 0)
            square = (norm := length(wide, dim=1)).square()
            usual = (square < _LARGEST_SQUARE) & ((square > _LEAST_SQUARE) | (square == 0))
            scale = one
            if careful:
                # Of the others the norm in units of their largest number.
                scale = torch.where(usual, one, largest.clamp(2.0**-1000, 2.0**1000))
                norm = length(wide.div_(scale[:, None]), dim=1)
            clipped = norm * (scale / self.step) > room
            factor = torch.where(clipped, room / norm, scale / self.step)
            # As in `add`: a root of Σ q² < 2⁵³ is above the radius only where Σ q² is above its square.
            over = length(steps := (wide * factor[:, None]).round_(), dim=1) > self.radius
            while careful and bool(over.any()):
                clipped, factor = clipped | over, torch.where(over, factor * _SHRINK, factor)
                over = length(steps := (wide * factor[:, None]).round_(), dim=1) > self.radius
            flags.append(torch.stack([clipped, finite if careful else usual & ~over])[:, : len(some)])
            gathered += steps.sum(0)[:dim]
        clipped, finite = torch.cat(flags, dim=1)
        # Asked once: each question waits for the GPU.
        if careful or bool(finite.all()):
            total += gathered
            return clipped, finite
        return self._add_together(rows, total, careful=True)

    @staticmethod
    def buffer(total: torch.Tensor) -> torch.Tensor:
        """The buffer of :meth:`add` for one block."""
        return torch.empty(min(len(total), _BLOCK), dtype=torch.float64, device=total.device)

    def require_dim(self, dim: int) -> None:
        """Refuse an update so long that rounding could use up more than half of the clip norm.

        Raises:
            ValueError: More than 4^bits.
        """
        if dim > 4**self.bits:
            raise ValueError(
                f"dim = {dim:,}: on a lattice of {self.bits} bits an update has at most {4**self.bits:,} numbers, or rounding "
                f"moves it by more than half of the clip norm; take lattice_bits = {-(-(dim - 1).bit_length() // 2)} or more"
            )

    def release(self, total: torch.Tensor, row: torch.Tensor | None) -> torch.Tensor:
        """A sum in steps plus a row of noise, rounded to the lattice, in the unit of the clip norm.

        The sum is ``(dim,)`` int64; the row, where it is not ``None``, and what is returned are ``(dim,)`` float64.

        Raises:
            NoiseExhaustedError: The noise is beyond the whole numbers that float64 holds exactly.
            ValueError: Sum and row are of different lengths; torch would repeat the shorter one. Or the row is not float64.
        """
        if row is None:
            return total.to(torch.float64) * self.step
        require_one_shape(total, row, self.step)
        noise = whole_steps(row.to(total.device), self.step)
        if not float(noise.abs().max()) <= LARGEST:
            raise NoiseExhaustedError(
                f"a row of noise reaches {float(noise.abs().max()):g} steps of 2^-{self.bits} clip norms, more than 2^52"
            )
        return noise.add_(total.to(torch.float64)).mul_(self.step)

    def holds(self, release: torch.Tensor) -> bool:
        """Whether every number of a release lies on the lattice, and is one that a sum and its noise can make."""
        steps = release.to(torch.float64) / self.step
        return bool((steps.abs() <= 2 * LARGEST).all()) and torch.equal(steps.round(), steps)


def whole_steps(row: torch.Tensor, step: float) -> torch.Tensor:
    """A row of noise in whole steps, ``(dim,)`` float64.

    Halves go up: to the even number, so that large noise, with few binary digits after the point, would be even more often.

    Raises:
        ValueError: The row has fewer bits than float64: the last bits of a sum would show.
    """
    if row.dtype != torch.float64:
        raise ValueError(f"row is of {row.dtype}: must be torch.float64; in coarser noise the last bits of a sum show")
    return (row / step).add_(0.5).floor_()


def require_one_shape(total: torch.Tensor, row: torch.Tensor, step: float | None = None) -> None:
    """Refuse a sum and a row of different shapes, which torch would broadcast: an update would count many times.

    A :class:`Row` meets its sum here, which is in ``step``s or in floating point.
    """
    if total.shape != row.shape:
        raise ValueError(f"total has shape {tuple(total.shape)}, its row of noise {tuple(row.shape)}: must be alike")
    if isinstance(row, Row):
        row.meet(total, step)


class Row(torch.Tensor):
    """The row of noise of a round: a tensor that opens one sum, once, in the process that drew it."""

    # What is computed from a row is a plain tensor, as of torch's own Parameter.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    _unmet: list[torch.Tensor | None]
    _step: float | None
    _round_index: int
    _process: int

    @classmethod
    def of(cls, row: torch.Tensor, round_index: int, begun: torch.Tensor | None, step: float | None) -> "Row":
        """A row for the sum of which ``begun`` is a copy, or for one that is not formed yet, in such steps."""
        made = row.as_subclass(cls)
        made._unmet, made._step, made._round_index, made._process = [begun], step, round_index, os.getpid()
        return made

    def meet(self, total: torch.Tensor | None, step: float | None) -> None:
        """Let the row meet a sum, ``None`` for one that cannot be read, in such steps; a wrong one leaves it for the right one.

        Raises:
            NoiseExhaustedError: It has met one, was drawn for another one, or by another process.
        """
        require_own_process(self._process, f"round {self._round_index}", "whose row of noise this is")
        try:
            # One call, so that of two threads one gets it.
            begun = self._unmet.pop()
        except IndexError:
            raise NoiseExhaustedError(
                f"round {self._round_index}: its row of noise has met a sum, and none meets two, whose releases would show "
                "their difference; put both in one sum, or begin a round for each"
            ) from None
        if self._step not in (None, step):
            self._unmet.append(begun)
            raise NoiseExhaustedError(
                f"round {self._round_index}: its row of noise is for a sum in steps of {self._step}, and this one is in "
                f"{'floating point' if step is None else f'steps of {step}'}; open the sum that the round was begun with"
            )
        if begun is None or total is None:
            return
        if begun.dtype != total.dtype or not torch.equal(begun, total.to(begun.device)):
            self._unmet.append(begun)
            raise NoiseExhaustedError(
                f"round {self._round_index}: its row of noise is for the sum that the round was begun with, and this is "
                "another one, or was changed since; open that one, or abort the round, and begin one with the sum that is to "
                "be released"
            )

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse a copy, which would meet another sum."""
        raise TypeError("a row of noise cannot be copied or pickled: it is for one sum")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        """Refuse a copy, as pickle does."""
        self.__reduce_ex__(4)


class _Blocks:
    """An update read in blocks into one buffer, so that kernels and bits do not depend on its place in memory."""

    def __init__(self, update: torch.Tensor, total: torch.Tensor, buffer: torch.Tensor) -> None:
        self._update, self._total, self._buffer = update, total, buffer
        self._starts = range(0, len(total), len(buffer) or 1)
        # The divisor of the numbers in the buffer, if there is one block only.
        self._held: float | None = None

    def norm(self) -> tuple[float, float]:
        """The update's norm over a power of two, and that power, so that squares neither overflow nor vanish.

        The norm is not finite if one of the numbers is not.
        """
        squares = sum(self._square(block) for block in map(self._read, self._starts))
        if math.isnan(squares):
            return squares, 1.0
        if _LEAST_SQUARE < squares < _LARGEST_SQUARE:
            return math.sqrt(squares), 1.0
        largest = max((float(self._read(start).abs().max()) for start in self._starts), default=0.0)
        if not 0 < largest < math.inf:
            return largest, 1.0
        scale = math.ldexp(1.0, max(-1000, min(1000, math.frexp(largest)[1])))
        return math.sqrt(sum(self._square(self._read(start, scale)) for start in self._starts)), scale

    def add(self, factor: float, scale: float, sign: int = 1) -> float:
        """Add the update over ``scale``, times ``factor``, rounded; returns the sum of the squares of what was added."""
        squares = 0.0
        for start in self._starts:
            block = self._read(start, scale).mul_(factor).round_()
            self._held = None
            squares += self._square(block)
            self._total[start : start + len(block)].add_(block, alpha=sign)
        return squares

    def _read(self, start: int, scale: float = 1.0) -> torch.Tensor:
        """A block of the update from ``start`` on, over ``scale``."""
        block = self._buffer[: len(self._total) - start]
        if self._held != scale:
            block.copy_(self._update[start : start + len(block)])
            if scale != 1:
                block.div_(scale)
            self._held = scale if len(self._starts) == 1 else None
        return block

    @staticmethod
    def _square(block: torch.Tensor) -> float:
        return float(torch.dot(block, block))
