"""Two sides in one process, each with its own state of the global generators, as if each had a process to itself."""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["OwnGenerators"]

_States = dict[str, Any]


class OwnGenerators:
    """One side's stream of Python's, NumPy's and torch's global generators (of the CPU); torch's once torch is loaded.

    It begins at a point given by the other side's generators, and far from theirs: who seeds those repeats both, and the two
    never draw the same numbers. Not for secrets.
    """

    def __init__(self) -> None:
        self._states: _States = {}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, this side's stream goes on; outside, nothing of it is seen."""
        others = _read()
        _write(_begin(others) | self._states)
        try:
            yield
        finally:
            self._states = _read()
            _write(others)


def _read() -> _States:
    states: _States = {"random": random.getstate(), "numpy": np.random.get_state()}  # noqa: NPY002 # an app may draw from it
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state()
    return states


def _write(states: _States) -> None:
    random.setstate(states["random"])
    np.random.set_state(states["numpy"])  # noqa: NPY002 # as above
    if "torch" in states:
        sys.modules["torch"].set_rng_state(states["torch"])


def _begin(others: _States) -> _States:
    told = [repr(others["random"]).encode(), others["numpy"][1].tobytes()]
    if "torch" in others:
        told.append(others["torch"].numpy().tobytes())
    digest = hashlib.sha256(b"".join(told)).digest()
    states: _States = {
        "random": random.Random(digest).getstate(),  # noqa: S311 # what apps expect, not secrets
        "numpy": np.random.RandomState(np.frombuffer(digest, dtype=np.uint32)).get_state(),
    }
    if "torch" in others:
        states["torch"] = sys.modules["torch"].Generator().manual_seed(int.from_bytes(digest[:7])).get_state()
    return states
