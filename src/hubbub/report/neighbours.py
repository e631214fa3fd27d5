"""The neighbours of a planned run as a picture: the error of each beside what it remembers, and epsilon over rounds."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Drawn", "draw_neighbours"]

# Okabe and Ito's blue for what there is, orange for the one to take; grey for all others.
_OWN, _BEST, _OTHER = "#0072B2", "#D55E00", "#9a9a9a"
_QUIET = "#6b6b6b"
_BAR, _TOP = 0.32, 3.6


@dataclass(frozen=True)
class Drawn:
    """One bar: its name, its error, what it remembers in words, whether it is the run itself, and the one to take."""

    name: str
    error: float
    memory: str
    own: bool
    best: bool


def draw_neighbours(title: str, marks: Sequence[Drawn], spent: Sequence[tuple[int, float]]) -> bytes:
    """A PNG: above the errors as bars from zero, the least on top; below epsilon after some of the rounds.

    Args:
        title: Of the run.
        marks: In the order of their errors.
        spent: Rounds, and epsilon after so many.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, _TOP + _BAR * len(marks)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    bars, curve = figure.subplots(2, 1, height_ratios=[max(1.2, _BAR * len(marks)), 2.2])
    largest = max(mark.error for mark in marks)
    for place, mark in enumerate(marks):
        color = _BEST if mark.best else _OWN if mark.own else _OTHER
        # Not by colour alone: print is grey.
        bars.barh(place, mark.error, color=color, hatch="//" if mark.best else None, edgecolor="white", linewidth=0)
        said = " · ".join(filter(None, [f"{mark.error:.4g}", mark.memory, *_roles(mark)]))
        bars.text(mark.error + largest * 0.01, place, said, va="center", fontsize=8)
    bars.set_yticks(range(len(marks)), [mark.name for mark in marks], fontsize=9)
    bars.invert_yaxis()
    bars.set_xlim(0, largest * 1.45)
    bars.set_xlabel("error of the model's noise, in clip norms")
    bars.set_title("beside each bar: error, and memory of the noise", loc="left", fontsize=10, color=_QUIET)
    rounds, epsilons = zip(*spent, strict=True)
    # Between two of them it is at most what it is after the later one.
    curve.step(rounds, epsilons, where="pre", color=_OWN, marker="o", markersize=4, linewidth=1.8)
    curve.set_xlabel("round")
    curve.set_ylabel("epsilon so far")
    curve.set_ylim(0, max(epsilons) * 1.08)
    curve.set_xlim(0, rounds[-1] * 1.02)
    curve.xaxis.set_major_locator(MaxNLocator(integer=True))
    curve.grid(visible=True, color="#e5e5e5")
    for axes in (bars, curve):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{title}: its neighbours at the same privacy", x=0.01, ha="left", fontweight="bold")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _roles(mark: Drawn) -> list[str]:
    return [word for word, holds in (("as it is", mark.own), ("recommended", mark.best)) if holds]
