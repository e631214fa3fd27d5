"""The stream of noise: rows of stddev·N·z as tensors, resumable.

The stream is the one stateful object on the noise path. Each row is used once; a row beyond the strategy's rounds is refused.
"""

import contextlib
import os
import resource
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch

from hubbub._util.checks import integer
from hubbub._util.prf import fresh_key, require_own_process
from hubbub.errors import ConfigError, NoiseExhaustedError, RunFolderError
from hubbub.mechanism import Mechanism
from hubbub.mechanism.strategies.strategy import Memory, memory_rows, progress, require_round
from hubbub.noise.sources import IncarnationSource, NoiseSource, SecureSource, Segments, SimulationSource

_CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")


class NoiseStream:
    """Row after row of stddev·N·z for a mechanism, each given out once, to one thread at a time.

    The strategy's own ``step`` computes a row segment by segment, in the cache. Sums and products are elementwise: a row has
    the same bits on any machine that draws the same z, and in any parts.

    Args:
        mechanism: Its strategy correlates the rows, its ``stddev`` scales them.
        dim: Length of the whole vector.
        seed: A simulation's seed. Without one the noise is secret: its key is drawn from the operating system.
        source: Of z, in place of ``seed``.
        device: Where rows are needed; they are made, and remembered, on the processor.
        dtype: Of the rows and the remembered ones. A release needs float64, and is refused with float32.
        part: ``(first, stop)``: return these numbers of each row only. The parts of a vector together have the bits of the rows
            of one stream.

    ``drawn`` is one more than the last row of z that was drawn.

    Raises:
        TypeError: Both a seed and a source.
        ConfigError: The remembered rows need more memory than there is.
        ValueError: A part outside of the vector, a dtype other than float32 and float64, or from :meth:`next_row`, a strategy
            whose rows do not fit the dtype.
        NoiseExhaustedError: From :meth:`next_row`, after the strategy's last round, in a forked process, or while
            another thread draws the row; of the state of a stream with a prepared row.

    Example:
        >>> from hubbub.mechanism.participation import SingleParticipation
        >>> from hubbub.mechanism.strategies import Identity
        >>> stream = NoiseStream(Mechanism(Identity(rounds=2), SingleParticipation(), 1.0), dim=3, seed=0)
        >>> stream.next_row().shape, stream.round_index
        (torch.Size([3]), 1)
    """

    def __init__(
        self,
        mechanism: Mechanism,
        dim: int,
        *,
        seed: int | None = None,
        source: NoiseSource | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
        part: tuple[int, int] | None = None,
    ) -> None:
        if seed is not None and source is not None:
            raise TypeError("seed and source: give one of them")
        self.mechanism = mechanism
        self.dim = integer("dim", dim, at_least=1)
        if source is None:
            source = SecureSource(fresh_key()) if seed is None else SimulationSource(seed)
        self.source: NoiseSource = source
        # A secret stream belongs to one process: its remembered rows are secret, too.
        self._process = None if isinstance(source, SimulationSource) else os.getpid()
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype = {dtype}: must be torch.float32 or torch.float64; with less precision it is not Gaussian")
        self._like = torch.empty(0, device="cpu", dtype=dtype)
        self._device = torch.empty(0, device=device).device
        first, stop = part or (0, self.dim)
        if not 0 <= first < stop <= self.dim:
            raise ValueError(f"part = {part}: must be (first, stop) with 0 <= first < stop <= dim = {self.dim}")
        self._most = memory_rows(mechanism.strategy) or 0
        require_memory(self._most, stop - first, self._like.element_size())
        # Whole segments are computed, so that a number does not depend on the part.
        self._length = source.segment_length
        self._first_segment = first // self._length
        begin = self._first_segment * self._length
        self._width = min(self.dim, -(-stop // self._length) * self._length) - begin
        self._segments = [(at, min(at + self._length, self._width)) for at in range(0, self._width, self._length)]
        self._wanted = slice(first - begin, stop - begin)
        self._round = self.drawn = 0
        if isinstance(source, SecureSource | IncarnationSource):
            source.claim()
        # At most one: the round of a row that a thread draws, the process that began it, and the row. Taken as a turn is.
        self._prepared: list[tuple[int, int, Future[torch.Tensor]]] = []
        # Empty while a row is drawn: taking it is one call, so that of two threads one gets the row.
        self._turn = [True]
        # Remembered rows lie in the listed slots of the ring, the oldest first; other slots are free.
        self._ring = self._slots(0)
        self._remembered: list[int] = []

    @property
    def round_index(self) -> int:
        """The round of the next row."""
        return self._prepared[0][0] if self._prepared else self._round

    @property
    def prepared(self) -> bool:
        """Whether a thread draws the next row, or has drawn it."""
        return bool(self._prepared)

    def prepare(self) -> None:
        """Begin to draw the next row in a thread, if one is to be had; :meth:`next_row` waits for it."""
        if not self._prepared:
            thread = ThreadPoolExecutor(1, "noise")
            with contextlib.suppress(RuntimeError):
                self._prepared = [(self._round, os.getpid(), thread.submit(self._next_row))]
            thread.shutdown(wait=False)

    def next_row(self) -> torch.Tensor:
        """The noise of the next round, per unit of clip norm: ``(dim,)``, or as long as the part; a new tensor.

        Raises:
            NoiseExhaustedError: The strategy has no further round.
        """
        if not self._prepared:
            return self._next_row()
        prepared = self._prepared
        round_index, process, thread = prepared[0]
        require_own_process(process, f"round {round_index}", "which drew its row")
        row = thread.result()
        try:
            prepared.pop()
        except IndexError:
            raise NoiseExhaustedError(f"round {round_index}: another thread took its row; ask from one thread") from None
        return row

    def _next_row(self) -> torch.Tensor:
        whole = self._like.new_empty(self._width)
        own = whole[self._wanted]
        # Its place first: where memory is lacking no row is lost.
        placed = own.to(self._device)
        self._step(whole)
        return placed.copy_(own)

    def skip_to(self, round_index: int) -> None:
        """Advance to a later round; the rows between are drawn and remembered for correlation, but not returned.

        Of a strategy that remembers none they are not drawn.
        """
        if self._prepared and self.round_index < round_index:
            _, process, thread = self._prepared.pop()
            if process == os.getpid():
                wait([thread])
        strategy = self.mechanism.strategy
        if self._round < round_index and not self.draws_to(round_index):
            require_round(round_index - 1, strategy.rounds)
            self._round, self.drawn = round_index, progress(strategy, round_index).drawn
        while self._round < round_index:
            self._step(None)

    def draws_to(self, round_index: int) -> bool:
        """Whether :meth:`skip_to` draws rows on the way to a round."""
        strategy = self.mechanism.strategy
        # The steps of a strategy of your own may remember more than it states.
        return self.round_index < round_index and (
            memory_rows(strategy) != 0 or progress(strategy, min(round_index, strategy.rounds)).remembered > 0
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Refuse a copy of secret noise: one row would meet two sums, whose difference is then bare."""
        if self._process is not None:
            raise TypeError("a stream of secret noise cannot be copied or pickled; open the run where it is released")
        return super().__reduce_ex__(protocol)

    def _step(self, out: torch.Tensor | None) -> None:
        """Take a step, unless another thread takes it."""
        try:
            self._turn.pop()
        except IndexError:
            raise NoiseExhaustedError(f"round {self._round}: another thread draws its row; ask from one thread") from None
        try:
            self._step_alone(out)
        finally:
            self._turn.append(True)

    def _step_alone(self, out: torch.Tensor | None) -> None:
        """Take one step in each segment, and write the rows to ``out``; a step that fails changes nothing."""
        if self._process is not None:
            require_own_process(self._process, f"round {self._round}", "whose noise this is")
        strategy = self.mechanism.strategy
        require_round(self._round, strategy.rounds)
        z = _Draws(self.source, self._first_segment, self._like)
        places: list[int] | None = None
        for start, stop in self._segments:
            z.begin_segment(stop - start)
            memory = tuple(self._ring[slot, start:stop] for slot in self._remembered)
            # Overflow is found in the row.
            with np.errstate(all="ignore"):
                row, kept = strategy.step(self._round, z.draw, memory)
            if wrong := [tuple(np.shape(one)) for one in (row, *kept) if np.shape(one) != (stop - start,)]:
                # A shorter row would leave numbers without noise.
                raise ValueError(
                    f"strategy = {type(strategy).__name__}: its step makes a row of shape {wrong[0]} of rows of z of "
                    f"{stop - start} numbers; a step is elementwise"
                )
            places = places or self._places(memory, kept)
            for slot, one in zip(places, kept, strict=True):
                if slot not in self._remembered:
                    self._ring[slot, start:stop] = one
            if out is not None:
                unit = torch.as_tensor(row, dtype=out.dtype, device=out.device)
                released = torch.mul(unit, self.mechanism.stddev, out=out[start:stop])
                if not bool(released.sum().isfinite()):
                    raise ValueError(f"dtype = {out.dtype}: cannot hold the strategy's coefficients; scale C, or use float64")
        self._remembered, self.drawn = places or [], max(self.drawn, z.drawn)
        self._round += 1

    def _places(self, memory: Memory, kept: Memory) -> list[int]:
        """The slot of each kept row: its own, where a step carries a row on, else a free one."""
        own = {id(row): slot for row, slot in zip(memory, self._remembered, strict=True)}
        new = sum(id(row) not in own for row in kept)
        if len(memory) + new > len(self._ring):
            grown = self._slots(max(len(memory) + new, self._most + new))
            grown[: len(self._ring)] = self._ring
            self._ring = grown
        free = (slot for slot in range(len(self._ring)) if slot not in self._remembered)
        return [own[id(row)] if id(row) in own else next(free) for row in kept]

    def _slots(self, count: int) -> npt.NDArray[Any]:
        """Memory for ``count`` rows: NumPy's, which uses large pages and adds short rows faster."""
        return np.empty((count, self._width), self._like.numpy().dtype)

    def state_dict(self) -> dict[str, Any]:
        """The state of the stream. As secret as the noise: it removes the noise from later releases.

        ``memory`` holds the remembered rows, each as long as the whole segments that the part lies in.
        """
        self._require_none_prepared()
        memory = [torch.from_numpy(self._ring[slot].copy()) for slot in self._remembered]
        return {"round_index": self.round_index, "drawn": self.drawn, "memory": memory}

    def remembered(self) -> Iterator[bytes]:
        """The remembered rows of :meth:`state_dict`, one after another."""
        self._require_none_prepared()
        for slot in self._remembered:
            yield self._ring[slot].tobytes()

    def take_up(self, round_index: int, drawn: int, rows: memoryview) -> None:
        """Restore the state of :meth:`remembered`, which may be written over, as :meth:`load_state_dict` does."""
        kept = np.frombuffer(rows, dtype=self._ring.dtype).reshape(-1, self._width)
        memory = [torch.from_numpy(row) for row in kept]
        self.load_state_dict({"round_index": round_index, "drawn": drawn, "memory": memory})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue bit for bit where :meth:`state_dict` was taken, from the same source.

        Raises:
            NoiseExhaustedError: Rows of secret noise were given out since.
            RunFolderError: The state is no possible one of this stream.
            ValueError, TypeError: A number out of range.
        """
        self._require_none_prepared()
        rows, strategy = tuple(state["memory"]), self.mechanism.strategy
        round_index = integer("noise state: round_index", state["round_index"], at_least=0, at_most=strategy.rounds)
        if self._process is not None and round_index < self.round_index:
            raise NoiseExhaustedError(
                f"noise state: round_index = {round_index}: this stream gave out the rows before round {self.round_index}, and "
                "none meets two sums; restore an earlier state of a simulation (seed=) only"
            )
        expected = progress(strategy, round_index)
        if (state["drawn"], len(rows)) != (expected.drawn, expected.remembered):
            raise RunFolderError(
                f"noise state: drawn = {state['drawn']!r} with {len(rows)} rows; after {round_index} rounds it is "
                f"{expected.drawn} with {expected.remembered}"
            )
        for row in rows:
            if row.shape != (self._width,) or row.dtype != self._like.dtype or not bool(torch.isfinite(row).all()):
                raise RunFolderError(
                    f"noise state: has rows of shape {tuple(row.shape)} and {row.dtype}; they must be finite, ({self._width},) "
                    f"and {self._like.dtype}"
                )
        # With room for the next row, so that this memory is taken once.
        self._ring = self._slots(max(len(rows), self._most) + 1)
        self._remembered = list(range(len(rows)))
        for slot, row in enumerate(rows):
            self._ring[slot] = row
        self._round, self.drawn = round_index, expected.drawn

    def _require_none_prepared(self) -> None:
        if self._prepared:
            raise NoiseExhaustedError(f"round {self.round_index}: its row was prepared; take it before the state, by next_row")


class _Draws:
    """The rows of z that one round draws, segment after segment."""

    def __init__(self, source: NoiseSource, first_segment: int, like: torch.Tensor) -> None:
        self._source, self._first_segment, self._like = source, first_segment, like
        self._filling: dict[int, Segments] = {}
        self._segment: dict[int, npt.NDArray[Any]] = {}
        self._width = self.drawn = 0

    def begin_segment(self, width: int) -> None:
        """Advance to the next segment, of ``width`` numbers."""
        self._segment.clear()
        self._width = width

    def draw(self, index: int) -> npt.NDArray[Any]:
        """The segment of row ``index`` of z."""
        if index not in self._filling:
            self._filling[index] = self._source.segments(index, self._first_segment)
            self.drawn = max(self.drawn, index + 1)
        if index not in self._segment:
            z = self._like.new_empty(self._width)
            self._filling[index](z)
            self._segment[index] = z.numpy()
        return self._segment[index]


def require_memory(rows: int, width: int, number_bytes: int = 8) -> None:
    """Refuse a stream whose ``rows`` remembered rows of ``width`` numbers exceed the memory."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    with contextlib.suppress(OSError, ValueError):
        # "max" means no limit.
        limits.append(int(_CONTROL_GROUP.read_text()))
    needed, most = rows * width * number_bytes, min(limits)
    if needed > most:
        raise ConfigError(
            f"the noise remembers {rows:,} rows of {width:,} numbers, {needed / 2**30:,.1f} GiB, and {most / 2**30:,.1f} GiB "
            "is all the memory there is; take a strategy that remembers fewer rows (fewer bands, banded-inverse, or blt with "
            "its few buffers), or a smaller model"
        )
