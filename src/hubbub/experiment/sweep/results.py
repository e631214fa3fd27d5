"""The results of a sweep: its runs, the points that they are averaged to, and the privacy cost of choosing among them.

The composition of all ledgers covers whatever is published of a sweep, also the best model alone, if the grid was fixed in
advance. Theorems with a lower cost (:mod:`hubbub.accounting.selection`) need a random number of trials. A grid has a fixed
number, so their epsilon is stated as a comparison, never as a guarantee.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hubbub.accounting.runs import events_of
from hubbub.accounting.selection import selection_epsilon
from hubbub.errors import ConfigError, HubbubError, LedgerError
from hubbub.experiment.config import Config
from hubbub.experiment.sweep.grid import CELLS, SEED, Cell, SweepRecord
from hubbub.experiment.sweep.work import Scores, current_scores
from hubbub.ledger.actual_cost import spent
from hubbub.ledger.multi_run import Recorded, compose_runs, run_charges
from hubbub.training.run_folder import RunStore
from hubbub.training.run_folder.record import Traces, read_run

__all__ = ["CellSummary", "Choice", "Known", "PointSummary", "Spread", "SweepSummary", "choice", "marked", "sweep_summary"]


@dataclass(frozen=True)
class Spread:
    """The mean of several runs and their standard deviation, ``None`` for a single run."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread | None":
        """The spread of the values that are not ``None``; ``None`` if there are none.

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
        epsilon: Of this run alone; infinite without privacy, ``None`` without a ledger.
        delta: Of the same guarantee.
        accuracy: On test examples, of a finished run.
        loss: On the same examples; ``None`` also if it is not finite.
        train_accuracy: On training examples: private.
        error: Why the run failed.
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
        """Path of its report from the sweep's folder; empty without one."""
        return f"{CELLS}/{self.name}/report.html" if self.state == "finished" else ""


@dataclass(frozen=True)
class PointSummary:
    """The runs that differ in the seed alone.

    Args:
        values: One for each axis.
        cells: The runs, one for each seed.
        best: Whether no finished point has a higher mean accuracy.
        frontier: Whether no finished point has a higher mean accuracy at an epsilon that is no larger.
    """

    values: tuple[Any, ...]
    cells: tuple[CellSummary, ...]
    best: bool = False
    frontier: bool = False

    @property
    def accuracy(self) -> Spread | None:
        """Over the finished runs."""
        return Spread.of([cell.accuracy for cell in self.cells])

    @property
    def train_accuracy(self) -> Spread | None:
        """Over the finished runs: private."""
        return Spread.of([cell.train_accuracy for cell in self.cells])

    @property
    def loss(self) -> Spread | None:
        """Over the finished runs whose loss is finite."""
        return Spread.of([cell.loss for cell in self.cells])

    @property
    def epsilon(self) -> float | None:
        """The largest of the finished runs, each alone; ``None`` without one."""
        return max((cell.epsilon for cell in self.cells if cell.state == "finished" and cell.epsilon is not None), default=None)

    @property
    def state(self) -> str:
        """The state that all runs share, or how many runs are in each."""
        states = [cell.state for cell in self.cells]
        counts = {state: states.count(state) for state in dict.fromkeys(states)}
        return states[0] if len(counts) == 1 else ", ".join(f"{count} {state}" for state, count in counts.items())

    def as_json(self, keys: Sequence[str]) -> dict[str, Any]:
        """JSON values; ``keys`` name the axes."""
        found: dict[str, Any] = {"settings": dict(zip(keys, self.values, strict=True))}
        for name in ("accuracy", "loss", "train_accuracy"):
            spread: Spread | None = getattr(self, name)
            found[name] = spread and spread.mean
            found[f"{name}_deviation"] = spread and spread.deviation
        return {**found, "epsilon": self.epsilon, "state": self.state, "best": self.best, "frontier": self.frontier}


