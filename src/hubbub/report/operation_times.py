"""How long operations take over the length of their operand, as a picture of several panels."""

import io
from collections.abc import Mapping, Sequence

from hubbub._checks import Array

__all__ = ["draw_operation_times"]

# Of Okabe and Ito's colours, told apart in print by line and marker too.
_LOOKS = (("#0072B2", "-", "o"), ("#D55E00", (0, (6, 1.5)), "s"), ("#009E73", (0, (2, 1)), "^"))
_QUIET = "#6b6b6b"
_MILLISECONDS = 1e3


def draw_operation_times(
    title: str, subtitle: str, sizes: Sequence[int], panels: Mapping[tuple[str, str], Mapping[str, Array]]
) -> bytes:
    """A PNG of one panel for each row and column, each with one curve for each implementation, on logarithmic axes of time.

    Args:
        title: Its first line.
        subtitle: Its second, such as the setting.
        sizes: ``(sizes,)``, bits of the operand, rising.
        panels: Seconds, ``(sizes,)``, by row and column, then by the name of the implementation.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    rows, columns = (list(dict.fromkeys(name[axis] for name in panels)) for axis in (0, 1))
    figure = Figure(figsize=(11, 9), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=True)
    for (row, column), curves in panels.items():
        axes = grid[rows.index(row)][columns.index(column)]
        axes.set_yscale("log")
        for (name, seconds), (color, style, marker) in zip(curves.items(), _LOOKS, strict=False):
            axes.plot(
                sizes, seconds * _MILLISECONDS, label=name, color=color, linestyle=style, marker=marker, markersize=3, zorder=3
            )
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(visible=True, color="#e5e5e5", zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
    for axes, row in zip(grid[:, 0], rows, strict=True):
        axes.set_ylabel(f"{row}: milliseconds")
    for axes, column in zip(grid[0], columns, strict=True):
        axes.set_title(column, loc="left", fontweight="bold", fontsize=11)
    for axes in grid[-1]:
        axes.set_xlabel("bits of the operand")
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="upper right", ncols=len(names), frameon=False)
    figure.suptitle(f"{title}\n", x=0.01, ha="left", fontweight="bold")
    figure.text(0.01, 0.965, subtitle, ha="left", va="top", fontsize=9, color=_QUIET)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
