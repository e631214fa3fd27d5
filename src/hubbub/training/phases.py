"""Where the time of a round goes: seconds by phase, on a clock that never goes back."""

import time
from collections.abc import Mapping

__all__ = ["EVALUATE", "PHASES", "Phases"]

# In the order of the loop: the cohort is drawn, its updates are formed and summed, the round is charged, noise meets the sum,
# the release (and later the checkpoint) is put on disk, the model learns, and epsilon is computed.
PHASES = ("choose", "sum", "promise", "hide", "persist", "learn", "account")
# What the body of the caller's loop may add: it is no part of a round.
EVALUATE = "evaluate"


class Phases:
    """The clock of one round: each lap goes to the phase that has just ended; several of one phase add up.

    On an accelerator work is asked for in one phase and may be waited for in the next.
    """

    def __init__(self) -> None:
        self._started = self._lapped = time.perf_counter()
        self._seconds = dict.fromkeys(PHASES, 0.0)

    def end(self, phase: str) -> None:
        """Count the time since the last lap, or since the start, for a phase."""
        now = time.perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._lapped
        self._lapped = now

    @property
    def seconds(self) -> Mapping[str, float]:
        """Of each phase so far."""
        return dict(self._seconds)

    @property
    def total(self) -> float:
        """Seconds from the start to the last lap: what the phases add up to."""
        return self._lapped - self._started
