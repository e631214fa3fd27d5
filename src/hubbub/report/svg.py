"""Pictures for a page: matplotlib's SVG in the colours of the page, so that one picture serves light, dark and print."""

import io
import re
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

__all__ = ["DASHES", "INK", "MARKERS", "SERIES", "figure", "legible", "shown", "styled"]

P = ParamSpec("P")

# Stand-ins that no picture uses otherwise; the page says what they are by the CSS variables of the same names.
INK, GRID = "#010101", "#010102"
SERIES = tuple(f"#01010{digit}" for digit in "56789abc")
_NAMES = {INK: "ink", GRID: "grid"} | {color: f"series-{i}" for i, color in enumerate(SERIES)}
# With the colours, so that no picture needs them to be told apart.
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1)), (0, (8, 2)), (0, (2, 2)), (0, (1, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# As matplotlib names its settings.
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.labelcolor": INK,
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
    """A label that is shown as it is: no formula, and not kept from the legend."""
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
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    # A page must not name each part of each of its pictures alike.
    text = re.sub(r'\n? *id="[a-zA-Z]+_\d+"', "", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{_attribute(what)}"', 1).strip()


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
