"""The page of a sweep, in one piece as that of a run is, and its numbers and surfaces as files."""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hubbub._util.checks import Array
from hubbub._util.files import write_atomic
from hubbub._util.strict_json import finite_only
from hubbub.accounting import rounded_up
from hubbub.accounting.statement import no_less
from hubbub.report.citations import bibtex
from hubbub.report.drawing import DASHES, INK, MARKERS, SERIES, canvas, figure, legible, png, shown, styled
from hubbub.report.page import Chart, rendered
from hubbub.report.pictures import draw_surface, has_surface
from hubbub.report.sweep_summary import PointSummary, Spread, SweepSummary, value_words

__all__ = ["page", "write"]

# Of the settings beyond two, this many combinations are drawn.
_MOST_SLICES = 12
# A heat map of more cells has no room for numbers.
_MOST_LABELS = 150
_RATIO_OF_LOGS = 10.0
_SEED = "training.seed"
_CITED = ("papernot2022hyperparameter", "liu2019private")
_Of = Callable[[PointSummary], Spread | None]


def write(folder: Path, sweep: SweepSummary) -> None:
    """Write ``sweep.html``, ``results.json`` and, of a grid of two numbers or more, ``surfaces.png`` into the folder."""
    write_atomic(folder / "results.json", json.dumps(finite_only(sweep.as_json()), allow_nan=False, indent=1).encode())
    picture = _surfaces(sweep)
    if picture:
        write_atomic(folder / "surfaces.png", picture)
    write_atomic(folder / "sweep.html", page(sweep).encode())


def page(sweep: SweepSummary) -> str:
    """The page, HTML in one piece; it links to each run's own, in the folder next to it."""
    best, choice = sweep.best, sweep.choice
    axes = [key.partition(".")[2] for key, _ in sweep.axes]
    return rendered(
        "sweep.html",
        sweep=sweep,
        finished=sum(cell.state == "finished" for cell in sweep.cells),
        rows=[_row(point) for point in sweep.points],
        best=None if best is None else _row(best),
        best_words=", ".join(f"{key} {value_words(value)}" for key, value in zip(axes, best.values, strict=True))
        if best
        else "",
        charts=[chart for chart in _charts(sweep) if chart.picture],
        choice=choice,
        delta="" if choice.delta is None else no_less(choice.delta),
        bounded=choice.epsilon is not None and math.isfinite(choice.epsilon),
        together=_epsilon(choice.epsilon),
        trials=[(words, rounded_up(epsilon)) for words, epsilon in choice.trials],
        failed=[cell for cell in sweep.cells if cell.state == "failed"],
        references=bibtex(list(_CITED)),
    )


def _row(point: PointSummary) -> dict[str, Any]:
    reports = [(cell.report, f"seed {cell.settings[_SEED]}" if _SEED in cell.settings else "report") for cell in point.cells]
    return {
        "values": [value_words(value) for value in point.values],
        "accuracy": _spread(point.accuracy, 100, ".2f", " %"),
        "train_accuracy": _spread(point.train_accuracy, 100, ".2f", " %"),
        "loss": _spread(point.loss, 1, ".4f", ""),
        "epsilon": _epsilon(point.epsilon),
        "best": point.best,
        "frontier": point.frontier,
        "state": point.state,
        "reports": [(link, words) for link, words in reports if link],
    }


def _spread(spread: Spread | None, factor: float, pattern: str, unit: str) -> str:
    if spread is None:
        return "–"
    deviation = "" if spread.deviation is None else f" ± {format(spread.deviation * factor, pattern)}"
    return f"{format(spread.mean * factor, pattern)}{deviation}{unit}"


def _epsilon(value: float | None) -> str:
    return "–" if value is None else rounded_up(value)


def _charts(sweep: SweepSummary) -> Iterator[Chart]:
    seeds = f" Means over {sweep.seeds} seeds." if sweep.seeds > 1 else ""
    of = "held-out training examples" if sweep.held_out else "public test examples"
    if len(sweep.axes) == 1:
        bars = " Bars are one standard deviation over the seeds." if sweep.seeds > 1 else ""
        yield Chart("Accuracy", _curve(sweep), f"On {of}, and on training examples, without noise.{bars}", private=True)
        yield Chart("Epsilon", _epsilon_curve(sweep), "What one run costs, alone.")
    if len(sweep.axes) > 1:
        parts = _slices(sweep)
        few = len(parts) > _MOST_SLICES
        left = f" The first {_MOST_SLICES} of {len(parts)} combinations of the other settings." if few else ""
        for what, about, private in (
            ("accuracy", f"On {of}.{seeds} The best point is framed.{left}", sweep.held_out),
            ("epsilon", f"What one run costs, alone.{left}", False),
        ):
            for part in parts[:_MOST_SLICES]:
                title = what.capitalize() + (f", {part.name}" if part.name else "")
                yield Chart(title, _heat_map(sweep, part, what), about, private)
    pareto = f"Epsilon is of one run alone. On the line is what no other point beats in accuracy at as small an epsilon.{seeds}"
    yield Chart("Accuracy against epsilon", _pareto(sweep), pareto, private=sweep.held_out)


