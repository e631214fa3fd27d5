"""What pictures share: looks, matplotlib's SVG in the colours of a page for light, dark and print, and PNG files."""

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

__all__ = [
    "DASHES",
    "INK",
    "MARKERS",
    "QUIET",
    "SERIES",
    "canvas",
    "figure",
    "legible",
    "name_ends",
    "png",
    "shown",
    "spread",
    "styled",
]

P = ParamSpec("P")

# Stand-ins that no picture uses otherwise; the page says what they are by the CSS variables of the same names.
INK, GRID = "#010101", "#010102"
SERIES = tuple(f"#01010{digit}" for digit in "56789abc")
_NAMES = {INK: "ink", GRID: "grid"} | {color: f"series-{i}" for i, color in enumerate(SERIES)}
# With the colours, so that no picture needs them to be distinguished.
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1)), (0, (8, 2)), (0, (2, 2)), (0, (1, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# Of a PNG.
QUIET = "#6b6b6b"
# As matplotlib names its settings.
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


def styled(chart: Callable[P, str]) -> Callable[P, str]:
    """A function that draws, in the colours and the type of the page."""

    @wraps(chart)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> str:
        import matplotlib as mpl

        with mpl.rc_context(_STYLE):
            return chart(*args, **kwargs)

    return drawn


def figure(height: float = 2.7, *, width: float = 4.6) -> tuple[Any, Any]:
    """A figure, inches, and its axes; for functions that are :func:`styled`."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(made)
    return made, made.subplots()


def legible(name: str) -> str:
    """A label that is shown as it is: no formula, and not kept from the legend.

    Example:
        >>> legible("_run-1")
        ' _run-1'
    """
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def shown(made: Any, what: str) -> str:
    """The figure as an ``<svg>`` for a page, with the words that stand for it where it is not seen."""
    import matplotlib as mpl

    buffer = io.StringIO()
    # The salt makes names in it the same in every run of the same picture.
    with mpl.rc_context({"svg.hashsalt": what}), warnings.catch_warnings():
        # The reader's fonts draw it, not those of this machine.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        made.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for color, name in _NAMES.items():
        text = text.replace(color, f"var(--{name})")
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    for size in ("width", "height"):
        text = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", text, count=1)
    # A page must not name each part of each of its pictures alike.
    text = re.sub(r'\n? *id="[a-zA-Z]+_\d+"', "", text)
    label = what.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1).strip()


def canvas(width: float, height: float, dpi: int = 150) -> Any:
    """A figure, inches, that becomes a :func:`png`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(made)
    return made


def png(made: Any, title: str = "") -> bytes:
    """The figure as a file, under a title in bold."""
    if title:
        made.suptitle(title, x=0.01, ha="left", fontweight="bold")
    for axes in made.axes:
        if axes.name == "rectilinear":
            axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    made.savefig(buffer, format="png")
    return buffer.getvalue()


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


def name_ends(axes: Any, names: Sequence[str], ends: Sequence[float], looks: Sequence[tuple[str, Any]]) -> None:
    """Names to the right of logarithmic axes, each at the end of its curve as far as there is room.

    Args:
        axes: Their limits are set.
        names: Of the curves.
        ends: The last value of each, above 0.
        looks: Colour and line style of each.
    """
    low, high = (math.log(value) for value in axes.get_ylim())
    heights = [min(1.0, max(0.0, (math.log(end) - low) / (high - low))) for end in ends]
    # All names stay within the axes where they fit.
    places = spread(heights, min(0.042, 1 / max(1, len(names))))
    shift = max(0.0, -min(places, default=0.0)) - max(0.0, max(places, default=0.0) - 1.0)
    for name, height, place, (color, style) in zip(names, heights, places, looks, strict=True):
        corner = [height, place + shift, place + shift]
        axes.plot([1.0, 1.02, 1.05], corner, transform=axes.transAxes, color=color, ls=style, lw=1.4, clip_on=False)
        axes.text(1.06, place + shift, name, transform=axes.transAxes, va="center", color=color, fontsize=9)
