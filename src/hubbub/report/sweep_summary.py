"""A sweep as its page and its table show it: runs, the points of the grid that they are averaged to, what choosing costs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

__all__ = ["CellSummary", "Choice", "PointSummary", "Spread", "SweepSummary", "value_words"]


def value_words(value: Any) -> str:
    """A value of a grid as people read it; a setting that is left at its default has none.

    Example:
        >>> [value_words(value) for value in (0.5, "blt", None)]
        ['0.5', 'blt', 'default']
    """
    return "default" if value is None else str(value)


@dataclass(frozen=True)
class Spread:
    """The mean of several runs and their standard deviation, ``None`` of one run alone."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread | None":
        """Of those that are numbers; ``None`` where none is.

        Example:
            >>> Spread.of([0.5, None, 1.5]).mean, Spread.of([0.5]).deviation, Spread.of([None])
            (1.0, None, None)
        """
        known = [value for value in values if value is not None]
        return cls(fmean(known), stdev(known) if len(known) > 1 else None) if known else None


@dataclass(frozen=True)
class CellSummary:
    """One run.

    Args:
        name: Of its folder.
        settings: Its values on the grid, by dotted key.
        state: ``"finished"``, ``"interrupted"``, ``"waiting"`` or ``"failed"``.
        rounds: How many have begun.
        epsilon: Of what it released, alone; infinite without privacy, ``None`` where its ledger does not say.
        delta: Of the same.
        accuracy: On test examples, of a finished run.
        loss: On the same; ``None`` also where it is not finite.
        train_accuracy: On training examples: private.
        error: What is wrong, of a failed one.
    """

    name: str
    settings: Mapping[str, Any]
    state: str
    rounds: int = 0
    epsilon: float | None = None
    delta: float | None = None
    accuracy: float | None = None
    loss: float | None = None
    train_accuracy: float | None = None
    error: str = ""

    @property
    def report(self) -> str:
        """Its report, as seen from the sweep's folder; empty if there is no report yet."""
        return f"cells/{self.name}/report.html" if self.state == "finished" else ""


@dataclass(frozen=True)
class PointSummary:
    """One combination of the settings that are not the seed.

    Args:
        values: One for each axis.
        cells: Its runs, one a seed.
        best: Whether no finished point has a higher mean accuracy.
        frontier: Whether no finished point has a higher mean accuracy at as small an epsilon.
    """

    values: tuple[Any, ...]
    cells: tuple[CellSummary, ...]
    best: bool = False
    frontier: bool = False

    @property
    def finished(self) -> bool:
        """Whether all of its runs are."""
        return all(cell.state == "finished" for cell in self.cells)

    @property
    def accuracy(self) -> Spread | None:
        """Of the finished runs."""
        return Spread.of([cell.accuracy for cell in self.cells])

    @property
    def train_accuracy(self) -> Spread | None:
        """Of the finished runs: private."""
        return Spread.of([cell.train_accuracy for cell in self.cells])

    @property
    def loss(self) -> Spread | None:
        """Of the finished runs whose loss is finite."""
        return Spread.of([cell.loss for cell in self.cells])

    @property
    def epsilon(self) -> float | None:
        """The largest of a finished run, alone; ``None`` before there is one."""
        return max((cell.epsilon for cell in self.cells if cell.state == "finished" and cell.epsilon is not None), default=None)

    @property
    def state(self) -> str:
        """In a few words."""
        states = [cell.state for cell in self.cells]
        if len(set(states)) == 1:
            return states[0]
        return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


@dataclass(frozen=True)
class Choice:
    """What choosing among the runs costs.

    Args:
        runs: How many have released something.
        epsilon: Of all of them together; ``None`` where it is not stated.
        delta: Of the same.
        sentence: The guarantee of all of them, in words; without a guarantee, why.
        trials: Had their number been random: the law in words, and epsilon.
        no_trials: Why there are no trials.
        assumptions: What must hold.
        warnings: What no epsilon here covers.
    """

    runs: int
    epsilon: float | None
    delta: float | None
    sentence: str
    trials: tuple[tuple[str, float], ...] = ()
    no_trials: str = ""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class SweepSummary:
    """A sweep.

    Args:
        name: Of its folder.
        source: Of the config file.
        axes: Keys and values of the grid without the seed, each value as TOML has it.
        seeds: How many runs each point has.
        points: In the order of the grid.
        choice: What choosing costs.
        held_out: Whether accuracy and loss are of held-out training examples: private.
        simulation: Whether noise of any run comes from a known seed.
        unit: Whose contribution is hidden, in a word.
        version: Of the library that began it.
    """

    name: str
    source: str
    axes: tuple[tuple[str, tuple[Any, ...]], ...]
    seeds: int
    points: tuple[PointSummary, ...]
    choice: Choice
    held_out: bool
    simulation: bool
    unit: str
    version: str

    @property
    def cells(self) -> tuple[CellSummary, ...]:
        """All runs."""
        return tuple(cell for point in self.points for cell in point.cells)

    @property
    def best(self) -> PointSummary | None:
        """The point of the highest mean accuracy; ``None`` before one is finished."""
        return next((point for point in self.points if point.best), None)

    @property
    def private(self) -> list[str]:
        """What of a run's numbers no epsilon covers."""
        return ["accuracy", "loss", "train_accuracy"] if self.held_out else ["train_accuracy"]

    def as_json(self) -> dict[str, Any]:
        """It as JSON values; an infinite epsilon is one of them."""
        return {
            "sweep": self.name,
            "source": self.source,
            "grid": {key: list(values) for key, values in self.axes},
            "seeds": self.seeds,
            "held_out": self.held_out,
            "simulation": self.simulation,
            "points": [_point(self, point) for point in self.points],
            "cells": [
                {**vars(cell), "settings": dict(cell.settings), "report": cell.report, "private": self.private}
                for cell in self.cells
            ],
            "choice": {**vars(self.choice), "trials": [{"law": law, "epsilon": value} for law, value in self.choice.trials]},
        }

    def rows(self) -> list[list[Any]]:
        """The cells as a table, its header first; an infinite epsilon is ``"inf"``."""
        keys = list(self.cells[0].settings)
        fields = ("state", "accuracy", "loss", "epsilon", "delta", "rounds", "train_accuracy", "error")
        titles = [f"{name} (private)" if name in self.private else name for name in fields]
        rows = [[cell.settings[key] for key in keys] + [getattr(cell, name) for name in fields] for cell in self.cells]
        return [[*keys, *titles], *([_plain(value) for value in row] for row in rows)]


def _point(sweep: SweepSummary, point: PointSummary) -> dict[str, Any]:
    spreads = {"accuracy": point.accuracy, "loss": point.loss, "train_accuracy": point.train_accuracy}
    found: dict[str, Any] = {"settings": {key: value for (key, _), value in zip(sweep.axes, point.values, strict=True)}}
    for name, spread in spreads.items():
        found[name] = spread and spread.mean
        found[f"{name}_deviation"] = spread and spread.deviation
    return {**found, "epsilon": point.epsilon, "state": point.state, "best": point.best, "frontier": point.frontier}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return "" if value is None else value
