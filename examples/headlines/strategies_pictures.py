"""The pictures of docs/choosing-a-strategy.md, from numbers that strategies.py has.

Okabe and Ito's colours, which people with any colour vision tell apart; dashes and markers differ, too, for print in black and
white.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

# Colour, dashes, marker.
LOOKS: dict[str, tuple[str, Any, str]] = {
    "identity": ("#000000", (0, (1, 1.5)), "X"),
    "tree": ("#8c8c8c", (0, (2, 1)), "s"),
    "tree-full": ("#5a5a5a", (0, (6, 1.5)), "D"),
    "banded-inverse": ("#E69F00", "-", "v"),
    "blt": ("#009E73", (0, (6, 1.5)), "o"),
    "optimal-toeplitz": ("#56B4E9", "-", "^"),
    "banded": ("#0072B2", (0, (6, 1.5)), "s"),
    "time-varying": ("#CC79A7", "-", "P"),
    "dense": ("#D55E00", "-", "*"),
}
TITLES = {"once": "each client in one round", "separated": "each client in 20 rounds, 100 or more apart"}
# Of the errors of a round, and of their means.
ERRORS = {"once": (2.4, 10.5), "separated": (10, 64)}
MEANS = {"once": (2.8, 36), "separated": (16, 160)}
QUIET = "#5a5a5a"

Curves = Mapping[str, Sequence[Any]]


def draw_errors(file: Path, settings: Mapping[str, tuple[np.ndarray, Curves]]) -> None:
    """Root squared error over rounds. Independent noise leaves the picture, or the others could not be told apart."""
    figure, panels = _panels((11, 5.6))
    for axes, (key, (rounds, given)) in zip(panels, settings.items(), strict=True):
        curves = dict(given)
        if "time-varying" in curves:
            # The curve of the best of all is the same to the eye.
            del curves["dense"]
        for name, curve in curves.items():
            color, style, _ = LOOKS[name]
            axes.plot(rounds, curve, color=color, linestyle=style, linewidth=1.8)
        _plain_logarithm(axes, *ERRORS[key])
        axes.set_xlim(1, rounds[-1])
        identity, top = np.array(curves.pop("identity")), ERRORS[key][1]
        leaves = int(rounds[np.searchsorted(identity, top)])
        axes.text(leaves + 40, top, f"identity: {identity[-1]:.0f} in the last round", va="top", fontsize=9)
        _label(axes, {name: curve[-1] for name, curve in curves.items()})
        axes.set_xlabel("round")
    panels[0].set_ylabel("root squared error at sensitivity 1")
    figure.savefig(file)


def draw_memory(file: Path, settings: Mapping[str, tuple[Curves, float]]) -> None:
    """RMSE against rows remembered, and the RMSE below which no strategy is."""
    figure, panels = _panels((11, 5.4))
    for axes, (key, (curves, bound)) in zip(panels, settings.items(), strict=True):
        for name, curve in curves.items():
            color, style, marker = LOOKS[name]
            axes.plot(
                *zip(*curve, strict=True), color=color, linestyle=style if len(curve) > 1 else "none", marker=marker,
                markersize=7, linewidth=1.6, markeredgecolor="white", markeredgewidth=0.6, label=name, clip_on=False, zorder=3,
            )  # fmt: skip
        axes.axhline(bound, color=QUIET, linewidth=0.9)
        axes.text(30, bound * 0.985, "no strategy is below", color=QUIET, fontsize=9, va="top")
        axes.set_xscale("symlog", linthresh=1, linscale=0.4)
        axes.xaxis.set_major_locator(FixedLocator([0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 2000]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlim(-0.05, 2200)
        _plain_logarithm(axes, *MEANS[key])
        axes.set_xlabel("rows remembered (each as long as the model)")
        axes.legend(loc="upper right", frameon=False, fontsize=9)
    panels[0].set_ylabel("RMSE at sensitivity 1")
    figure.savefig(file)


def _panels(size: tuple[float, float]) -> tuple[Figure, Any]:
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, title in zip(panels, TITLES.values(), strict=True):
        axes.set_title(f"2,000 rounds; {title}", loc="left", fontsize=10.5)
        axes.grid(visible=True, color="#e5e5e5")
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _plain_logarithm(axes: Any, low: float, high: float) -> None:
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _spread(wanted: Sequence[float], apart: float) -> list[float]:
    """Places near the wanted ones, in the same order, of which no two are nearer than ``apart``."""
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


def _label(axes: Any, ends: Mapping[str, float]) -> None:
    """Names beside the ends of their curves."""
    low, high = (math.log(value) for value in axes.get_ylim())
    heights = [(math.log(end) - low) / (high - low) for end in ends.values()]
    for name, height, place in zip(ends, heights, _spread(heights, 0.042), strict=True):
        color, style, _ = LOOKS[name]
        axes.plot(
            [1.0, 1.02, 1.07], [height, place, place], transform=axes.transAxes, color=color, linestyle=style, clip_on=False
        )
        shown = {"time-varying": "time-varying, dense", "dense": "dense, a rotation"}.get(name, name)
        axes.text(1.08, place, shown, transform=axes.transAxes, va="center", fontsize=9)
