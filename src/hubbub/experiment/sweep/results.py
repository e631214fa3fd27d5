"""The results of a sweep: its runs, the points that they are averaged to, the privacy cost of choosing among them; and files.

The composition of all ledgers covers whatever is published of a sweep, also the best model alone, if the grid was fixed in
advance. Theorems with a lower cost (:mod:`hubbub.accounting.selection`) need a random number of trials. A grid has a fixed
number, so their epsilon is stated as a comparison, never as a guarantee.
"""

import csv
import io
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hubbub._util.files import write_atomic
from hubbub._util.strict_json import finite_only
from hubbub.accounting import rounded_up
from hubbub.accounting.runs import events_of
from hubbub.accounting.selection import selection_epsilon
from hubbub.accounting.statement import no_less
from hubbub.errors import ConfigError, HubbubError, LedgerError
from hubbub.experiment.planner import deal_of
from hubbub.experiment.sweep.grid import CELLS, SEED, Cell, SweepRecord
from hubbub.experiment.sweep.work import current_scores
from hubbub.ledger.actual_cost import Recorded, spent
from hubbub.ledger.multi_run import common_relations, compose_runs, run_charges
from hubbub.report.charts import Chart
from hubbub.report.drawing import SERIES, canvas, shown, styled
from hubbub.report.page import rendered
from hubbub.training.run_folder import NORMALIZATION, RunStore
from hubbub.training.run_folder.record import Traces, read_run

# The states of runs that a sweep trains when it resumes.
UNFINISHED = ("waiting", "interrupted")


