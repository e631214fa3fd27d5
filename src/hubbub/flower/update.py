"""What becomes of a client's update before it leaves the client: clipped, in whole steps where it is encrypted, and hidden
where the server leaves that to clients.

Both doors of a client, the mods and the wrapper of a ``NumPyClient``, come here, so that the same update gives the same reply.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord

from hubbub._checks import lattice_bits, positive, scale, shown
from hubbub.discrete_gaussian import discrete_gaussian
from hubbub.flower.arrays import Layout
from hubbub.flower.messages import CLIP_NORM, COUNT_SCALE, ENABLED, LATTICE_BITS, NOISE_STDDEV, NORM_BIT
from hubbub.lattice import Lattice
from hubbub.randomness import fresh_key
from hubbub.training.clipping import clip
from hubbub.training.functional import difference

__all__ = ["Request", "Sent", "within_by_all"]

# Entries of any floating dtype.
_Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Request:
    """What the server asks of a client's update.

    Args:
        clip_norm: The largest L2 norm of the update.
        counted: Whether the server counts the updates whose norm was at most the clip norm.
        noise_stddev: Standard deviation of the client's share of the noise, in the unit of the update; ``None`` where the
            server adds all noise.
        count_scale: How far the indicator moves the vector; only of a client that is counted and adds noise or encrypts.
        bits: Of the lattice.
    """

    clip_norm: float
    counted: bool
    noise_stddev: float | None
    count_scale: float | None
    bits: int = 24

    @classmethod
    def of(cls, config: Mapping[str, object]) -> "Request":
        """What stands in the configuration of a round.

        Raises:
            KeyError: There is no clip norm, or noise is asked for and how the indicator enters it is missing.
            TypeError: A value of another type.
            ValueError: A number out of range.
        """
        if CLIP_NORM not in config:
            raise KeyError(
                f"the server's configuration has no {CLIP_NORM!r}, so that nothing would bound this client's update; use a "
                "strategy of hubbub.flower"
            )
        counted = config.get(ENABLED, False)
        if not isinstance(counted, bool):
            raise TypeError(f"{ENABLED} = {shown(counted)}: must be True or False, not {type(counted).__name__}")
        noise = positive(NOISE_STDDEV, config[NOISE_STDDEV]) if NOISE_STDDEV in config else None
        if noise is not None and counted and COUNT_SCALE not in config:
            raise KeyError(f"the server's configuration has no {COUNT_SCALE!r}, without which the indicator cannot be hidden")
        count_scale = scale(COUNT_SCALE, config[COUNT_SCALE]) if counted and COUNT_SCALE in config else None
        bits = lattice_bits(LATTICE_BITS, config.get(LATTICE_BITS, 24))
        return cls(scale(CLIP_NORM, config[CLIP_NORM]), counted, noise, count_scale, bits)

    @property
    def lattice(self) -> Lattice:
        """The lattice on which the update, with the indicator where there is one, is summed."""
        return Lattice(math.hypot(self.clip_norm, (self.count_scale or 0.0) / 2), self.bits)


class Sent:
    """The arrays that a client was sent, kept before its app may change them.

    Args:
        arrays: As they came.

    Raises:
        ValueError: They hold nothing that can be trained.
    """

    def __init__(self, arrays: ArrayRecord) -> None:
        self._layout = Layout.of(arrays)
        self._before = self._layout.tensors(arrays)

    def clipped(self, reply: ArrayRecord, clip_norm: float) -> tuple[ArrayRecord, bool]:
        """The reply, moved towards what was sent until its update is within the clip norm, and whether it was so before.

        The update is what the server will compute: from the numbers as the reply holds them, in their own precision. A
        clipped reply is rounded to these as well; where that makes the update longer than the clip norm, each number is
        rounded towards what was sent. So the clip norm holds up to a factor of 1 + 2⁻²⁰, at any precision of the weights.
        A reply within the norm stays as it is, and buffers always do.

        Raises:
            ValueError: The reply's arrays are not those that were sent, by name and shape.
        """
        after = self._layout.tensors(reply)
        update = torch.cat([difference(*pair) for pair in zip(after, self._before, strict=True)])
        bounded, was_clipped = clip(update, clip_norm)
        if not was_clipped:
            return reply, True
        sizes = [math.prod(shape) for shape in self._layout.shapes]
        pairs = [(a.numpy(), b.numpy()) for a, b in zip(after, self._before, strict=True)]
        steps = [part.numpy() for part in bounded.split(sizes)]
        moved = [_moved(a, b, step) for (a, b), step in zip(pairs, steps, strict=True)]
        if _norm(moved, self._before) > clip_norm:
            moved = [_towards(m, b, step) for m, (_, b), step in zip(moved, pairs, steps, strict=True)]
        shaped = zip(self._layout.names, self._layout.shapes, moved, strict=True)
        fresh = {name: Array(array.reshape(shape)) for name, shape, array in shaped}
        return ArrayRecord({name: fresh.get(name, array) for name, array in reply.items()}), False

    @property
    def dim(self) -> int:
        """Numbers in the update."""
        return self._layout.dim

    def steps(self, reply: ArrayRecord, request: Request, bit: int | None) -> torch.Tensor:
        """The update in whole steps of the lattice, ``(dim,)`` int64, held to the clip norm; the indicator last, if it counts.

        Args:
            reply: The trained arrays.
            request: What was asked.
            bit: The indicator that was computed before an inner clip, if there was one.

        Raises:
            ValueError: The reply's arrays are not those that were sent.
        """
        update = self._layout.update(reply, self._before)
        if request.count_scale is None:
            return request.lattice.encode(update)[0]
        bounded, was_clipped = clip(update, request.clip_norm)
        indicator = within_by_all(not was_clipped, bit) - 0.5
        return request.lattice.encode(torch.cat([bounded, bounded.new_tensor([request.count_scale * indicator])]))[0]

    def noised(self, reply: ArrayRecord) -> torch.Tensor:
        """The steps that :meth:`hidden` has made, as one vector, ``(dim,)`` int64.

        Raises:
            ValueError: They are not.
        """
        return self._layout.whole(reply)

    def hidden(self, reply: ArrayRecord, request: Request, bit: int | None) -> tuple[ArrayRecord, int | None]:
        """The clipped update in whole steps of a lattice, plus a share of noise that nobody can draw again.

        The share is a discrete Gaussian of at least the standard deviation that was asked for.

        Args:
            reply: The trained arrays.
            request: What was asked; it must ask for noise.
            bit: The indicator that was computed before an inner clip, if there was one.

        Returns:
            int64 arrays under the names of the floating ones; and the noised indicator in steps, if one is counted.

        Raises:
            ValueError: The reply's arrays are not those that were sent, or the noise is beyond what can be drawn.
        """
        if request.noise_stddev is None:
            raise ValueError(f"{NOISE_STDDEV}: is missing, so that nothing would hide the update")
        steps = self.steps(reply, request, bit)
        # A step is a power of two: the division is exact, and rounding up never takes noise away.
        stddev = math.ceil(request.noise_stddev / request.lattice.step)
        noised = steps.numpy() + discrete_gaussian(fresh_key(), stddev, len(steps))
        sizes = np.cumsum([math.prod(shape) for shape in self._layout.shapes])
        parts = zip(self._layout.names, self._layout.shapes, np.split(noised, sizes), strict=False)
        record = ArrayRecord({name: Array(part.reshape(shape)) for name, shape, part in parts})
        return record, int(noised[-1]) if request.count_scale is not None else None


def within_by_all(within: bool, bit: int | None) -> int:
    """The indicator: 1 if the update was within the clip norm, now and before an inner clip that has left its bit.

    Raises:
        ValueError: The earlier bit is neither 0 nor 1.
    """
    if bit not in (None, 0, 1):
        raise ValueError(f"{NORM_BIT} = {shown(bit)}: must be 0 or 1; the name is kept for the indicator of the clip")
    return int(within and bit != 0)


def _moved(after: _Numbers, before: _Numbers, step: npt.NDArray[np.float64]) -> _Numbers:
    """before + step, in the wider of both precisions: there what was sent is exact, and nothing overflows on the way."""
    return (before.astype(np.float64) + step).astype(np.promote_types(after.dtype, before.dtype))


def _towards(moved: _Numbers, before: _Numbers, step: npt.NDArray[np.float64]) -> _Numbers:
    """``moved``, where it went further than ``step`` by the next number nearer to where it came from."""
    too_far = np.abs(moved.astype(np.float64) - before) > np.abs(step)
    return np.where(too_far, np.nextafter(moved, before.astype(moved.dtype)), moved)


def _norm(moved: list[_Numbers], before: list[torch.Tensor]) -> float:
    parts = [difference(torch.from_numpy(m), b) for m, b in zip(moved, before, strict=True)]
    return float(torch.cat(parts).to(torch.float64).norm())
