"""The files of a sweep: ``sweep.html``, which opens offline, ``results.csv`` and ``results.json``."""

import csv
import io
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hubbub._util.checks import Array
from hubbub._util.files import write_atomic
from hubbub._util.strict_json import finite_only
from hubbub.accounting import rounded_up
from hubbub.accounting.statement import no_less
from hubbub.experiment.sweep.grid import SEED, value_words
from hubbub.experiment.sweep.results import PointSummary, Spread, SweepSummary
from hubbub.report.citations import bibtex
from hubbub.report.drawing import INK, MARKERS, SERIES, figure, legible, shown, styled
from hubbub.report.page import Chart, rendered

__all__ = ["epsilon_words", "page", "spread_words", "write"]

# At most this many combinations of the third and later axes are drawn.
_MOST_SLICES = 12
# A heat map of more cells has no room for numbers.
_MOST_LABELS = 150
_CITED = ("papernot2022hyperparameter", "liu2019private")


def write(folder: Path, sweep: SweepSummary) -> None:
    """Write the files of a sweep into its folder."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(sweep.rows())
    write_atomic(folder / "results.csv", table.getvalue().encode())
    write_atomic(folder / "results.json", json.dumps(finite_only(sweep.as_json()), allow_nan=False, indent=1).encode())
    write_atomic(folder / "sweep.html", page(sweep).encode())


def page(sweep: SweepSummary) -> str:
    """The HTML page; it links to the report of each run in the sweep's folder."""
    best, choice = sweep.best, sweep.choice
    names = [key.partition(".")[2] for key, _ in sweep.axes]
    return rendered(
        "sweep.html",
        sweep=sweep,
        finished=sum(cell.state == "finished" for cell in sweep.cells),
        rows=[_row(point) for point in sweep.points],
        best=best and _row(best),
        best_words=", ".join(f"{name} {value_words(value)}" for name, value in zip(names, best.values, strict=True))
        if best
        else "",
        charts=[chart for chart in _charts(sweep) if chart.picture],
        choice=choice,
        delta="" if choice.delta is None else no_less(choice.delta),
        bounded=choice.epsilon is not None and math.isfinite(choice.epsilon),
        together=epsilon_words(choice.epsilon),
        trials=[(words, rounded_up(epsilon)) for words, epsilon in choice.trials],
        failed=[cell for cell in sweep.cells if cell.state == "failed"],
        references=bibtex(list(_CITED)),
    )


def _row(point: PointSummary) -> dict[str, Any]:
    reports = [(cell.report, f"seed {cell.settings[SEED]}" if SEED in cell.settings else "report") for cell in point.cells]
    return {
        "values": [value_words(value) for value in point.values],
        "accuracy": spread_words(point.accuracy, ".2%"),
        "train_accuracy": spread_words(point.train_accuracy, ".2%"),
        "loss": spread_words(point.loss, ".4f"),
        "epsilon": epsilon_words(point.epsilon),
        "best": point.best,
        "frontier": point.frontier,
        "state": point.state,
        "reports": [(link, words) for link, words in reports if link],
    }


def spread_words(spread: Spread | None, pattern: str) -> str:
    """A mean ± its standard deviation.

    Example:
        >>> spread_words(Spread(0.5, 0.01), ".2%"), spread_words(Spread(2.0, None), ".4f"), spread_words(None, "")
        ('50.00% ± 1.00%', '2.0000', '–')
    """
    numbers = () if spread is None else (spread.mean, spread.deviation)
    return " ± ".join(format(number, pattern) for number in numbers if number is not None) or "–"


def epsilon_words(value: float | None) -> str:
    """An epsilon rounded up, or a dash."""
    return "–" if value is None else rounded_up(value)


def _charts(sweep: SweepSummary) -> Iterator[Chart]:
    seeds = f" Means over {sweep.seeds} seeds." if sweep.seeds > 1 else ""
    of = "held-out training examples" if sweep.held_out else "public test examples"
    if sweep.axes:
        slices = _slices(sweep)
        left = (
            f" The first {_MOST_SLICES} of {len(slices)} combinations of the other settings."
            if len(slices) > _MOST_SLICES
            else ""
        )
        for what, about, private in (
            ("accuracy", f"On {of}.{seeds} The best point is framed.{left}", sweep.held_out),
            ("epsilon", f"The cost of one run alone.{left}", False),
        ):
            for name, points in itertools.islice(slices.items(), _MOST_SLICES):
                title = what.capitalize() + (f", {name}" if name else "")
                yield Chart(title, _heat_map(sweep, name, points, what), about, private)
    pareto = f"Epsilon is of one run alone. No other point is more accurate at an epsilon as small as on the line.{seeds}"
    yield Chart("Accuracy against epsilon", _pareto(sweep), pareto, private=sweep.held_out)