@dataclass(frozen=True)
class Choice:
    """The privacy cost of choosing among the runs.

    Args:
        runs: How many have released something.
        epsilon: Of all of them together; ``None`` if it is not stated.
        delta: Of the same guarantee.
        sentence: The guarantee of all of them in words, or why there is none.
        trials: For a random number of trials: its distribution in words, and epsilon.
        no_trials: Why there are no trials.
        assumptions: What must be true.
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
        axes: Keys and values of the grid without the seed.
        seeds: How many runs each point has.
        points: In the order of the grid.
        choice: The privacy cost of choosing.
        held_out: Whether accuracy and loss are of held-out training examples: private.
        simulation: Whether the noise of any run comes from a known seed.
        version: Of the library that began the sweep.
    """

    name: str
    source: str
    axes: tuple[tuple[str, tuple[Any, ...]], ...]
    seeds: int
    points: tuple[PointSummary, ...]
    choice: Choice
    held_out: bool
    simulation: bool
    version: str

    @property
    def cells(self) -> tuple[CellSummary, ...]:
        """All runs."""
        return tuple(cell for point in self.points for cell in point.cells)

    @property
    def best(self) -> PointSummary | None:
        """The finished point with the highest mean accuracy, if any."""
        return next((point for point in self.points if point.best), None)

    @property
    def private(self) -> list[str]:
        """Numbers of a run that no epsilon covers."""
        return ["accuracy", "loss", "train_accuracy"] if self.held_out else ["train_accuracy"]

    def as_json(self) -> dict[str, Any]:
        """JSON values, among them an infinite epsilon."""
        return {
            "sweep": self.name,
            "source": self.source,
            "grid": {key: list(values) for key, values in self.axes},
            "seeds": self.seeds,
            "held_out": self.held_out,
            "simulation": self.simulation,
            "points": [point.as_json([key for key, _ in self.axes]) for point in self.points],
            "cells": [
                {**vars(cell), "settings": dict(cell.settings), "report": cell.report, "private": self.private}
                for cell in self.cells
            ],
            "choice": {**vars(self.choice), "trials": [{"law": law, "epsilon": value} for law, value in self.choice.trials]},
        }

    def rows(self) -> list[list[Any]]:
        """The runs as a table with a header; an infinite epsilon is ``inf``, ``None`` an empty cell."""
        keys = list(self.cells[0].settings)
        fields = ("state", "accuracy", "loss", "epsilon", "delta", "rounds", "train_accuracy", "error")
        titles = [f"{name} (private)" if name in self.private else name for name in fields]
        return [[*keys, *titles], *([*c.settings.values(), *(getattr(c, name) for name in fields)] for c in self.cells)]


def marked(points: Sequence[PointSummary]) -> tuple[PointSummary, ...]:
    """The points with the best one and the frontier of accuracy against epsilon marked."""
    ranks = [
        (p.accuracy.mean, p.epsilon) if p.state == "finished" and p.accuracy and p.epsilon is not None else None for p in points
    ]
    known = [rank for rank in ranks if rank is not None]
    beaten = {one for one in known if any(a >= one[0] and b <= one[1] and (a, b) != one for a, b in known)}
    best = ranks.index(max(known, key=lambda rank: (rank[0], -rank[1]))) if known else None
    return tuple(
        replace(point, best=number == best, frontier=rank is not None and rank not in beaten)
        for number, (point, rank) in enumerate(zip(points, ranks, strict=True))
    )


def sweep_summary(
    folder: Path, record: SweepRecord, cells: Sequence[Cell], errors: Mapping[str, str] | None = None
) -> SweepSummary:
    """The present results of a sweep.

    Args:
        folder: Of the sweep.
        record: Its description.
        cells: All of them.
        errors: Of cells that failed, by name.
    """
    points: list[tuple[tuple[Any, ...], list[CellSummary]]] = []
    runs: list[Known] = []
    for cell in cells:
        summary, known = _found(folder / CELLS / cell.name, cell, (errors or {}).get(cell.name, ""))
        runs += [known] if known else []
        # Values may be lists, which are no keys of a dictionary.
        same = next((summaries for values, summaries in points if values == cell.point), None)
        if same is None:
            points.append((cell.point, [summary]))
        else:
            same.append(summary)
    return SweepSummary(
        name=folder.resolve().name,
        source=record.source,
        axes=tuple((axis.key, axis.values) for axis in record.grid.axes if axis.key != SEED),
        seeds=len(cells) // len(points),
        points=marked([PointSummary(values, tuple(summaries)) for values, summaries in points]),
        choice=choice(runs),
        held_out=any(cell.config.training.validation for cell in cells),
        simulation=any(cell.config.privacy.noise == "simulation" for cell in cells),
        version=record.version,
    )


@dataclass(frozen=True)
class Known:
    """A run that has begun: its settings, and its record, ``None`` if that cannot be read."""

    name: str
    config: Config
    recorded: Recorded | None


