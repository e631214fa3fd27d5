"""The compiled kernel for a pass over rows in float32 (rows.c), where this machine has one.

It reads remembered rows where they lie, sums several rounds at once, and writes each number where it belongs. Every number is
a chain of fused multiply-adds in the order of the inputs: the same bits on all machines that have the kernel, and other last
bits than NumPy's product, which is why a stream's state says by which of the two it was made.
"""

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from hubbub.compiled import Gain, Kernel, least_microseconds
from hubbub.errors import ConfigError

__all__ = ["KERNEL", "FusedPass", "measured"]

_Addresses = npt.NDArray[np.uintp]
# Outputs that share a list of inputs in rows.c.
_SHARE = 4
# Outputs and columns of what is checked: at the edges of groups, tiles, vectors and slices.
_CHECKED = ((1, 1), (4, 63), (5, 64), (8, 65), (11, 33), (16, 800), (16, 769), (19, 130), (33, 1600))
_REMEMBERED, _FRESH = 3, 18


class FusedPass:
    """A block's product with rows in float32, for any of their columns.

    Args:
        library: The kernel's, declared.
        factors: ``(outputs, remembered + fresh)``.
        remembered: The rows that the first factors are for.
        kept: The rows that outputs are written to, by their numbers; all of these are as long.
        released: Other rows, of any one length, to which outputs are written times ``scale``.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        factors: npt.NDArray[np.float32],
        remembered: Sequence[torch.Tensor],
        kept: Mapping[int, torch.Tensor],
        released: Mapping[int, torch.Tensor],
        scale: float,
    ) -> None:
        outputs, inputs = factors.shape
        # Rows of zeros make whole groups; their sums are written nowhere.
        whole = np.zeros((-(-outputs // _SHARE) * _SHARE, inputs), np.float32)
        whole[:outputs] = factors
        # z of a later round is in no earlier row. One list of inputs holds those of all before it.
        needed = np.where(whole.reshape(-1, _SHARE, inputs).any(axis=1), np.arange(1, inputs + 1), 0).max(axis=1, initial=0)
        self._used = np.maximum.accumulate(needed, dtype=np.int64)
        self._coefficients, self._scale = np.ascontiguousarray(whole.T), scale
        self._call = library.hubbub_noise_rows
        self._remembered = np.array([row.data_ptr() for row in remembered], np.uintp)
        self._kept, self._released = _addresses(kept, len(whole)), _addresses(released, len(whole))
        # Their memory is written to as long as this lives.
        self._rows = (remembered, kept, released)

    def __call__(self, fresh: npt.NDArray[np.float32], at: int, to: int | None) -> None:
        """Compute columns from ``at`` on, as many as ``fresh``, ``(drawn, columns)``, has.

        Args:
            fresh: Rows of z, each without gaps.
            at: Where they lie in remembered and kept rows.
            to: Where they lie in released rows; ``None`` releases nothing.
        """
        drawn, columns = fresh.shape
        rows = fresh.ctypes.data + np.arange(drawn, dtype=np.uintp) * np.uintp(fresh.strides[0])
        inputs = np.concatenate([_from(self._remembered, at), rows.astype(np.uintp)])
        kept = _from(self._kept, at)
        released = np.zeros_like(self._released) if to is None else _from(self._released, to)
        arrays = (inputs, self._coefficients, self._used, kept, released)
        self._call(*(array.ctypes.data for array in arrays), self._scale, len(kept), columns)


def measured() -> list[Gain]:
    """What a row of noise takes, z's own cost included.

    Raises:
        ConfigError: The kernel is not in use.
    """
    # The stream uses this module.
    from hubbub.mechanism import Mechanism
    from hubbub.noise.stream import NoiseStream
    from hubbub.participation import SingleParticipation
    from hubbub.strategies import toeplitz

    KERNEL.in_use()
    together, bands, dim = 16, 64, 1_000_000
    mechanism = Mechanism(toeplitz.square_root(10_000, bands), SingleParticipation(), 1.0)
    costs = []
    for kernel in (True, False):
        stream = NoiseStream(mechanism, dim, seed=0, dtype=torch.float32)
        stream.load_state_dict(stream.state_dict() | {"kernel": kernel})
        # Until all is remembered that ever will be.
        for _ in range(bands + together):
            stream.next_row()
        costs.append(least_microseconds(lambda: [stream.next_row() for _ in range(together)]) / together)  # noqa: B023
    return [Gain(f"a row of noise for {dim:,} numbers in float32, {bands} bands", *costs)]


def _addresses(rows: Mapping[int, torch.Tensor], count: int) -> _Addresses:
    found = np.zeros(count, np.uintp)
    for number, row in rows.items():
        found[number] = row.data_ptr()
    return found


def _from(rows: _Addresses, column: int) -> _Addresses:
    """Where a column lies in each row; 0 stays 0."""
    return np.where(rows > 0, rows + np.uintp(4 * column), np.uintp(0))


def _declare(library: ctypes.CDLL) -> None:
    data, long = ctypes.c_void_p, ctypes.c_int64
    library.hubbub_noise_rows.argtypes = [data, data, data, data, data, ctypes.c_float, long, long]
    library.hubbub_noise_rows.restype = None


def _require_right(library: ctypes.CDLL) -> None:
    """Refuse a library that gives another bit than the definition, or writes where it must not.

    Raises:
        ConfigError: It does.
    """
    generator = np.random.default_rng(0)
    for outputs, columns in _CHECKED:
        inputs = generator.standard_normal((_REMEMBERED + _FRESH, columns), np.float32)
        factors = generator.standard_normal((outputs, len(inputs)), np.float32)
        # As in a block: z of later rounds is in no earlier row.
        factors[:, _REMEMBERED:] *= np.tri(outputs, _FRESH, dtype=np.float32)
        sums = np.zeros((outputs, columns), np.float32)
        for column, row in zip(factors.T, inputs, strict=True):
            sums = _fused(column[:, None], row, sums)
        expected = np.concatenate([sums, np.float32(0.3) * sums])
        # A column before and after each row, which nobody may write to.
        room = torch.full((2 * outputs, columns + 2), torch.nan)
        remembered = list(torch.from_numpy(inputs[:_REMEMBERED]))
        kept, released = ({i: room[first + i, 1:] for i in range(outputs)} for first in (0, outputs))
        FusedPass(library, factors, remembered, kept, released, 0.3)(inputs[_REMEMBERED:], 0, 0)
        made = room.numpy()
        if not (np.array_equal(made[:, 1:-1], expected) and np.isnan(made[:, [0, -1]]).all()):
            raise ConfigError(f"the noise kernel sums {outputs} rows of {columns} numbers wrongly: it is not used")


def _fused(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32], c: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """a·b + c, rounded once.

    In float64 the product is exact. The sum is rounded to odd there: so rounding it again, to float32, is as if it was the
    first time.

    Source: Boldo and Melquiond, "Emulation of FMA and Correctly Rounded Sums: Proved Algorithms Using Rounding to Odd", IEEE
    Transactions on Computers 57(4), 2008.
    """
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    even = total.view(np.int64) % 2 == 0
    odd = np.where((error != 0) & even, np.nextafter(total, np.copysign(np.inf, error)), total)
    return odd.astype(np.float32)


KERNEL = Kernel(
    "noise", Path(__file__).with_name("rows.c"), _declare, _require_right, flags=("-ffp-contract=fast",), native=True
)