@dataclass(frozen=True)
class CellSummary:
    """One run: its folder's name, its values on the grid, how far it is, and what it alone cost and reached.

    ``state`` is ``"finished"``, ``"interrupted"``, ``"waiting"`` or ``"failed"``. Epsilon is infinite without privacy, ``None``
    without a ledger; ``loss`` is ``None`` also if it is not finite; ``train_accuracy``, on training examples, is private.
    """

    name: str
    settings: Mapping[str, Any]
    state: str
    rounds: int = 0
    epsilon: float | None = None
    delta: float | None = None
    neighboring_relation: str | None = None
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
    """The runs that differ in the seed alone."""

    cells: tuple[CellSummary, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """The values on the grid without the seed."""
        return {key: value for key, value in self.cells[0].settings.items() if key != SEED}

    def spread(self, name: str) -> tuple[float | None, float | None]:
        """Mean and standard deviation of ``"accuracy"``, ``"loss"`` or ``"train_accuracy"`` over the runs that have it."""
        known = [value for cell in self.cells if (value := getattr(cell, name)) is not None]
        return fmean(known) if known else None, stdev(known) if len(known) > 1 else None

    @property
    def epsilon(self) -> float | None:
        """The largest of the finished runs, each alone; ``None`` without one."""
        return max((cell.epsilon for cell in self.cells if cell.state == "finished" and cell.epsilon is not None), default=None)

    @property
    def promised(self) -> str:
        """That epsilon with its delta and relation; a dash without one."""
        for cell in (cell for cell in self.cells if cell.state == "finished"):
            if cell.epsilon is not None and cell.delta is not None and cell.epsilon == self.epsilon:
                return f"{rounded_up(cell.epsilon)} at delta {no_less(cell.delta)}, {cell.neighboring_relation}"
        return "–"

    @property
    def state(self) -> str:
        """The state that all runs share, or how many runs are in each."""
        counts = Counter(cell.state for cell in self.cells)
        return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{count} {state}" for state, count in counts.items())


@dataclass(frozen=True)
class Choice:
    """The privacy cost of choosing among the runs that have released something: epsilon of all together, ``None`` if unknown.

    ``sentence`` says it in words, or why there is none. ``trials`` are laws of a random number of trials, in words, each with
    its epsilon, and ``no_trials`` says why there are none. No epsilon here covers what ``warnings`` name.
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
    """A sweep, its points in the order of the grid.

    Accuracy and loss of ``held_out`` training examples are private. In a ``simulation`` any run has noise from a known seed.
    """

    name: str
    record: SweepRecord
    points: tuple[PointSummary, ...]
    choice: Choice
    held_out: bool
    simulation: bool

    @property
    def cells(self) -> tuple[CellSummary, ...]:
        """All runs."""
        return tuple(cell for point in self.points for cell in point.cells)

    @property
    def seeds(self) -> int:
        """How many runs each point has."""
        return len(self.points[0].cells)

    @property
    def best(self) -> PointSummary | None:
        """The finished point with the highest mean accuracy, and of equal ones that of the least epsilon."""
        points = [point for point in self.points if point.state == "finished"]
        return max(points, key=lambda point: (point.spread("accuracy")[0] or 0.0, -(point.epsilon or 0.0)), default=None)

    @property
    def private(self) -> list[str]:
        """Numbers of a run that no epsilon covers."""
        return ["accuracy", "loss", "train_accuracy"] if self.held_out else ["train_accuracy"]

    def as_json(self) -> dict[str, Any]:
        """JSON values, among them an infinite epsilon."""
        points = []
        for point in self.points:
            numbers: dict[str, Any] = {"settings": point.settings}
            for name in ("accuracy", "loss", "train_accuracy"):
                numbers[name], numbers[f"{name}_deviation"] = point.spread(name)
            points.append({**numbers, "epsilon": point.epsilon, "state": point.state, "best": point is self.best})
        return {
            "sweep": self.name,
            "source": self.record.source,
            "grid": {key: list(values) for key, values in self.record.grid.items() if key != SEED},
            "seeds": self.seeds,
            "held_out": self.held_out,
            "simulation": self.simulation,
            "points": points,
            "cells": [{**vars(cell), "report": cell.report, "private": self.private} for cell in self.cells],
            "choice": {**vars(self.choice), "trials": [{"law": law, "epsilon": value} for law, value in self.choice.trials]},
        }

    def rows(self) -> list[list[Any]]:
        """The runs as a table with a header; an infinite epsilon is ``inf``, ``None`` an empty cell."""
        fields = ("state", "accuracy", "loss", "epsilon", "delta", "neighboring_relation", "rounds", "train_accuracy", "error")
        titles = [f"{name} (private)" if name in self.private else name for name in fields]
        rows = ([*cell.settings.values(), *(getattr(cell, name) for name in fields)] for cell in self.cells)
        return [[*self.cells[0].settings, *titles], *rows]

    def table(self) -> list[list[str]]:
        """The points as a table for people, with a header."""
        private = " (held-out, private)" if self.held_out else ""
        keys = [key.partition(".")[2] for key in self.points[0].settings]
        rows = [[*keys, f"accuracy{private}", f"loss{private}", "epsilon of one run", ""]]
        for point in self.points:
            mark = point.state if point.state != "finished" else "best" if point is self.best else ""
            values = ["default" if value is None else str(value) for value in point.settings.values()]
            numbers = [
                " ± ".join(format(number, pattern) for number in point.spread(name) if number is not None) or "–"
                for name, pattern in (("accuracy", ".2%"), ("loss", ".4f"))
            ]
            rows.append([*values, *numbers, point.promised, mark])
        return rows

    def choice_lines(self) -> Iterator[str]:
        """What choosing among the runs costs, what that assumes, and what it does not cover, in sentences."""
        choice, best = self.choice, self.best
        yield f"All runs together, which covers whatever is published of them: {choice.sentence}"
        if choice.epsilon is not None and math.isfinite(choice.epsilon) and best is not None and best.epsilon is not None:
            yield (
                f"The best row's own epsilon, {best.promised}, is for a run whose settings were fixed in advance; "
                "it does not cover that this run was chosen."
            )
        if choice.trials:
            costs = "; ".join(f"{rounded_up(epsilon)} for a {words}" for words, epsilon in choice.trials)
            yield (
                "If the number of runs had been random, each a cell drawn at random, and only the best were published, epsilon "
                f"would be {costs} (Papernot and Steinke 2022). This does not apply to a grid."
            )
        for assumption in choice.assumptions:
            yield f"Assumed: {assumption}."
        yield from choice.warnings


# A run that has begun, with its record; ``None`` if that cannot be read.
Begun = tuple[Cell, Recorded | None]


def sweep_summary(folder: Path, record: SweepRecord, cells: Sequence[Cell], errors: Mapping[str, str]) -> SweepSummary:
    """The present results of a sweep."""
    # By their repr, since values may be lists.
    points: dict[str, list[CellSummary]] = {}
    runs: list[Begun] = []
    for cell in cells:
        summary, known = found(folder, cell, errors.get(cell.name, ""))
        points.setdefault(repr([value for key, value in cell.settings.items() if key != SEED]), []).append(summary)
        runs += [known] if known else []
    return SweepSummary(
        name=folder.resolve().name,
        record=record,
        points=tuple(PointSummary(tuple(summaries)) for summaries in points.values()),
        choice=choice(runs),
        held_out=any(cell.config.training.validation for cell in cells),
        simulation=any(cell.config.privacy.noise == "simulation" for cell in cells),
    )


def found(sweep: Path, cell: Cell, error: str = "") -> tuple[CellSummary, Begun | None]:
    """One run of a sweep as its folder shows it, and its record if it has begun."""
    folder, summary = sweep / CELLS / cell.name, CellSummary(cell.name, cell.settings, "waiting")
    recorded: Recorded | None = None
    try:
        if not (folder / "ledger.jsonl").exists() and not Traces.of(RunStore(folder)).tell:
            # A run that has released means and variances alone counts as these.
            own = folder / NORMALIZATION
            released = (cell, read_run(own)) if os.path.lexists(own / "ledger.jsonl") else None
            return replace(summary, state="failed" if error else "waiting", error=error), released
        recorded = read_run(folder)
        guarantee = spent(recorded.promise, recorded.history).guarantee
        scores = None if error else current_scores(folder, recorded)
    except (HubbubError, OSError) as problem:
        return replace(summary, state="failed", error=error or str(problem)), (cell, recorded)
    summary = replace(
        summary,
        state="failed" if error else "interrupted" if scores is None else "finished",
        rounds=len(recorded.history.rounds),
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        neighboring_relation=guarantee.neighboring_relation,
        error=error,
        **({} if scores is None else {name: getattr(scores, name) for name in ("accuracy", "loss", "train_accuracy")}),
    )
    return summary, (cell, recorded)


_LAWS = {
    "logarithmic": "logarithmic number of trials, {mean} on average",
    "geometric": "geometric number of trials, {mean} on average",
    "poisson": "Poisson number of trials, {mean} on average (with none, nothing is published)",
}
_FIXED = "the grid was fixed before the first run, and no cell was added or left out because of what another released"
_ALL = "no run of it was deleted, and no other run over the same people had a part in the choice: their cost is not included"


def choice(runs: Sequence[Begun]) -> Choice:
    """The privacy cost of publishing anything of these runs, chosen with knowledge of all of them."""
    if not runs:
        return Choice(0, None, None, "Nothing has been released yet.")
    standing = _assumptions_and_warnings(runs)

    def unknown(why: str, epsilon: float | None = None, delta: float | None = None) -> Choice:
        return Choice(len(runs), epsilon, delta, why, (), why, *standing)

    if lost := [cell.name for cell, record in runs if record is None]:
        return unknown(f"Not stated: the ledger of {', '.join(lost[:3])} cannot be read, and the cost of that run is unknown.")
    recorded = [record for _, record in runs if record is not None]
    delta = min(run.promise.delta for run in recorded)
    try:
        charges = run_charges(recorded, any_clients=True)
        # Cells that state different relations are stated under one that covers them all.
        several = len({run.neighboring_relation for run in charges}) > 1
        together = compose_runs(charges, delta, next(iter(common_relations(charges)), None) if several else None)
    except (ConfigError, LedgerError) as error:
        return unknown(f"Not stated: {error}.")
    if not together.private:
        why = f"No bound: {together.mechanism}, and nothing protects the data behind a model that was trained without noise."
        return unknown(why, together.epsilon, delta)
    trials, why = list[tuple[str, float]](), ""
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
    condition = "" if _same_clients(runs) else "for people who are the same client in each run, "
    return Choice(len(runs), together.epsilon, delta, condition + together.sentence(), tuple(trials), why, *standing)


def _held_out(runs: Sequence[Begun]) -> bool:
    return any(cell.config.training.validation for cell, _ in runs)


def _same_clients(runs: Sequence[Begun]) -> bool:
    return len({tuple(deal_of(cell.config).items()) for cell, _ in runs}) <= 1


def _assumptions_and_warnings(runs: Sequence[Begun]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    assumptions, warnings = [_FIXED, _ALL, "the assumptions of each run are true, as its report names them"], []
    if _held_out(runs):
        warnings.append(
            "Accuracy and loss are of held-out training examples, without noise: they are private, and no epsilon here covers "
            "them, nor a choice that was made by them."
        )
    else:
        assumptions.append("the test examples are public, and none belongs to a person whom the guarantee protects")
    if not _same_clients(runs):
        warnings.append(
            "The seed or other settings of the grid deal the data to clients anew, so that a client of one run is not "
            "the same in another. The statement about all runs is for people who are the same client in each run; for the "
            "examples of a simulation, which move between clients, no bound is known. With one data.seed all seeds deal alike."
        )
    if len({record.promise.neighboring_relation for _, record in runs if record is not None}) > 1:
        warnings.append(
            "The runs state different neighboring relations. All together are stated under one of them, and under no other."
        )
    if any(record is not None and record.rounds_left for _, record in runs):
        warnings.append("Interrupted runs count as far as they went; rounds that they still do add to it.")
    return tuple(assumptions), tuple(warnings)


# Files


def write(folder: Path, sweep: SweepSummary) -> None:
    """Write the files of a sweep into its folder."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(sweep.rows())
    write_atomic(folder / "results.csv", table.getvalue().encode())
    write_atomic(folder / "results.json", json.dumps(finite_only(sweep.as_json()), allow_nan=False, indent=1).encode())
    write_atomic(folder / "sweep.html", page(sweep).encode())


def page(sweep: SweepSummary) -> str:
    """The HTML page; it links to the report of each run in the sweep's folder."""
    of = "held-out training examples" if sweep.held_out else "public test examples"
    about = f"On {of}, over the epsilon of one run alone. The best point is orange; bars are standard deviations over seeds."
    picture = _accuracy_against_epsilon(sweep)
    charts = [Chart("Accuracy against epsilon", picture, about, sweep.held_out)] if picture else []
    return rendered("sweep.html", sweep=sweep, table=sweep.table(), charts=charts)


@styled()
def _accuracy_against_epsilon(sweep: SweepSummary) -> str:
    """A point of the picture for each point of the grid with a finite epsilon; empty without one."""
    from matplotlib.ticker import PercentFormatter

    finite = [point for point in sweep.points if point.epsilon is not None and math.isfinite(point.epsilon)]
    known = [point for point in finite if point.spread("accuracy")[0] is not None]
    if not known:
        return ""
    made, best = canvas(), sweep.best
    axes = made.subplots()
    for point in known:
        mean, deviation = point.spread("accuracy")
        color = SERIES[1 if point is best else 0]
        axes.errorbar([point.epsilon], [mean], yerr=deviation, color=color, marker="o", linestyle="", elinewidth=1)
    axes.set(xscale="log", xlabel="epsilon of one run", ylabel="accuracy")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return shown(made, "Accuracy against epsilon")
