"""A stream of noise that belongs to one holder of a secure aggregation's key: nobody else knows a row of it.

As C⁻¹ is linear, each holder can add the whole noise of the mechanism, correlated over rounds, under encryption. Nobody then
knows all noise in a sum, for √holders times the noise of one.

What a holder keeps is a folder of its own::

    noise.json       the first row of each start, the next round, and how keys become noise on this machine
    keys/epoch-N     32 secret bytes each
"""

from pathlib import Path
from typing import Any

import torch

from hubbub import files, strict_json
from hubbub._checks import integer
from hubbub.errors import NoiseExhaustedError, RunFolderError
from hubbub.mechanism import Mechanism
from hubbub.noise import NoiseStream, SimulationSource, sampler
from hubbub.noise.sources import IncarnationSource
from hubbub.randomness import KEY_BYTES, fresh_key

__all__ = ["HolderNoise"]

_LARGEST = 1_000_000


class HolderNoise:
    """Rows of stddev·N·z, each for one round and given out once.

    Args:
        mechanism: Whose noise it is.
        dim: Numbers in a sum.
        folder: Where the holder keeps what it drew; ``None`` keeps it in memory.
        seed: Of a simulation, in place of secret keys.

    Raises:
        RunFolderError: The folder cannot be read, or what it drew before cannot be drawn again bit for bit on this machine.
    """

    def __init__(self, mechanism: Mechanism, dim: int, folder: Path | None = None, *, seed: int | None = None) -> None:
        self._folder = folder
        if seed is not None:
            self._stream = NoiseStream(mechanism, dim, source=SimulationSource(seed))
            self._next, self._first_rows = 0, list[int]()
            return
        self._next, self._first_rows = self._kept()
        epochs = [(first, self._key(number)) for number, first in enumerate(self._first_rows)]
        source = IncarnationSource(epochs)
        # Real noise of a round does not exist before it is asked for.
        self._stream = NoiseStream(mechanism, dim, source=source)
        self._stream.skip_to(self._next)
        key = fresh_key()
        source.start(self._stream.drawn, key)
        self._first_rows.append(self._stream.drawn)
        if folder is not None:
            files.make_folder(folder / "keys")
            files.write_atomic(folder / "keys" / f"epoch-{len(epochs)}", key)
        self._remember()

    @property
    def next_round(self) -> int:
        """The first round whose row was not given out."""
        return self._next

    def row(self, round_index: int) -> torch.Tensor:
        """The row of a round, ``(dim,)`` float64 per unit of clip norm. When it is returned it is spent, on disk too.

        Args:
            round_index: Rounds in between are given up.

        Raises:
            NoiseExhaustedError: The row was given out already, or the mechanism has no such round.
        """
        if integer("round_index", round_index, at_least=0) < self._next:
            raise NoiseExhaustedError(
                f"round {round_index + 1}: its row of noise was given out already, and none meets two sums"
            )
        self._stream.skip_to(round_index)
        self._next = round_index + 1
        self._remember()
        return self._stream.next_row()

    def _kept(self) -> tuple[int, list[int]]:
        """The next round and the first row of each epoch, of earlier starts."""
        path = None if self._folder is None else self._folder / "noise.json"
        if path is None or not path.exists():
            return 0, []
        try:
            told = strict_json.loads(files.read(path, at_most=_LARGEST))
            if told["sampler"] != sampler():
                raise ValueError("its noise cannot be drawn again bit for bit with this processor, torch or hubbub")
            first_rows = [integer("first_rows", row, at_least=0) for row in told["first_rows"]]
            return integer("next_round", told["next_round"], at_least=0), first_rows
        except (ValueError, TypeError, KeyError) as error:
            raise RunFolderError(f"{path}: cannot be read ({error}); restore this holder's folder from a copy") from error

    def _key(self, number: int) -> bytes:
        path = Path(str(self._folder)) / "keys" / f"epoch-{number}"
        key = files.read(path, at_most=KEY_BYTES + 1)
        if len(key) != KEY_BYTES:
            raise RunFolderError(f"{path}: holds {len(key)} bytes, a key has {KEY_BYTES}; restore this holder's folder")
        return key

    def _remember(self) -> None:
        if self._folder is None or not self._first_rows:
            return
        told: dict[str, Any] = {"first_rows": self._first_rows, "next_round": self._next, "sampler": sampler()}
        files.write_atomic(self._folder / "noise.json", strict_json.canonical(told))