@dataclass(frozen=True)
class _Slice:
    """The part of a sweep that is drawn over its first two axes: the other values in words, and points by these two."""

    name: str
    points: Mapping[tuple[Any, ...], PointSummary]


def _slices(sweep: SweepSummary) -> list[_Slice]:
    """All of them, in the order of the grid."""
    further = sweep.axes[2:]
    found = []
    for values in itertools.product(*(values for _, values in further)):
        name = ", ".join(f"{key} = {value_words(value)}" for (key, _), value in zip(further, values, strict=True))
        found.append(_Slice(name, {point.values[:2]: point for point in sweep.points if point.values[2:] == values}))
    return found


@styled
def _curve(sweep: SweepSummary) -> str:
    """Accuracy over the one axis of a sweep, on test and on training examples; empty where nothing was measured."""
    if all(point.accuracy is None and point.train_accuracy is None for point in sweep.points):
        return ""
    made, axes = figure()
    _line(axes, sweep, 0, lambda point: point.accuracy, "held-out examples" if sweep.held_out else "test examples")
    _line(axes, sweep, 1, lambda point: point.train_accuracy, "training examples (private)")
    _percent(axes.yaxis)
    axes.set_ylabel("accuracy")
    axes.legend(loc="best")
    return shown(made, f"Accuracy over {sweep.axes[0][0]}")


@styled
def _epsilon_curve(sweep: SweepSummary) -> str:
    """Epsilon of one run over the one axis of a sweep; empty where no run has one."""
    known = [epsilon for point in sweep.points if (epsilon := _finite(point)) is not None]
    if not known:
        return ""
    made, axes = figure()
    _line(axes, sweep, 0, lambda point: None if (epsilon := _finite(point)) is None else Spread(epsilon, None), "")
    if _wide(known):
        axes.set_yscale("log")
        _logarithmic(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel("epsilon of one run")
    return shown(made, f"Epsilon over {sweep.axes[0][0]}")


def _line(axes: Any, sweep: SweepSummary, number: int, of: _Of, label: str) -> None:
    """A curve over the one axis: numbers where they are, other values next to one another."""
    key, values = sweep.axes[0]
    places = [float(value) for value in values] if _numeric(values) else [float(i) for i in range(len(values))]
    axes.set_xlabel(legible(key))
    if not _numeric(values):
        axes.set_xticks(places, [legible(value_words(value)) for value in values])
    known = sorted((places[i], spread) for i, point in enumerate(sweep.points) if (spread := of(point)) is not None)
    if known:
        errors = [spread.deviation or 0.0 for _, spread in known] if any(spread.deviation for _, spread in known) else None
        look = {"color": SERIES[number], "linestyle": DASHES[number], "marker": MARKERS[number], "label": label}
        axes.errorbar([x for x, _ in known], [spread.mean for _, spread in known], yerr=errors, capsize=2.5, **look)


@styled
def _heat_map(sweep: SweepSummary, part: _Slice, what: str) -> str:
    """``"accuracy"`` or ``"epsilon"`` over the first two axes of a sweep; empty where nothing is known."""
    import matplotlib as mpl
    from matplotlib.colors import LogNorm, Normalize

    def of(point: PointSummary) -> float | None:
        if what == "epsilon":
            return _finite(point)
        return point.accuracy.mean if point.accuracy else None

    (x_key, columns), (y_key, rows) = sweep.axes[:2]
    placed = [(columns.index(values[0]), rows.index(values[1]), point) for values, point in part.points.items()]
    grid: Array = np.full((len(rows), len(columns)), np.nan)
    for column, row, point in placed:
        grid[row, column] = np.nan if (value := of(point)) is None else value
    everywhere = [value for point in sweep.points if (value := of(point)) is not None]
    if np.isnan(grid).all():
        return ""
    made, axes = figure(max(2.4, 0.34 * len(rows) + 1.0))
    ends = min(everywhere), max(everywhere)
    norm = LogNorm(*ends) if what == "epsilon" and _wide(ends) else Normalize(*ends)
    colors = mpl.colormaps["viridis" if what == "accuracy" else "cividis_r"]
    axes.pcolormesh(np.ma.masked_invalid(grid), cmap=colors, norm=norm, edgecolor="face", linewidth=0.3)
    for column, row, point in placed:
        value = of(point)
        if value is not None and grid.size <= _MOST_LABELS:
            light = np.dot(colors(norm(value))[:3], (0.299, 0.587, 0.114)) > 0.55
            text = f"{value:.1%}" if what == "accuracy" else rounded_up(value)
            ink = "#000000" if light else "#ffffff"
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7, color=ink)
        if point.best:
            axes.add_patch(mpl.patches.Rectangle((column, row), 1, 1, fill=False, edgecolor=SERIES[1], linewidth=2.2))
    for key, values, axis in ((x_key, columns, axes.xaxis), (y_key, rows, axes.yaxis)):
        axis.set_ticks([i + 0.5 for i in range(len(values))], [legible(value_words(value)) for value in values])
        axis.set_tick_params(length=0)
        axis.set_label_text(legible(key))
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return shown(made, f"{what} over {x_key} and {y_key}{': ' + part.name if part.name else ''}")


