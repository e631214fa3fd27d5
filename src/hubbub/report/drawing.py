"""Shared looks of all pictures: SVG in the colors of a page (light, dark, print), and PNG files."""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# The light theme. In an SVG each becomes the CSS variable of the page, so that a dark page and paper have their own.
INK, GRID, QUIET = "#1c1f23", "#e3e6ea", "#5b6470"
SERIES = ("#0072b2", "#d55e00", "#007a5a", "#b05a92", "#9a6700", "#3a8fc7", "#1c1f24", "#6b7280")
_VARIABLES = {INK: "ink", GRID: "grid", QUIET: "quiet"} | {color: f"series-{i}" for i, color in enumerate(SERIES)}
# Curves differ in more than color.
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1)), (0, (8, 2)), (0, (2, 2)), (0, (1, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "legend.labelcolor")
_STYLE: Any = dict.fromkeys(_INKED, INK) | {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
}


@contextmanager
def styled() -> Iterator[None]:
    """A context, or a decorator of a drawing function: the fonts, colors and grid of all pictures."""
    import matplotlib as mpl

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # Letters that this machine has no font for are boxes in a PNG; an SVG is drawn with the reader's fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def canvas(width: float = 4.6, height: float = 2.7) -> Any:
    """A figure in inches, by default as large as one on a page; for :func:`styled` functions."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def labelled(axes: Any, y: str, x: str = "round") -> None:
    """Label the axes, the lower one with whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel=x, ylabel=y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def legible(name: str) -> str:
    """A label that matplotlib shows as written: no formula, no underscore that hides it from the legend, and not too long.

    Example:
        >>> legible("_run-1")
        ' _run-1'
    """
    name = name if len(name) <= 40 else f"{name[:24]}…{name[-15:]}"
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def shown(made: Any, what: str) -> str:
    """The figure as an ``<svg>`` for a page, with a description for screen readers."""
    import matplotlib as mpl

    buffer = io.StringIO()
    # With a fixed salt the same picture has the same names inside in every run.
    with mpl.rc_context({"svg.hashsalt": what}):
        made.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # In tags alone: names may look like colors or ids.
    text = re.sub("<[^>]*>", _themed, text)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    for size in ("width", "height"):
        text = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", text, count=1)
    label = what.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1).strip()


def _themed(tag: re.Match[str]) -> str:
    """A tag in the colors of the page, without its id, which must be unique there."""
    found = re.sub(r'\n? *id="[a-zA-Z]+_\d+"', "", tag.group())
    for color, name in _VARIABLES.items():
        found = found.replace(color, f"var(--{name})")
    return found


def look(number: int) -> dict[str, Any]:
    """Color and line style of a curve, by its number from 0; the first 64 differ."""
    count = len(SERIES)
    return {"color": SERIES[number % count], "linestyle": _DASHES[(number + number // count) % count]}


def png(made: Any, title: str) -> bytes:
    """The figure as a PNG on white, with a title in bold."""
    made.suptitle(legible(title), x=0.01, ha="left", fontweight="bold", fontsize=12)
    buffer = io.BytesIO()
    made.savefig(buffer, format="png", facecolor="white")
    return buffer.getvalue()
