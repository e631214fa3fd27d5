"""What goes wrong in one unit's own computation: it adds nothing, and the round goes on, as where a client far away fails.

That a round stops would tell that the unit is there. What fails for every unit is found before the first round, on made-up
examples. What the machine has not enough of, memory above all, stops the run whoever asked for it: who else then failed would
hang on what others hold, and to leave those out is no function of each one's own data.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from hubbub.errors import ConfigError

__all__ = ["isolated", "note", "reason", "require_own"]

_LOG = logging.getLogger("hubbub")
_LONGEST = 200
_MACHINE: tuple[type[BaseException], ...] = (
    MemoryError,
    torch.OutOfMemoryError,
    # Newer versions of torch: a GPU that computes nothing any more.
    *([torch.AcceleratorError] if hasattr(torch, "AcceleratorError") else []),
)

Unit = TypeVar("Unit")
Made = TypeVar("Made")


def require_own(error: Exception) -> None:
    """Let what is no unit's own fault go on as it is: the machine's, and settings that nobody can train by."""
    if isinstance(error, (ConfigError, *_MACHINE)) or reason(error).startswith("RuntimeError: CUDA error"):
        raise error


def reason(error: Exception) -> str:
    """What was raised, in one line; an error is kept by no more than this, since others are not to be copied or shown."""
    try:
        why = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 # somebody's error that cannot even be shown
        why = type(error).__name__
    return why.encode("ascii", "backslashreplace").decode()[:_LONGEST]


def isolated(
    compute: Callable[[Sequence[Unit]], Made], units: Sequence[Unit], nothing: Callable[[Unit, Exception], Made]
) -> Iterator[Made]:
    """What is computed of units together; where that fails, of each half of them, down to whoever fails alone.

    Args:
        compute: Of some units; what one of them adds must not hang on the others.
        units: At least one.
        nothing: What stands for a unit that fails alone.
    """
    try:
        found = compute(units)
    except Exception as error:  # noqa: BLE001 # whatever one unit's data or code raises, the round must not hang on it
        require_own(error)
        if len(units) == 1:
            found = nothing(units[0], error)
        else:
            half = len(units) // 2
            for part in (units[:half], units[half:]):
                yield from isolated(compute, part, nothing)
            return
    yield found


def note(unit: str, why: str) -> None:
    """Tell the operator, by the logger ``hubbub``, which is silent unless somebody listens: it may tell of a unit's data."""
    _LOG.info("counted as nothing: %s: %r", unit, why)