@styled
def _pareto(sweep: SweepSummary) -> str:
    """Accuracy against epsilon of one run, with the points that no other beats; empty where no epsilon is finite."""
    measured = [(_finite(point), point.accuracy, point) for point in sweep.points if point.accuracy]
    known = [(epsilon, accuracy, point) for epsilon, accuracy, point in measured if epsilon is not None]
    if not known:
        return ""
    made, axes = figure()
    for epsilon, accuracy, point in known:
        errors = accuracy.deviation or None
        marker = "" if point.frontier else "o"
        axes.errorbar([epsilon], [accuracy.mean], yerr=errors, color=SERIES[7], marker=marker, linestyle="", elinewidth=1)
    front = sorted((epsilon, accuracy.mean) for epsilon, accuracy, point in known if point.frontier)
    if front:
        look = {"color": SERIES[0], "marker": MARKERS[1], "drawstyle": "steps-post", "label": "no other beats these"}
        axes.plot(*zip(*front, strict=True), **look)
    bare = [accuracy.mean for epsilon, accuracy, point in measured if epsilon is None and point.epsilon is not None]
    if bare:
        axes.axhline(max(bare), color=INK, linestyle=(0, (4, 3)), linewidth=1, label="best without privacy")
    if _wide([epsilon for epsilon, _, _ in known]):
        axes.set_xscale("log")
        _logarithmic(axes.xaxis)
    _percent(axes.yaxis)
    axes.set_xlabel("epsilon of one run")
    axes.set_ylabel("accuracy")
    if front or bare:
        axes.legend(loc="best")
    return shown(made, "Accuracy against epsilon")


def _surfaces(sweep: SweepSummary) -> bytes:
    """Accuracy on test and on training examples as surfaces, a row for each slice, as a PNG; empty without surfaces."""
    if len(sweep.axes) < 2 or not all(_numeric(values) for _, values in sweep.axes[:2]):
        return b""
    of: tuple[_Of, ...] = (lambda point: point.accuracy, lambda point: point.train_accuracy)
    drawn = [(part, [_points(part, one) for one in of]) for part in _slices(sweep)[:_MOST_SLICES]]
    found = [(part, both) for part, both in drawn if all(has_surface(points) for points in both)]
    if not found:
        return b""
    made = canvas(11, 4.8 * len(found), dpi=110)
    names = [key.partition(".")[2].replace("_", " ") for key, _ in sweep.axes[:2]]
    for row, (part, both) in enumerate(found):
        for column, points in enumerate(both):
            axes = made.add_subplot(len(found), 2, 2 * row + column + 1, projection="3d")
            draw_surface(axes, points)
            axes.set_xlabel(names[0])
            axes.set_ylabel(names[1])
            examples = ("held-out" if sweep.held_out else "test", "training")[column]
            at = f"\n{part.name}" if part.name else ""
            axes.set_title(f"accuracy on {examples} examples{at}", loc="left", fontweight="bold")
    return png(made)


def _points(part: _Slice, of: _Of) -> list[tuple[float, float, float]]:
    found = [(values, of(point)) for values, point in part.points.items()]
    return sorted((float(values[0]), float(values[1]), spread.mean) for values, spread in found if spread is not None)


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _wide(values: Sequence[float]) -> bool:
    """Whether numbers want a logarithmic axis."""
    return min(values) > 0 and max(values) > _RATIO_OF_LOGS * min(values)


def _finite(point: PointSummary) -> float | None:
    """Epsilon of one run of a point, where it is a number."""
    return point.epsilon if point.epsilon is not None and math.isfinite(point.epsilon) else None


def _percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0))


def _logarithmic(axis: Any) -> None:
    """Marks at 1, 2 and 5, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_locator(NullLocator())
