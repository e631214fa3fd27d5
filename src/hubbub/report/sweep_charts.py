"""The charts of a sweep's page, each an SVG in the colours of the page."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hubbub._checks import Array
from hubbub.accounting import rounded_up
from hubbub.report.surfaces import draw_surface, has_surface
from hubbub.report.svg import DASHES, INK, MARKERS, SERIES, figure, legible, shown, styled
from hubbub.report.sweep_told import PointTold, Spread, SweepTold, value_words

__all__ = ["Slice", "curve", "epsilon_curve", "heat_map", "pareto", "slices", "surface", "surface_points"]

# A heat map of more cells has no room for numbers.
_MOST_LABELS = 150
_RATIO_OF_LOGS = 10.0


@dataclass(frozen=True)
class Slice:
    """The part of a sweep that is drawn over its first two axes.

    Args:
        name: The values of all other axes; empty where there are none.
        points: By their values on the first two axes (on the first, where there is one).
    """

    name: str
    points: Mapping[tuple[Any, ...], PointTold]


def slices(sweep: SweepTold) -> list[Slice]:
    """All of them, in the order of the grid."""
    further = sweep.axes[2:]
    found = []
    for values in itertools.product(*(values for _, values in further)):
        name = ", ".join(f"{key} = {value_words(value)}" for (key, _), value in zip(further, values, strict=True))
        found.append(Slice(name, {point.values[:2]: point for point in sweep.points if point.values[2:] == values}))
    return found


@styled
def curve(sweep: SweepTold) -> str:
    """Accuracy over the one axis of a sweep, on test and on training examples; empty where nothing was measured."""
    if all(point.accuracy is None and point.train_accuracy is None for point in sweep.points):
        return ""
    made, axes = figure()
    tested = "held-out examples" if sweep.held_out else "test examples"
    _line(axes, sweep, 0, lambda point: point.accuracy, tested)
    _line(axes, sweep, 1, lambda point: point.train_accuracy, "training examples (private)")
    _percent(axes.yaxis)
    _dressed(axes, sweep, "accuracy")
    axes.legend(loc="best")
    return shown(made, f"Accuracy over {sweep.axes[0][0]}")


@styled
def epsilon_curve(sweep: SweepTold) -> str:
    """Epsilon of one run over the one axis of a sweep; empty where no run has one."""
    known = [point.epsilon for point in sweep.points if _finite(point.epsilon)]
    if not known:
        return ""
    made, axes = figure()
    _line(axes, sweep, 0, lambda point: Spread(point.epsilon, None) if _finite(point.epsilon) else None, "")  # type: ignore[arg-type]
    if _wide(known):  # type: ignore[arg-type]
        axes.set_yscale("log")
        _logarithmic(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    _dressed(axes, sweep, "epsilon of one run")
    return shown(made, f"Epsilon over {sweep.axes[0][0]}")


def _line(axes: Any, sweep: SweepTold, number: int, of: Callable[[PointTold], Spread | None], label: str) -> None:
    places = _places(sweep.axes[0][1])
    known = sorted((places[i], spread) for i, point in enumerate(sweep.points) if (spread := of(point)) is not None)
    if not known:
        return
    x, means = [place for place, _ in known], [spread.mean for _, spread in known]
    drawn = {"color": SERIES[number], "linestyle": DASHES[number], "marker": MARKERS[number], "label": label}
    if any(spread.deviation is not None for _, spread in known):
        axes.errorbar(x, means, yerr=[spread.deviation or 0.0 for _, spread in known], capsize=2.5, **drawn)
    else:
        axes.plot(x, means, **drawn)


def _dressed(axes: Any, sweep: SweepTold, words: str) -> None:
    key, values = sweep.axes[0]
    if not _numeric(values):
        axes.set_xticks(range(len(values)), [legible(value_words(value)) for value in values])
    axes.set_xlabel(legible(key))
    axes.set_ylabel(words)


def heat_map(sweep: SweepTold, part: Slice, what: str) -> str:
    """Accuracy or epsilon over the first two axes.

    Args:
        sweep: With two axes or more.
        part: What is drawn of it.
        what: ``"accuracy"`` or ``"epsilon"``.

    Returns:
        Empty where nothing is known.
    """
    if what == "accuracy":
        grid = _grid(sweep, part, lambda point: point.accuracy.mean if point.accuracy else None)
        everywhere = [point.accuracy.mean for point in sweep.points if point.accuracy]
    else:
        grid = _grid(sweep, part, lambda point: point.epsilon if _finite(point.epsilon) else None)
        everywhere = [point.epsilon for point in sweep.points if point.epsilon is not None and _finite(point.epsilon)]
    if not everywhere or np.isnan(grid).all():
        return ""
    return _heat(sweep, part, what, grid, (min(everywhere), max(everywhere)))


@styled
def _heat(sweep: SweepTold, part: Slice, what: str, grid: Array, ends: tuple[float, float]) -> str:
    import matplotlib as mpl
    from matplotlib.colors import LogNorm, Normalize

    (x_key, columns), (y_key, rows) = sweep.axes[:2]
    made, axes = figure(max(2.4, 0.34 * len(rows) + 1.0))
    logarithmic = what == "epsilon" and ends[0] > 0 and _wide(ends)
    norm = LogNorm(*ends) if logarithmic else Normalize(*ends)
    colors = mpl.colormaps["viridis" if what == "accuracy" else "cividis_r"]
    axes.pcolormesh(np.ma.masked_invalid(grid), cmap=colors, norm=norm, edgecolor="face", linewidth=0.3)
    if grid.size <= _MOST_LABELS:
        for (row, column), value in np.ndenumerate(grid):
            if math.isnan(value):
                continue
            light = np.dot(colors(norm(value))[:3], (0.299, 0.587, 0.114)) > 0.55
            text = f"{value:.1%}" if what == "accuracy" else rounded_up(value)
            axes.text(
                column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7, color="#000000" if light else "#ffffff"
            )
    for (column, row), point in _placed(sweep, part):
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
def pareto(sweep: SweepTold) -> str:
    """Accuracy against epsilon of one run, with the points that no other beats; empty where no epsilon is finite."""
    known = [(p.epsilon, p.accuracy, p) for p in sweep.points if p.accuracy and p.epsilon is not None and _finite(p.epsilon)]
    if not known:
        return ""
    made, axes = figure()
    for epsilon, accuracy, point in known:
        if accuracy.deviation:
            axes.plot(
                [epsilon] * 2, [accuracy.mean - accuracy.deviation, accuracy.mean + accuracy.deviation], color=SERIES[7], lw=1
            )
        if not point.frontier:
            axes.plot([epsilon], [accuracy.mean], color=SERIES[7], marker="o", linestyle="")
    front = sorted((epsilon, accuracy.mean) for epsilon, accuracy, point in known if point.frontier)
    if front:
        axes.plot(
            *zip(*front, strict=True), color=SERIES[0], marker=MARKERS[1], drawstyle="steps-post", label="no other beats these"
        )
    bare = [p.accuracy.mean for p in sweep.points if p.accuracy and p.epsilon is not None and not _finite(p.epsilon)]
    if bare:
        axes.axhline(max(bare), color=INK, linestyle=(0, (4, 3)), linewidth=1, label="best without privacy")
    values = [epsilon for epsilon, _, _ in known]
    if min(values) > 0 and _wide(values):
        axes.set_xscale("log")
        _logarithmic(axes.xaxis)
    _percent(axes.yaxis)
    axes.set_xlabel("epsilon of one run")
    axes.set_ylabel("accuracy")
    if front or bare:
        axes.legend(loc="best")
    return shown(made, "Accuracy against epsilon")


def surface_points(sweep: SweepTold, part: Slice, of: Callable[[PointTold], Spread | None]) -> list[tuple[float, float, float]]:
    """What a surface is drawn through; empty where the axes are no numbers, or the points span none."""
    if len(sweep.axes) < 2 or not all(_numeric(values) for _, values in sweep.axes[:2]):
        return []
    points = [
        (float(values[0]), float(values[1]), spread.mean)
        for values, point in sorted(part.points.items())
        if (spread := of(point)) is not None
    ]
    return points if has_surface(points) else []


@styled
def surface(sweep: SweepTold, part: Slice, of: Callable[[PointTold], Spread | None], words: str) -> str:
    """A surface over the first two axes; empty where there is none."""
    points = surface_points(sweep, part, of)
    if not points:
        return ""
    from matplotlib.ticker import MaxNLocator

    made, _ = figure(3.4)
    made.clear()
    axes = made.add_subplot(projection="3d")
    draw_surface(axes, points, ink=INK)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.set_pane_color((0.5, 0.5, 0.5, 0.06))
        axis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel(legible(sweep.axes[0][0].partition(".")[2]))
    axes.set_ylabel(legible(sweep.axes[1][0].partition(".")[2]))
    return shown(made, f"{words} as a surface{': ' + part.name if part.name else ''}")


def _grid(sweep: SweepTold, part: Slice, of: Callable[[PointTold], float | None]) -> Array:
    grid = np.full((len(sweep.axes[1][1]), len(sweep.axes[0][1])), np.nan)
    for (column, row), point in _placed(sweep, part):
        if (value := of(point)) is not None:
            grid[row, column] = value
    return grid


def _placed(sweep: SweepTold, part: Slice) -> Iterator[tuple[tuple[int, int], PointTold]]:
    (_, columns), (_, rows) = sweep.axes[:2]
    for values, point in part.points.items():
        yield (columns.index(values[0]), rows.index(values[1])), point


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _places(values: Sequence[Any]) -> list[float]:
    """Where values stand on an axis: numbers as they are, all others side by side."""
    return [float(value) for value in values] if _numeric(values) else [float(i) for i in range(len(values))]


def _wide(values: Sequence[float]) -> bool:
    """Whether numbers want a logarithmic axis."""
    return min(values) > 0 and max(values) > _RATIO_OF_LOGS * min(values)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0))


def _logarithmic(axis: Any) -> None:
    """Marks at 1, 2 and 5, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_locator(NullLocator())
