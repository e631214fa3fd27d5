"""The stream of noise: rows of stddev·N·z as tensors, resumable.

A stream is the one stateful object on the noise path. Each of its rows is used once; it refuses a row that the strategy
does not have.
"""

import os
from collections.abc import Mapping
from typing import Any, SupportsIndex

import torch

from hubbub._checks import integer
from hubbub.errors import NoiseExhaustedError, RunFolderError
from hubbub.mechanism import Mechanism
from hubbub.noise import blocks
from hubbub.noise.room import require_memory
from hubbub.noise.rows import KERNEL
from hubbub.noise.slots import SlotBuffer
from hubbub.noise.sources import NoiseSource, SecureSource, SimulationSource
from hubbub.randomness import fresh_key
from hubbub.strategies.strategy import memory_rows, require_round

__all__ = ["NoiseStream"]


class NoiseStream:
    """Row after row of stddev·N·z for a mechanism, each given out once.

    Rows are made several at a time, as one matrix product over slices of the vector that fit in the processor's cache: what is
    remembered lies in one buffer, in which nothing is moved, and is read once a pass. In float32 on a processor the noise
    kernel multiplies, where this machine has one.

    Args:
        mechanism: Its strategy correlates the rows, its ``stddev`` scales them.
        dim: Length of the whole vector.
        seed: A simulation's seed. Without one the noise is secret: its key is drawn from the operating system.
        source: Where z comes from, in place of ``seed``.
        device: Where rows are needed. A simulation draws z there; its numbers differ between kinds of device.
        dtype: Of the rows and of what is remembered.
        part: ``(first, stop)``: give these numbers of each row only. The parts of a vector, made anywhere, are together
            bit for bit the rows of one stream; in float32, where all are made with the kernel or all without it.
        rounds_per_pass: How many rounds are made at a time; by default as many as pay. With 1 no row of z is drawn before
            the round that needs it. Another number is another rounding of the last bit.

    ``round_index`` is the next row's round, ``drawn`` one more than the last row of z that the rounds before it need.

    Raises:
        TypeError: Both a seed and a source.
        ConfigError: The rows that it remembers need more memory than there is.
        ValueError: A part that is no part of the vector, or a dtype other than float32 and float64.
        NoiseExhaustedError: From :meth:`next_row`, after the strategy's last round, or in a forked process.

    Example:
        >>> from hubbub.participation import SingleParticipation
        >>> from hubbub.strategies import Identity
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
        rounds_per_pass: int | None = None,
    ) -> None:
        if seed is not None and source is not None:
            raise TypeError("seed and source: give one of them")
        self.mechanism = mechanism
        self.dim = integer("dim", dim, at_least=1)
        self.round_index = 0
        if source is None:
            source = SecureSource(fresh_key()) if seed is None else SimulationSource(seed)
        self.source: NoiseSource = source
        # What is remembered is secret noise too; a simulation's anybody may draw.
        self._process = None if isinstance(source, SimulationSource) else os.getpid()
        most = memory_rows(mechanism.strategy) or 0
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype = {dtype}: must be torch.float32 or torch.float64; with less precision it is not Gaussian")
        like = torch.empty(0, device=device, dtype=dtype)
        first, stop = part or (0, self.dim)
        require_memory(most, stop - first, like)
        self._buffer = SlotBuffer(source, self.dim, (first, stop), like, most=most, scale=mechanism.stddev)
        pass_of = blocks.rounds_per_pass(mechanism.strategy) if rounds_per_pass is None else rounds_per_pass
        self._pass = integer("rounds_per_pass", pass_of, at_least=1)
        # The pass that holds the next round: planned, and perhaps not yet made.
        self._block: blocks.Block | None = None
        self._made = False
        self._drawn_before = 0

    @property
    def drawn(self) -> int:
        """One more than the last row of z that the rounds before ``round_index`` need."""
        if self._block is None or self.round_index == self._block.start:
            return self._drawn_before
        return self._block.drawn_after[self.round_index - self._block.start - 1]

    def next_row(self) -> torch.Tensor:
        """The noise of the next round, per unit of clip norm: ``(dim,)``, or as long as the part. It is the caller's own.

        Raises:
            NoiseExhaustedError: The strategy has no further round.
        """
        self._require_own_process()
        block = self._planned()
        if not self._made:
            self._buffer.make(block, release=True)
            self._made = True
        row = self._buffer.take(self.round_index - block.start)
        self.round_index += 1
        return row

    def skip_to(self, round_index: int) -> None:
        """Go on to a later round; the rows between are drawn, remembered for correlation, and given to nobody."""
        self._require_own_process()
        while self.round_index < round_index:
            block = self._planned()
            if not self._made and round_index >= block.stop:
                self._buffer.make(block, release=False)
                self._made = True
            # A pass that ends later is made when its first row is asked for, with the keys that hold by then.
            self.round_index = min(round_index, block.stop)

    def _planned(self) -> blocks.Block:
        """The pass that holds the next round."""
        block = self._block
        if block is not None and self.round_index < block.stop:
            return block
        if block is not None:
            if not self._made:
                self._buffer.make(block, release=False)
            require_round(self.round_index, self.mechanism.rounds)
            self._settle(block)
        self._block = self._plan(self.round_index)
        self._made = False
        return self._block

    def _settle(self, block: blocks.Block) -> None:
        self._drawn_before = block.drawn_after[-1]
        self._buffer.settle(block)

    def _plan(self, start: int) -> blocks.Block:
        stop = (start // self._pass + 1) * self._pass
        return blocks.block_of(self.mechanism.strategy, start, stop, self._buffer.remembered, self._drawn_before)

    def _require_own_process(self) -> None:
        if self._process not in (None, os.getpid()):
            raise NoiseExhaustedError(
                f"round {self.round_index}: process {os.getpid()} was forked from {self._process}, whose noise this is; open "
                "the run in the process that releases it"
            )

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Refused where the noise is secret: two copies would give one row to two sums, whose difference is then bare."""
        if self._process is not None:
            raise TypeError("a stream of secret noise cannot be copied or pickled; open the run where it is released")
        return super().__reduce_ex__(protocol)

    def state_dict(self) -> dict[str, Any]:
        """What the stream carries from round to round. As secret as the noise: it takes the noise off later releases.

        ``memory`` is that before the pass that holds the next round; the rows of z since then are drawn again. ``kernel`` says
        whether the noise kernel made it.
        """
        if self._block is not None and self.round_index == self._block.stop and self.round_index % self._pass == 0:
            self._settle(self._block)
            self._block = None
        memory = self._buffer.memory()
        return {
            "round_index": self.round_index,
            "drawn": self.drawn,
            "rounds_per_pass": self._pass,
            "kernel": self._buffer.kernel,
            "memory": memory,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue bit for bit where :meth:`state_dict` was taken, from the same source, and as there with the noise kernel or
        without it; a state that does not say which is of a stream without it.

        Raises:
            RunFolderError: The state is not one that this stream can be in, or was taken with the kernel, which is not here.
            ValueError, TypeError: A number out of range.
        """
        if state["rounds_per_pass"] != self._pass:
            raise RunFolderError(
                f"noise state: was taken with rounds_per_pass = {state['rounds_per_pass']!r}, and its memory belongs to that; "
                f"this stream has {self._pass}"
            )
        kernel = state.get("kernel", False)
        if not isinstance(kernel, bool) or (kernel and not self._buffer.could_use_kernel()):
            raise RunFolderError(
                f"noise state: was taken with kernel = {kernel!r}, and other last bits would not go on from it; the noise "
                f"kernel, which is for float32 on a processor, is {KERNEL.standing()}"
            )
        rows = tuple(state["memory"])
        strategy = self.mechanism.strategy
        round_index = integer("noise state: round_index", state["round_index"], at_least=0, at_most=strategy.rounds)
        drawn = blocks.progress(strategy, round_index).drawn
        start = round_index // self._pass * self._pass
        before = blocks.progress(strategy, start)
        if (state["drawn"], len(rows)) != (drawn, before.remembered):
            raise RunFolderError(
                f"noise state: drawn = {state['drawn']!r} with {len(rows)} rows; after {round_index} rounds it is {drawn} with "
                f"{before.remembered}"
            )
        self._buffer.restore(rows)
        self._buffer.kernel = kernel
        self._drawn_before, self.round_index, self._made = before.drawn, round_index, False
        self._block = self._plan(start) if start < round_index else None
