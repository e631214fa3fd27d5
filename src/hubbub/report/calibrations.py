"""How much more noise than needed each calibration of the Gaussian mechanism takes, as a picture."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hubbub._checks import Array
from hubbub.report.errors import spread

__all__ = ["Curve", "draw_calibrations"]

# Okabe and Ito's colours, which people with any colour vision tell apart, without their yellow, which print loses; each has a
# line style of its own too, for print in black and white.
_LOOKS: tuple[tuple[str, Any], ...] = (
    ("#0072B2", "-"),
    ("#D55E00", (0, (7, 2))),
    ("#009E73", (0, (1, 1.2))),
    ("#CC79A7", (0, (5, 1.5, 1, 1.5))),
    ("#000000", (0, (3, 1.5))),
    ("#56B4E9", (0, (9, 2, 1, 2, 1, 2))),
    ("#E69F00", (0, (2, 3))),
    ("#6b6b6b", (0, (5, 1, 1, 1, 1, 1))),
)
_QUIET = "#6b6b6b"
_SUBTITLE: dict[str, Any] = {"loc": "left", "fontsize": 10, "color": _QUIET}
# Of the height of the axes, between one label and the next.
_LINE = 0.045
# Ratios beyond are of no use to anyone, and would flatten the rest.
_LOWEST, _HIGHEST = 0.25, 5.0


@dataclass(frozen=True, eq=False)
class Curve:
    """A calibration's noise over the least noise.

    Args:
        name: Of the calibration.
        epsilons: ``(points,)``, rising.
        ratios: ``(points,)``; below 1 the claim is false; NaN where it makes none.
        proved: ``(points,)``, whether the theorem covers that epsilon.
    """

    name: str
    epsilons: Array
    ratios: Array
    proved: npt.NDArray[np.bool_]


def draw_calibrations(epsilon: float, delta: float, curves: Sequence[Curve]) -> bytes:
    """A PNG of the noise of each calibration over the exact one, over epsilon; thin where its theorem does not reach.

    Args:
        epsilon: Marked.
        delta: Of all.
        curves: On the same epsilons.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure = Figure(figsize=(9, 6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    low = max(_LOWEST, min([0.95, *(float(curve.ratios.min()) for curve in curves)]) / 1.03)
    high = min(_HIGHEST, max([1.2, *(float(curve.ratios.max()) for curve in curves)]) * 1.03)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    if curves:
        axes.set_xlim(float(curves[0].epsilons[0]), float(curves[0].epsilons[-1]))
    axes.axhspan(low, 1, color="#f1e3dc", zorder=0)
    axes.axhline(1, color="#000000", linewidth=1.2, zorder=2)
    axes.annotate(
        "analytic, the least noise; below it the claim is false",
        (0, 1), xycoords=axes.get_yaxis_transform(), xytext=(6, -4), textcoords="offset points", va="top", fontsize=9,
    )  # fmt: skip
    axes.axvline(epsilon, color=_QUIET, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    axes.annotate(
        f"epsilon = {epsilon:g}",
        (epsilon, high),
        xytext=(4, -2),
        textcoords="offset points",
        va="top",
        fontsize=9,
        color=_QUIET,
    )
    for number, curve in enumerate(curves):
        color, style = _LOOKS[number % len(_LOOKS)]
        axes.plot(
            curve.epsilons, np.where(curve.proved, curve.ratios, np.nan), color=color, linestyle=style, linewidth=2, zorder=3
        )
        beyond = ~curve.proved
        # The last proved point too, so that the line has no gap.
        beyond[:-1] |= beyond[1:]
        axes.plot(curve.epsilons, np.where(beyond, curve.ratios, np.nan), color=color, linestyle=style, linewidth=0.9, zorder=3)
    _label(axes, curves, low, high)
    axes.set_xlabel("epsilon")
    axes.set_ylabel("noise over that of the analytic calibration")
    ticks = [
        tick
        for tick in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0)
        if low <= tick <= high
    ]
    axes.set_yticks(ticks)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    notes = [f"delta = {delta:g}"]
    if not all(curve.proved.all() for curve in curves):
        notes.append("thin: beyond its theorem")
    if any(curve.ratios.max() > high for curve in curves):
        notes.append(f"above {high:g} not drawn")
    axes.set_title("; ".join(notes), **_SUBTITLE)
    figure.suptitle("How much more noise than needed each calibration adds", x=0.01, ha="left", fontweight="bold")
    axes.grid(visible=True, color="#e5e5e5", zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _label(axes: Any, curves: Sequence[Curve], low: float, high: float) -> None:
    """Names to the right of the axes, each beside the end of its curve as far as there is room."""
    ends = [min(high, max(low, float(curve.ratios[-1]))) for curve in curves]
    heights = [(math.log(end) - math.log(low)) / (math.log(high) - math.log(low)) for end in ends]
    places = spread(heights, _LINE) if heights else []
    shift = max(0.0, -min(places, default=0.0))
    for number, (curve, height, place) in enumerate(zip(curves, heights, places, strict=True)):
        color, style = _LOOKS[number % len(_LOOKS)]
        axes.plot(
            [1.0, 1.02, 1.06], [height, place + shift, place + shift], transform=axes.transAxes, color=color, linestyle=style,
            linewidth=1.4, clip_on=False,
        )  # fmt: skip
        axes.text(1.07, place + shift, curve.name, transform=axes.transAxes, va="center", color=color, fontsize=9)
