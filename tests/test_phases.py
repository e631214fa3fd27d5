"""Where the time of a round goes: each second in the phase that took it."""

from collections.abc import Callable
from typing import Any

import pytest

from hubbub.training import LatticeSum, ReleasePath, rounds, train
from hubbub.training.rounds import RunState
from small_runs import PLANS, linear, population

PLAN = PLANS["banded, separated"]


class Clock:
    """Stands still, but for what takes time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self._monkeypatch = monkeypatch
        monkeypatch.setattr("hubbub.training.rounds.time.perf_counter", lambda: self.now)

    def takes(self, place: Any, name: str, seconds: float) -> None:
        real: Callable[..., Any] = getattr(place, name)

        def slow(*args: Any, **keywords: Any) -> Any:
            self.now += seconds
            return real(*args, **keywords)

        self._monkeypatch.setattr(place, name, slow)


def test_each_second_is_counted_in_the_phase_that_took_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, clients = Clock(monkeypatch), population()
    clock.takes(clients, "collect", 2.0)
    for place, name, seconds in (
        (rounds, "draw", 1.0),
        (ReleasePath, "begin", 4.0),
        (LatticeSum, "open", 8.0),
        (ReleasePath, "commit", 16.0),
        (RunState, "update", 32.0),
        (RunState, "checkpoint", 64.0),
        (ReleasePath, "row", 128.0),
    ):
        clock.takes(place, name, seconds)
    for result in train(PLAN, clients, linear()):
        # Begun and put on disk; noise and sum; the release, and the checkpoint.
        expected = {"sample": 1, "aggregate": 2, "record": 4, "noise": 136, "persist": 80, "update": 32, "account": 0}
        assert result.phases == expected
        assert result.seconds == sum(expected.values())
        # What the caller does between two rounds belongs to none.
        clock.now += 1000.0
