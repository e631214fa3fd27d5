"""What a stream remembers: one buffer of rows in which each has a slot, and passes over it that make several rounds at once.

A pass takes the remembered rows and fresh rows of z, slice by slice of the vector so that they stay in the processor's cache,
multiplies them by the block's matrix, and writes what the next pass needs to slots that are free. The rows remembered before
stay whole until the pass is settled, so that a checkpoint can be taken in its middle.
"""

import weakref
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from hubbub._checks import Array
from hubbub.errors import RunFolderError
from hubbub.factorization.threads import at_most
from hubbub.noise.blocks import Block
from hubbub.noise.rows import KERNEL, FusedPass
from hubbub.noise.sources import NoiseSource

__all__ = ["SlotBuffer"]

# Numbers that a product takes at a time, so that they stay in the processor's cache, and the least columns of one.
_IN_CACHE, _LEAST_COLUMNS = 1 << 20, 1 << 10
# Rows whose memory waits to be used again.
_MOST_SPARE = 32
# Bytes of a line of the processor's cache.
_LINE = 64

# Multiplies one segment of fresh rows, which begins at the given number, with what is remembered, and writes the results.
Product = Callable[[torch.Tensor, int], None]


class SlotBuffer:
    """The rows of a stream for the numbers ``part[0]`` to ``part[1]`` − 1 of a vector of ``dim``.

    ``most`` is how many rows will be remembered at most, or 0 where that is not known; released rows are times ``scale``.
    ``kernel`` says whether the compiled kernel multiplies: from the beginning where it could, unless that is set otherwise.

    Raises:
        ValueError: A part that is no part of the vector.
    """

    def __init__(
        self, source: NoiseSource, dim: int, part: tuple[int, int], like: torch.Tensor, *, most: int, scale: float
    ) -> None:
        first, stop = part
        if not 0 <= first < stop <= dim:
            raise ValueError(f"part = {part}: must be (first, stop) with 0 <= first < stop <= dim = {dim}")
        self._source, self._like, self._most, self._scale = source, like, most, scale
        self._segment = source.segment_length(like.device)
        # Whole segments, and whole slices of them, so that a number is computed alike in whatever part it is asked for.
        self._first = first // self._segment * self._segment
        self._width = min(dim, -(-stop // self._segment) * self._segment) - self._first
        self._wanted = range(first - self._first, stop - self._first)
        self._rows = like.new_empty(0, self._width)
        self._memory: list[int] = []
        self._made: dict[int, int] = {}
        self._released: list[torch.Tensor] = []
        self._spare = _SpareRows()
        self.kernel = self.could_use_kernel()

    def could_use_kernel(self) -> bool:
        """Whether there is a compiled kernel for these rows in this process."""
        fits = self._like.device.type == "cpu" and self._like.dtype == torch.float32
        return fits and KERNEL.library() is not None

    @property
    def remembered(self) -> int:
        """How many rows are remembered."""
        return len(self._memory)

    def memory(self) -> list[torch.Tensor]:
        """The remembered rows, copied, each as wide as the whole segments that the part lies in."""
        return [self._rows[slot].clone() for slot in self._memory]

    def restore(self, rows: Sequence[torch.Tensor]) -> None:
        """Remember these rows, and nothing else.

        Raises:
            RunFolderError: Another length or dtype, or a number that is not finite.
        """
        for row in rows:
            if row.shape != (self._width,) or row.dtype != self._like.dtype or not bool(torch.isfinite(row).all()):
                raise RunFolderError(
                    f"noise state: has rows of shape {tuple(row.shape)} and {row.dtype}; they must be finite, "
                    f"({self._width},) and {self._like.dtype}"
                )
        self._memory, self._made, self._released = [], {}, []
        slots = self._free(len(rows))
        for slot, row in zip(slots, rows, strict=True):
            self._rows[slot].copy_(row)
        self._memory = slots

    def make(self, block: Block, *, release: bool) -> None:
        """Compute what is remembered after a block, and the block's own rows where they are to be given out.

        Raises:
            ConfigError: The kernel is to multiply, and is no longer there.
        """
        rounds = block.stop - block.start
        places = sorted({kept.number + rounds * (kept.kind == "combination") for kept in block.kept if kept.kind != "memory"})
        self._made = dict(zip(places, self._free(len(places)), strict=True))
        wanted = len(self._wanted)
        self._released = [self._spare.take(self._rows, wanted) for _ in range(rounds)] if release else []
        segments = [self._source.segments(index, self._first // self._segment) for index in block.drawn]
        on_device = self._like.device.type != "cpu"
        multiplied = self._on_device if on_device else self._by_kernel if self.kernel else self._in_cache
        fresh, product = multiplied(block)
        # NumPy's product has threads of its own: beside other work more than torch has wait for one another in every slice.
        with at_most(torch.get_num_threads()):
            for start in range(0, self._width, self._segment):
                segment = fresh[:, : self._width - start]
                for row, fill in zip(segment, segments, strict=True):
                    fill(row)
                product(segment, start)

    def _in_cache(self, block: Block) -> tuple[torch.Tensor, Product]:
        """Room for fresh rows, and the product on a processor. NumPy's is the faster one for few rows and many columns."""
        rows, memory = self._rows.numpy(), len(self._memory)
        factors = _cast(block.coefficients, self._like).numpy()
        height = factors.shape[1]
        columns = min(self._segment, max(_LEAST_COLUMNS, 1 << (_IN_CACHE // height).bit_length() - 1), self._width)
        operands, product = np.empty((height, columns), rows.dtype), np.empty((len(factors), columns), rows.dtype)
        runs, released = _runs(self._memory), [row.numpy() for row in self._released]
        # Where a segment is one slice, fresh rows are made where they are needed.
        in_place = columns == min(self._segment, self._width)
        room = torch.from_numpy(operands[memory:]) if in_place else self._room(block)

        def multiply(fresh: torch.Tensor, start: int) -> None:
            for at in range(0, fresh.shape[1], columns):
                size = min(columns, fresh.shape[1] - at)
                here = slice(start + at, start + at + size)
                for number, slot, count in runs:
                    operands[number : number + count, :size] = rows[slot : slot + count, here]
                if not in_place:
                    operands[memory:, :size] = fresh.numpy()[:, at : at + size]
                np.matmul(factors, operands[:, :size], out=product[:, :size])
                for number, slot in self._made.items():
                    rows[slot, here] = product[number, :size]
                ours, theirs = self._overlap(start + at, size)
                for number, row in enumerate(released):
                    np.multiply(product[number, ours], self._scale, out=row[theirs], casting="same_kind")

        return room, multiply

    def _by_kernel(self, block: Block) -> tuple[torch.Tensor, Product]:
        """Room for fresh rows, and the product by the compiled kernel."""
        released = dict(enumerate(self._released))
        # What is neither remembered nor given out is not computed.
        numbers = sorted(released.keys() | self._made.keys())
        product = FusedPass(
            KERNEL.in_use(),
            _cast(block.coefficients[numbers], self._like).numpy(),
            [self._rows[slot] for slot in self._memory],
            {at: self._rows[self._made[number]] for at, number in enumerate(numbers) if number in self._made},
            {at: released[number] for at, number in enumerate(numbers) if number in released},
            self._scale,
        )

        def multiply(fresh: torch.Tensor, start: int) -> None:
            made, (ours, theirs) = fresh.numpy(), self._overlap(start, fresh.shape[1])
            for here, to in ((slice(ours.start), None), (ours, theirs.start), (slice(ours.stop, None), None)):
                if made[:, here].shape[1]:
                    product(made[:, here], start + (here.start or 0), to)

        return self._room(block), multiply

    def _room(self, block: Block) -> torch.Tensor:
        return _empty(self._like, len(block.drawn), min(self._segment, self._width))

    def _on_device(self, block: Block) -> tuple[torch.Tensor, Product]:
        factors, memory = _cast(block.coefficients, self._like), len(self._memory)
        runs = _runs(self._memory)

        def multiply(fresh: torch.Tensor, start: int) -> None:
            here = slice(start, start + fresh.shape[1])
            product = factors[:, memory:] @ fresh
            for number, slot, count in runs:
                product.addmm_(factors[:, number : number + count], self._rows[slot : slot + count, here])
            for number, slot in self._made.items():
                self._rows[slot, here] = product[number]
            ours, theirs = self._overlap(start, fresh.shape[1])
            for number, row in enumerate(self._released):
                torch.mul(product[number, ours], self._scale, out=row[theirs])

        return self._room(block), multiply

    def _overlap(self, start: int, size: int) -> tuple[slice, slice]:
        """Which of ``size`` numbers from ``start`` on are wanted: counted from ``start``, and from the first wanted one."""
        first, stop = max(start, self._wanted.start), min(start + size, self._wanted.stop)
        stop = max(first, stop)
        return slice(first - start, stop - start), slice(first - self._wanted.start, stop - self._wanted.start)

    def take(self, number: int) -> torch.Tensor:
        """The made block's row ``number``, as a tensor of the caller's own; given out once."""
        row, self._released[number] = self._released[number], self._released[number][:0]
        return row

    def settle(self, block: Block) -> None:
        """Remember what the made block says; what is not remembered may be overwritten."""
        rounds = block.stop - block.start
        self._memory = [
            self._memory[kept.number]
            if kept.kind == "memory"
            else self._made[kept.number + rounds * (kept.kind == "combination")]
            for kept in block.kept
        ]
        self._made, self._released = {}, []

    def _free(self, count: int) -> list[int]:
        """The ``count`` lowest free slots; the buffer grows where there are too few."""
        taken = set(self._memory)
        if len(taken) + count > len(self._rows):
            self._grow(len(taken) + count, count)
        free = [slot for slot in range(len(self._rows)) if slot not in taken]
        return free[:count]

    def _grow(self, needed: int, new: int) -> None:
        """Room for all that will ever be remembered, which costs nothing until it is touched; else for what is needed now."""
        try:
            grown = _empty(self._like, max(needed, self._most + new, len(self._rows) * 3 // 2), self._width)
        except (MemoryError, RuntimeError):
            grown = _empty(self._like, needed, self._width)
        grown[: len(self._rows)] = self._rows
        self._rows = grown


def _empty(like: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """Room for rows, none of which is touched yet, laid out so that many of them can be read at once."""
    if like.device.type != "cpu":
        return like.new_empty(count, width)
    # An odd number of lines from row to row, so that rows do not share a few places of the cache. NumPy asks for large pages.
    lines = -(-width * like.element_size() // _LINE) | 1
    room = torch.from_numpy(_aligned(count * lines * _LINE)).view(like.dtype)
    return room.view(count, lines * _LINE // like.element_size())[:, :width]


def _aligned(size: int) -> npt.NDArray[np.uint8]:
    """So many bytes, from the beginning of a line on."""
    memory = np.empty(size + _LINE, np.uint8)
    first = -memory.ctypes.data % _LINE
    return memory[first : first + size]


def _cast(coefficients: Array, like: torch.Tensor) -> torch.Tensor:
    """The coefficients in the dtype and on the device of rows."""
    cast = torch.from_numpy(coefficients).to(like)
    if not bool(torch.isfinite(cast).all()):
        raise ValueError(f"dtype = {like.dtype}: cannot hold the strategy's coefficients; scale C, or use float64")
    return cast


def _runs(slots: Sequence[int]) -> list[tuple[int, int, int]]:
    """Slots in runs of neighbours: where a run begins in the list, its first slot, and how many there are."""
    runs: list[tuple[int, int, int]] = []
    for at, slot in enumerate(slots):
        if runs and slot == runs[-1][1] + runs[-1][2]:
            runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((at, slot, 1))
    return runs


class _SpareRows:
    """Memory of released rows that their owners have let go, used again: fresh memory costs more to touch than noise to add.

    On a processor a row lies in a NumPy array that nobody else sees. The storage of the tensors on it, and so whoever holds
    one of them or a view, keeps that array alive; its memory comes back when the array dies.
    """

    def __init__(self) -> None:
        self._spare: list[npt.NDArray[np.uint8]] = []

    def take(self, like: torch.Tensor, length: int) -> torch.Tensor:
        """Room for a row of ``like``'s dtype and device."""
        if like.device.type != "cpu":
            return like.new_empty(length)
        memory = self._spare.pop() if self._spare else _aligned(length * like.element_size())
        seen = memory[:]
        weakref.finalize(seen, _keep, self._spare, memory).atexit = False
        return torch.from_numpy(seen).view(like.dtype)


def _keep(spare: list[npt.NDArray[np.uint8]], memory: npt.NDArray[np.uint8]) -> None:
    if len(spare) < _MOST_SPARE:
        spare.append(memory)