def _found(folder: Path, cell: Cell, error: str) -> tuple[CellSummary, Known | None]:
    summary = CellSummary(cell.name, cell.settings, "failed" if error else "waiting", error=error)
    try:
        if not (folder / "ledger.jsonl").exists() and not Traces.of(RunStore(folder)).tell:
            return summary, None
        recorded = read_run(folder)
        guarantee = spent(recorded.promise, recorded.history).guarantee
        scores = None if error else current_scores(folder, recorded)
    except (HubbubError, OSError) as problem:
        return replace(summary, state="failed", error=error or str(problem)), Known(cell.name, cell.config, None)
    state = "failed" if error else "interrupted" if scores is None else "finished"
    summary = replace(
        summary, state=state, rounds=len(recorded.history.rounds), epsilon=guarantee.epsilon, delta=guarantee.delta
    )
    return _scored(summary, scores), Known(cell.name, cell.config, recorded)


def _scored(summary: CellSummary, scores: Scores | None) -> CellSummary:
    if scores is None:
        return summary
    return replace(summary, accuracy=scores.accuracy, loss=scores.loss, train_accuracy=scores.train_accuracy)


_LAWS = {
    "logarithmic": "logarithmic number of trials, {mean} on average",
    "geometric": "geometric number of trials, {mean} on average",
    "poisson": "Poisson number of trials, {mean} on average (with none, nothing is published)",
}
_FIXED = "the grid was fixed before the first run, and no cell was added or left out because of what another released"
_ALL = "no run of it was deleted, and no other run over the same people had a part in the choice: their cost is not included"


def choice(runs: Sequence[Known]) -> Choice:
    """The privacy cost of publishing anything of these runs, chosen with knowledge of all of them."""
    if not runs:
        return Choice(0, None, None, "Nothing has been released yet.")
    standing = _assumptions_and_warnings(runs)

    def unknown(why: str, epsilon: float | None = None, delta: float | None = None) -> Choice:
        return Choice(len(runs), epsilon, delta, why, (), why, *standing)

    if lost := [run.name for run in runs if run.recorded is None]:
        return unknown(f"Not stated: the ledger of {', '.join(lost[:3])} cannot be read, and the cost of that run is unknown.")
    recorded = [run.recorded for run in runs if run.recorded is not None]
    delta = min(run.promise.delta for run in recorded)
    try:
        charges = run_charges(recorded)
        together = compose_runs(charges, delta)
    except (ConfigError, LedgerError) as error:
        return unknown(f"Not stated: {error}.")
    if not together.private:
        why = f"No bound: {together.mechanism}, and nothing protects the data behind a model that was trained without noise."
        return unknown(why, together.epsilon, delta)
    trials: list[tuple[str, float]] = []
    why = ""
    if _held_out(runs):
        why = "The runs are judged by held-out clients' data without noise, for which no such bound exists."
    elif earlier := len(charges) - len(recorded):
        why = f"These runs count {earlier} earlier ones with their own cost, which the theorems do not cover."
    else:
        events = [events_of([run]) or () for run in charges]
        try:
            for law, words in _LAWS.items():
                cost = selection_epsilon(events, len(events), delta, together.neighboring_relation, law=law)
                trials.append((words.format(mean=len(events)), cost))
        except ValueError as error:
            trials, why = [], f"Not known for these runs: {error}."
    return Choice(len(runs), together.epsilon, delta, together.sentence(), tuple(trials), why, *standing)


def _held_out(runs: Sequence[Known]) -> bool:
    return any(run.config.training.validation for run in runs)


def _assumptions_and_warnings(runs: Sequence[Known]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    assumptions, warnings = [_FIXED, _ALL, "the assumptions of each run are true, as its report names them"], []
    if _held_out(runs):
        warnings.append(
            "Accuracy and loss are of held-out training examples, without noise: they are private, and no epsilon here covers "
            "them, nor a choice that was made by them."
        )
    else:
        assumptions.append("the test examples are public, and none belongs to a person whom the guarantee protects")
    if len({_partition(run.config) for run in runs}) > 1:
        warnings.append(
            "The seed or other settings of the grid deal the data to clients anew, so that a client of one run is not "
            "the same in another. The statement about all runs is for people who are the same client in each run; for the "
            "examples of a simulation, which move between clients, no bound is known."
        )
    if any(run.recorded is not None and run.recorded.rounds_left for run in runs):
        warnings.append("Interrupted runs count as far as they went; rounds that they still do add to it.")
    return tuple(assumptions), tuple(warnings)


def _partition(config: Config) -> tuple[object, ...]:
    """The settings that decide which examples belong to whom."""
    data, seed = config.data, config.training.seed
    if config.privacy.unit == "example" or data.partition == "user":
        return (data.name, data.path)
    alpha = data.alpha if data.partition == "dirichlet" else None
    return (data.name, data.path, data.partition, data.clients, alpha, seed, config.training.validation)
