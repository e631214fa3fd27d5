"""The stream of noise: rows of stddev·N·z as tensors, resumable, and where z comes from.

A stream is the one stateful object on the noise path. Each of its rows is used once; it refuses a row that the strategy
does not have. Where z comes from is one of two:

* ``secure``: AES-256 in counter mode under a secret key, made Gaussian by Box and Muller's formula in float64 with a radius
  of 106 random bits, so that tails are right beyond 11 standard deviations. No rejection: the work does not depend on the
  values.
* ``simulation``: torch's generator under a seed; fast, for experiments, not for release: who knows the seed removes the noise.
"""

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from hubbub._checks import integer
from hubbub.errors import NoiseExhaustedError, RunFolderError
from hubbub.mechanism import Mechanism
from hubbub.randomness import derive, fresh_key, seed_for, seed_key, word_stream

__all__ = ["NoiseSource", "NoiseStream", "SecureSource", "SimulationSource", "sampler"]

# Pairs at a time: small enough for the processor's cache, large enough that calls do not count. Another number is another row.
_BLOCK = 1 << 15


class NoiseSource(Protocol):
    """Where rows of z come from."""

    def row(self, index: int, dim: int) -> torch.Tensor:
        """Row ``index`` of z, ``(dim,)`` float64 on the CPU; the same each time it is asked for."""


class SimulationSource:
    """torch's generator, one seed for each row. Not for release."""

    def __init__(self, seed: int) -> None:
        self._key = derive(seed_key(seed), "noise")

    def row(self, index: int, dim: int) -> torch.Tensor:
        """Row ``index`` of z, ``(dim,)``."""
        generator = torch.Generator().manual_seed(seed_for(self._key, index))
        return torch.randn(dim, generator=generator, dtype=torch.float64)


class SecureSource:
    """AES-256 in counter mode under a secret key of 32 bytes, one derived key for each row.

    Belongs to the process that made it: a fork would draw the same rows for other data.

    Raises:
        NoiseExhaustedError: From :meth:`row`, in another process.
    """

    def __init__(self, key: bytes) -> None:
        self._key = derive(key, "noise")
        self._process = os.getpid()

    def row(self, index: int, dim: int) -> torch.Tensor:
        """Row ``index`` of z, ``(dim,)``."""
        if os.getpid() != self._process:
            raise NoiseExhaustedError(
                f"row {index} of z: process {os.getpid()} was forked from {self._process}, whose rows these are; open the run "
                "in the process that releases it"
            )
        pairs = (dim + 1) // 2
        row = torch.empty(2, pairs, dtype=torch.float64)
        words = word_stream(derive(self._key, index))
        for start in range(0, pairs, _BLOCK):
            _box_muller(words, row[:, start : start + _BLOCK])
        return row.view(-1)[:dim]


def _box_muller(words: Callable[[int], npt.NDArray[np.int64]], out: torch.Tensor) -> None:
    """Fill ``out``, ``(2, pairs)``, with pairs of normal numbers; the same work whatever the words are."""
    pairs = out.shape[1]
    # 53 of 64 random bits each. Shifted in place, and as unsigned numbers, so that none is negative.
    bits = torch.from_numpy(words(3 * pairs)).bitwise_right_shift_(11).bitwise_and_(2**53 - 1)
    coarse, fine, turn = bits.to(torch.float64).view(3, pairs)
    # A uniform number in (0, 1) of 106 bits: where the first 53 are all 0, the second 53 still tell.
    uniform = fine.add_(0.5).mul_(2.0**-106).add_(coarse.mul_(2.0**-53))
    radius = uniform.log_().mul_(-2).sqrt_()
    angle = turn.mul_(2 * math.pi * 2.0**-53)
    torch.mul(radius, torch.cos(angle), out=out[0])
    torch.mul(radius, torch.sin(angle), out=out[1])


@cache
def sampler() -> str:
    """A fingerprint of how keys become noise here: another one where a processor or a library computes another last bit."""
    return hashlib.sha256(SecureSource(bytes(32)).row(0, 4099).numpy().tobytes()).hexdigest()


