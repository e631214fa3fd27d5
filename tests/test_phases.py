"""Where the time of a round goes: each second in the phase that took it, and no bit of a release hangs on a clock."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hubbub.errors import RunFolderError, SumNotOpenedError
from hubbub.training import LatticeSum, ReleasePath, RunStore, rounds, train
from hubbub.training.rounds import RunState
from hubbub.training.run_folder.record import read_metrics
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


def test_a_round_that_is_aborted_learns_nothing_and_says_where_its_time_went(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def lost(self: LatticeSum, row: object) -> torch.Tensor:
        clock.now += 3.0
        raise SumNotOpenedError("nobody opens it")

    monkeypatch.setattr(LatticeSum, "open", lost)
    clock.takes(ReleasePath, "abort", 5.0)
    result = next(train(PLAN, population(), linear()))
    assert not result.released
    assert (result.phases["noise"], result.phases["persist"], result.phases["update"]) == (3.0, 5.0, 0.0)


@pytest.mark.parametrize("name", ["independent, Poisson", "banded, separated", "Adam at the server"])
def test_no_bit_of_a_release_hangs_on_the_clock(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def releases(folder: Path) -> list[bytes]:
        for _ in train(PLANS[name], population(), linear(), RunStore(folder)):
            pass
        return [path.read_bytes() for path in sorted((folder / "state" / "releases").iterdir())]

    usual = releases(tmp_path / "usual")
    readings = itertools.cycle([0.0, 0.0, 1e9, 1e9, 5.0])
    monkeypatch.setattr("hubbub.training.rounds.time.perf_counter", lambda: next(readings))
    assert releases(tmp_path / "odd") == usual
    assert len(usual) == 6


def test_metrics_of_before_there_were_phases_are_read_and_nonsense_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"

    def written(**row: object) -> list[dict[str, Any]]:
        path.write_text(json.dumps({"round_index": 0, "epsilon": 1.0, **row}) + "\n")
        return read_metrics(path)[0]

    assert "phases" not in written()[0]
    assert written(phases={"sum": 0.5, "of later versions": 2})[0]["phases"] == {"sum": 0.5, "of later versions": 2}
    for nonsense in ([0.5], {"sum": "0.5"}, {"sum": -1}, None):
        with pytest.raises(RunFolderError, match="phases"):
            written(phases=nonsense)
