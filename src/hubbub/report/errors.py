"""The errors of several strategies over rounds, as a picture."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hubbub._checks import Array

__all__ = ["draw_errors", "smoothed", "spread"]

# Okabe and Ito's colours, which people with any colour vision tell apart, without their yellow, which print loses. Neighbours
# differ in line style too, for print in black and white; no two of the first 21 have the same looks.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
_STYLES: tuple[Any, ...] = ("-", (0, (6, 1.5)), (0, (2, 1)))
_SUBTITLE: dict[str, Any] = {"loc": "left", "fontsize": 10, "color": "#6b6b6b"}
# Of the height of the axes, between one label and the next.
_LINE = 0.042
# The errors of a tree jump from round to round. A curve that goes up and down by more than this many times its range is drawn
# faintly, and its mean over a window of this part of the rounds in its stead.
_JUMPS, _WINDOW = 6.0, 1 / 16
# The first rounds of a strategy that starts without noise of the past would take half of a logarithmic axis.
_FIRST = 0.02


def draw_errors(title: str, subtitle: str, curves: Mapping[str, Array]) -> bytes:
    """A PNG of the root squared error over rounds of each strategy, all at sensitivity 1, each named at its end with its RMSE.

    Errors that jump from round to round, as those of trees, are drawn faintly behind their running mean.

    Args:
        title: Its first line.
        subtitle: Its second, such as the setting.
        curves: ``(rounds,)`` each, by name.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    ordered = sorted(curves, key=lambda name: float(np.square(curves[name]).mean()))
    rounds = np.arange(1, len(curves[ordered[0]]) + 1)
    lines = [smoothed(curves[name]) for name in ordered]
    lowest = min(float(np.quantile(line, _FIRST)) for line in lines) / 1.1
    highest = max(float(curve.max()) for curve in curves.values()) * 1.08
    axes.set_yscale("log")
    axes.set_ylim(lowest, highest)
    axes.set_xlim(1, max(2, len(rounds)))
    for number, (name, line) in enumerate(zip(ordered, lines, strict=True)):
        color, style = _looks(number)
        axes.plot(rounds, line, color=color, linestyle=style, linewidth=1.8, zorder=3)
        if line is not curves[name]:
            axes.plot(rounds, curves[name], color=color, linewidth=0.5, alpha=0.3, zorder=1)
    labels = [f"{name}  {float(np.sqrt(np.square(curves[name]).mean())):.4g}" for name in ordered]
    _label(axes, labels, [float(line[-1]) for line in lines])
    _ticks(axes, lowest, highest)
    axes.set_xlabel("round")
    axes.set_ylabel("root squared error at sensitivity 1")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    jumps = any(line is not curves[name] for name, line in zip(ordered, lines, strict=True))
    key = "beside each name: its RMSE" + ("; faint: single rounds, behind their running mean" if jumps else "")
    axes.set_title(f"{subtitle}\n{key}", **_SUBTITLE)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    axes.grid(visible=True, color="#e5e5e5")
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def smoothed(curve: Array) -> Array:
    """The curve itself, or its root mean square over a window of rounds where it jumps, ``(rounds,)``."""
    span = float(np.ptp(curve))
    if float(np.abs(np.diff(curve)).sum()) <= _JUMPS * span:
        return curve
    half = max(1, round(len(curve) * _WINDOW / 2))
    total = np.concatenate([[0.0], np.cumsum(np.square(curve))])
    first = np.maximum(np.arange(len(curve)) - half, 0)
    last = np.minimum(np.arange(len(curve)) + half + 1, len(curve))
    means: Array = np.sqrt((total[last] - total[first]) / (last - first))
    return means


def spread(wanted: Sequence[float], apart: float) -> list[float]:
    """Places near the wanted ones, in the same order, of which no two are nearer than ``apart``.

    Example:
        >>> [round(place, 3) for place in spread([0.5, 0.52, 0.9], apart=0.1)]
        [0.46, 0.56, 0.9]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    # Groups that touch become one, around the mean of what its members wanted.
    groups: list[tuple[float, int]] = []
    for i in order:
        middle, size = wanted[i], 1
        while groups and middle - groups[-1][0] < apart * (size + groups[-1][1]) / 2:
            before, count = groups.pop()
            middle = (middle * size + before * count) / (size + count)
            size += count
        groups.append((middle, size))
    places = [middle + apart * (k - (size - 1) / 2) for middle, size in groups for k in range(size)]
    return [place for _, place in sorted(zip(order, places, strict=True))]


def _looks(number: int) -> tuple[str, Any]:
    return _COLORS[number % len(_COLORS)], _STYLES[number % len(_STYLES)]


def _label(axes: Any, names: Sequence[str], ends: Sequence[float]) -> None:
    """Names to the right of the axes, each beside the end of its curve as far as there is room."""
    low, high = (math.log(value) for value in axes.get_ylim())
    heights = [(math.log(end) - low) / (high - low) for end in ends]
    # The room stays within the axes where the labels fit in.
    places = spread(heights, min(_LINE, 1 / max(1, len(names))))
    shift = max(0.0, -min(places)) - max(0.0, max(places) - 1.0)
    for number, (name, height, place) in enumerate(zip(names, heights, places, strict=True)):
        color, style = _looks(number)
        axes.plot(
            [1.0, 1.02, 1.05], [height, place + shift, place + shift], transform=axes.transAxes, color=color, linestyle=style,
            linewidth=1.4, clip_on=False,
        )  # fmt: skip
        axes.text(1.06, place + shift, name, transform=axes.transAxes, va="center", color=color, fontsize=9)


def _ticks(axes: Any, lowest: float, highest: float) -> None:
    """Marks as plain numbers, more of them where the errors span less than a factor of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    subs = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0) if highest < 30 * lowest else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