class NoiseStream:
    """Row after row of stddev·N·z for a mechanism, each given out once.

    Args:
        mechanism: Its strategy correlates the rows, its ``stddev`` scales them.
        dim: Length of a row.
        seed: A simulation's seed. Without one the noise is secret: its key is drawn from the operating system.
        source: Where z comes from, in place of ``seed``.
        device: Where rows are needed.
        dtype: Of the rows.

    ``drawn`` is one more than the last row of z that was drawn.

    Raises:
        TypeError: Both a seed and a source.
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
    ) -> None:
        if seed is not None and source is not None:
            raise TypeError("seed and source: give one of them")
        self.mechanism = mechanism
        self.dim = integer("dim", dim, at_least=1)
        self.round_index = 0
        if source is None:
            source = SecureSource(fresh_key()) if seed is None else SimulationSource(seed)
        self.source: NoiseSource = source
        self._device, self._dtype = torch.device(device), dtype
        self._memory: tuple[torch.Tensor, ...] = ()
        # What is remembered is secret noise too; a simulation's anybody may draw.
        self._process = None if isinstance(source, SimulationSource) else os.getpid()
        self.drawn = 0

    def next_row(self) -> torch.Tensor:
        """The noise of the next round, ``(dim,)``, per unit of clip norm.

        Raises:
            NoiseExhaustedError: The strategy has no further round.
        """
        if self._process not in (None, os.getpid()):
            raise NoiseExhaustedError(
                f"round {self.round_index}: process {os.getpid()} was forked from {self._process}, whose noise this is; open "
                "the run in the process that releases it"
            )
        row, memory = self.mechanism.strategy.step(self.round_index, self._draw, self._memory)
        self._memory = memory
        self.round_index += 1
        scaled: torch.Tensor = row * self.mechanism.stddev
        return scaled

    def skip_to(self, round_index: int) -> None:
        """Go on to a later round; the rows between are drawn, remembered for correlation, and given to nobody."""
        while self.round_index < round_index:
            self.next_row()

    def _state_after(self, rounds: int) -> tuple[int, int]:
        """How many rows of z are drawn and how many rows remembered after some rounds, found on rows of one number."""
        drawn, memory = 0, ()

        def draw(index: int) -> npt.NDArray[np.float64]:
            nonlocal drawn
            drawn = index + 1
            return np.zeros(1)

        for round_index in range(rounds):
            _, memory = self.mechanism.strategy.step(round_index, draw, memory)
        return drawn, len(memory)

    def _draw(self, index: int) -> torch.Tensor:
        if index < self.drawn:
            raise NoiseExhaustedError(f"row {index} of z was passed already: each is drawn once, in increasing order")
        self.drawn = index + 1
        return self.source.row(index, self.dim).to(self._device, self._dtype)

    def state_dict(self) -> dict[str, Any]:
        """What the stream carries from round to round. As secret as the noise: it takes the noise off later releases."""
        memory = [row.clone() for row in self._memory]
        return {"round_index": self.round_index, "drawn": self.drawn, "memory": memory}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken, from the same source.

        Raises:
            RunFolderError: The state is not one that this stream can be in.
            ValueError, TypeError: A number out of range.
        """
        rows = tuple(state["memory"])
        for row in rows:
            if row.shape != (self.dim,) or row.dtype != self._dtype or not bool(torch.isfinite(row).all()):
                raise RunFolderError(
                    f"noise state: has rows of shape {tuple(row.shape)} and {row.dtype}; they must be finite, ({self.dim},) "
                    f"and {self._dtype}"
                )
        round_index = integer("noise state: round_index", state["round_index"], at_least=0, at_most=self.mechanism.rounds)
        drawn, remembered = self._state_after(round_index)
        if (state["drawn"], len(rows)) != (drawn, remembered):
            raise RunFolderError(
                f"noise state: drawn = {state['drawn']!r} with {len(rows)} rows; after {round_index} rounds it is {drawn} with "
                f"{remembered}"
            )
        self.round_index, self.drawn = round_index, drawn
        self._memory = tuple(row.to(self._device, self._dtype) for row in rows)