def _slices(sweep: SweepSummary) -> dict[str, list[PointSummary]]:
    """The points over the first two axes, by the other settings in words."""
    found: dict[str, list[PointSummary]] = {}
    for point in sweep.points:
        further = zip(sweep.axes[2:], point.values[2:], strict=True)
        name = ", ".join(f"{key} = {value_words(value)}" for (key, _), value in further)
        found.setdefault(name, []).append(point)
    return found


@styled
def _heat_map(sweep: SweepSummary, name: str, points: Sequence[PointSummary], what: str) -> str:
    """``"accuracy"`` or ``"epsilon"`` over the first two axes of a sweep."""
    import matplotlib as mpl
    from matplotlib.colors import LogNorm, Normalize

    def of(point: PointSummary) -> float:
        value = _finite(point) if what == "epsilon" else point.accuracy.mean if point.accuracy else None
        return math.nan if value is None else value

    (x_key, columns), (y_key, rows) = (*sweep.axes, ("", ("",)))[:2]
    grid: Array = np.full((len(rows), len(columns)), np.nan)
    # By place, since values may be lists.
    placed = {(rows.index((*point.values, "")[1]), columns.index(point.values[0])): point for point in points}
    for place, point in placed.items():
        grid[place] = of(point)
    if np.isnan(grid).all():
        return ""
    everywhere = [of(point) for point in sweep.points]
    ends = float(np.nanmin(everywhere)), float(np.nanmax(everywhere))
    norm = LogNorm(*ends) if what == "epsilon" and _wide(ends) else Normalize(*ends)
    colors = mpl.colormaps["viridis" if what == "accuracy" else "cividis_r"]
    made, axes = figure(max(2.4, 0.34 * len(rows) + 1.0))
    axes.pcolormesh(np.ma.masked_invalid(grid), cmap=colors, norm=norm, edgecolor="face", linewidth=0.3)
    for (row, column), point in placed.items():
        value = grid[row, column]
        if not math.isnan(value) and grid.size <= _MOST_LABELS:
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
    return shown(made, f"{what} over {' and '.join(key for key, _ in sweep.axes[:2])}{': ' + name if name else ''}")


@styled
def _pareto(sweep: SweepSummary) -> str:
    """Accuracy against the epsilon of one run, with the frontier."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

    measured = [(_finite(point), point.accuracy, point) for point in sweep.points if point.accuracy]
    known = [(epsilon, accuracy, point) for epsilon, accuracy, point in measured if epsilon is not None]
    if not known:
        return ""
    made, axes = figure()
    for epsilon, accuracy, point in known:
        marker = "" if point.frontier else "o"
        look = {"color": SERIES[7], "marker": marker, "linestyle": "", "elinewidth": 1}
        axes.errorbar([epsilon], [accuracy.mean], yerr=accuracy.deviation or None, **look)
    front = sorted((epsilon, accuracy.mean) for epsilon, accuracy, point in known if point.frontier)
    if front:
        look = {"color": SERIES[0], "marker": MARKERS[1], "drawstyle": "steps-post", "label": "frontier"}
        axes.plot(*zip(*front, strict=True), **look)
    bare = [accuracy.mean for epsilon, accuracy, point in measured if epsilon is None and point.epsilon is not None]
    if bare:
        axes.axhline(max(bare), color=INK, linestyle=(0, (4, 3)), linewidth=1, label="best without privacy")
    if _wide([epsilon for epsilon, _, _ in known]):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("epsilon of one run")
    axes.set_ylabel("accuracy")
    if front or bare:
        axes.legend(loc="best")
    return shown(made, "Accuracy against epsilon")


def _wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > 10 * min(values)


def _finite(point: PointSummary) -> float | None:
    return point.epsilon if point.epsilon is not None and math.isfinite(point.epsilon) else None
