"""The page of a sweep, in one piece as that of a run is, and its pictures and numbers as files."""

import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hubbub.accounting import rounded_up
from hubbub.accounting.statement import no_less
from hubbub.files import write_atomic
from hubbub.report import sweep_charts as charts
from hubbub.report.citations import bibtex
from hubbub.report.page import Chart
from hubbub.report.sweep_told import CellTold, PointTold, Spread, SweepTold, value_words

__all__ = ["page", "write"]

# Of the settings beyond two, so many combinations are drawn.
_MOST_SLICES = 12
_SEED = "training.seed"
_CITED = ("papernot2022hyperparameter", "liu2019private")


def write(folder: Path, sweep: SweepTold) -> None:
    """Write ``sweep.html``, ``results.json`` and, of a grid of two settings or more, ``surfaces.png`` into the folder."""
    write_atomic(folder / "results.json", json.dumps(_strict(sweep.as_json()), allow_nan=False, indent=1).encode())
    picture = _surfaces(sweep)
    if picture:
        write_atomic(folder / "surfaces.png", picture)
    write_atomic(folder / "sweep.html", page(sweep).encode())


def page(sweep: SweepTold) -> str:
    """The page, HTML in one piece; it links to each run's own, in the folder beside it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("hubbub.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    finished = sum(cell.state == "finished" for cell in sweep.cells)
    return environment.get_template("sweep.html").render(
        sweep=sweep,
        finished=finished,
        rows=[_row(point) for point in sweep.points],
        best=None if sweep.best is None else _row(sweep.best),
        best_words=_words(sweep, sweep.best),
        charts=[chart for chart in _charts(sweep) if chart.picture],
        choice=sweep.choice,
        delta="" if sweep.choice.delta is None else no_less(sweep.choice.delta),
        bounded=sweep.choice.epsilon is not None and math.isfinite(sweep.choice.epsilon),
        together=_epsilon(sweep.choice.epsilon),
        trials=[(words, rounded_up(epsilon)) for words, epsilon in sweep.choice.trials],
        failed=[cell for cell in sweep.cells if cell.state == "failed"],
        references=bibtex(list(_CITED)),
    )


def _row(point: PointTold) -> dict[str, Any]:
    return {
        "values": [value_words(value) for value in point.values],
        "accuracy": _spread(point.accuracy, 100, ".2f", " %"),
        "train_accuracy": _spread(point.train_accuracy, 100, ".2f", " %"),
        "loss": _spread(point.loss, 1, ".4f", ""),
        "epsilon": _epsilon(point.epsilon),
        "best": point.best,
        "frontier": point.frontier,
        "state": point.state,
        "reports": [(cell.report, _run_words(cell)) for cell in point.cells if cell.report],
    }


def _run_words(cell: CellTold) -> str:
    """How a run is told from the others of its point."""
    return f"seed {cell.settings[_SEED]}" if _SEED in cell.settings else "report"


def _words(sweep: SweepTold, point: PointTold | None) -> str:
    if point is None:
        return ""
    return ", ".join(
        f"{key.partition('.')[2]} {value_words(value)}" for (key, _), value in zip(sweep.axes, point.values, strict=True)
    )


def _spread(spread: Spread | None, factor: float, pattern: str, unit: str) -> str:
    if spread is None:
        return "–"
    deviation = "" if spread.deviation is None else f" ± {format(spread.deviation * factor, pattern)}"
    return f"{format(spread.mean * factor, pattern)}{deviation}{unit}"


def _epsilon(value: float | None) -> str:
    return "–" if value is None else rounded_up(value)


def _charts(sweep: SweepTold) -> Iterator[Chart]:
    seeds = f" Means over {sweep.seeds} seeds." if sweep.seeds > 1 else ""
    of = "held-out training examples" if sweep.held_out else "public test examples"
    if len(sweep.axes) == 1:
        spread = " Bars are one standard deviation over the seeds." if sweep.seeds > 1 else ""
        yield Chart("Accuracy", charts.curve(sweep), f"On {of}, and on training examples, without noise.{spread}", private=True)
        yield Chart("Epsilon", charts.epsilon_curve(sweep), "What one run costs, alone.")
    if len(sweep.axes) > 1:
        yield from _maps(sweep, of, seeds)
    if len(sweep.axes) > 1:
        for part in charts.slices(sweep)[:_MOST_SLICES]:
            at = f", {part.name}" if part.name else ""
            test, train = (charts.surface(sweep, part, get, words) for get, words in _SURFACES)
            yield Chart(f"Accuracy as a surface{at}", test, f"On {of}.{seeds}", private=sweep.held_out)
            yield Chart(
                f"Training accuracy as a surface{at}", train, f"On training examples, without noise.{seeds}", private=True
            )
    yield Chart(
        "Accuracy against epsilon",
        charts.pareto(sweep),
        f"Epsilon is of one run alone. On the line is what no other point beats in accuracy at as small an epsilon.{seeds}",
        private=sweep.held_out,
    )


def _maps(sweep: SweepTold, of: str, seeds: str) -> Iterator[Chart]:
    parts = charts.slices(sweep)
    left = f" The first {_MOST_SLICES} of {len(parts)} combinations of the other settings." if len(parts) > _MOST_SLICES else ""
    for what, about, private in (
        ("accuracy", f"On {of}.{seeds} The best point is framed.{left}", sweep.held_out),
        ("epsilon", f"What one run costs, alone.{left}", False),
    ):
        for part in parts[:_MOST_SLICES]:
            title = what.capitalize() + (f", {part.name}" if part.name else "")
            yield Chart(title, charts.heat_map(sweep, part, what), about, private)


_SURFACES = (
    (lambda point: point.accuracy, "Accuracy on test examples"),
    (lambda point: point.train_accuracy, "Accuracy on training examples"),
)


def _surfaces(sweep: SweepTold) -> bytes:
    """Both surfaces of each slice side by side, as a PNG; empty where there are none."""
    from matplotlib.figure import Figure

    from hubbub.report.surfaces import draw_surface

    parts = charts.slices(sweep)[:_MOST_SLICES] if len(sweep.axes) > 1 else []
    drawn = [(part, [charts.surface_points(sweep, part, of) for of, _ in _SURFACES]) for part in parts]
    found = [(part, both) for part, both in drawn if all(both)]
    if not found:
        return b""
    figure = Figure(figsize=(11, 4.8 * len(found)), dpi=110, layout="constrained")
    for row, (part, both) in enumerate(found):
        for column, points in enumerate(both):
            axes = figure.add_subplot(len(found), 2, 2 * row + column + 1, projection="3d")
            draw_surface(axes, points)
            axes.set_xlabel(sweep.axes[0][0].partition(".")[2].replace("_", " "))
            axes.set_ylabel(sweep.axes[1][0].partition(".")[2].replace("_", " "))
            at = f"\n{part.name}" if part.name else ""
            tested = "held-out" if sweep.held_out else "test"
            axes.set_title(f"accuracy on {(tested, 'training')[column]} examples{at}", loc="left", fontweight="bold")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _strict(value: Any) -> Any:
    """The value with each number that JSON cannot hold replaced by ``None``."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value
