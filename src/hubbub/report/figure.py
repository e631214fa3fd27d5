"""Accuracy and epsilon over rounds, as a picture; the clip norm, too, where it moves."""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hubbub.accounting import PrivacyGuarantee, rounded_up
from hubbub.accounting.statement import no_less

__all__ = ["draw"]

_Rows = Sequence[Mapping[str, Any]]
_ACCURACY, _EPSILON, _QUIET = "#1b6ca8", "#b5542b", "#6b6b6b"


def draw(name: str, rows: _Rows, promised: PrivacyGuarantee, *, public: bool) -> bytes:
    """A PNG of panels over rounds: test accuracy, epsilon spent beside what was promised, and what else the rows tell."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    # What a part draws, and of which rows; where nothing is promised there is no epsilon to draw.
    parts: list[tuple[Callable[[Any, _Rows], None], _Rows]] = []
    if promised.private:
        parts.append((partial(_spent, promised=promised), rows))
    for further, key in ((_clip_norms, "clip_norm"), (_costs, "decrypt_seconds")):
        if told := [row for row in rows if row.get(key) is not None]:
            parts.append((further, told))
    figure = Figure(figsize=(8, 4 + 2 * len(parts)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1 + len(parts), 1, sharex=True, squeeze=False, height_ratios=(3, *(2 for _ in parts)))[:, 0]
    above = panels[0]
    evaluated = [row for row in rows if row.get("accuracy") is not None]
    rounds = [row["round_index"] + 1 for row in evaluated]
    above.plot(rounds, [row["accuracy"] for row in evaluated], color=_ACCURACY, marker="o", markersize=3)
    held_out = "training examples" if promised.privacy_unit == "example" else "clients' data"
    above.set_ylabel("accuracy on test data" if public else f"accuracy on held-out {held_out} (private)")
    above.yaxis.set_major_formatter(PercentFormatter(1.0))
    above.set_title(name, loc="left", fontweight="bold")
    if evaluated:
        last = evaluated[-1]["accuracy"]
        above.annotate(
            f"{last:.1%}", (rounds[-1], last), xytext=(0, 6), textcoords="offset points", ha="right", color=_ACCURACY
        )
        # So that the number has room above the line.
        above.margins(y=0.15)
    for axes, (part, found) in zip(panels[1:], parts, strict=True):
        part(axes, found)
    panels[-1].set_xlabel("round")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in panels:
        axes.grid(visible=True, color="#e5e5e5")
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _spent(axes: Any, rows: _Rows, promised: PrivacyGuarantee) -> None:
    """Epsilon after each round, beside what was promised."""
    axes.plot([row["round_index"] + 1 for row in rows], [row["epsilon"] for row in rows], color=_EPSILON, label="spent")
    axes.axhline(promised.epsilon, color=_QUIET, linestyle="--", label=f"promised: {rounded_up(promised.epsilon)}")
    # Of next to nothing, too.
    axes.set_ylim(0, max(promised.epsilon * 1.15, 1e-9))
    axes.set_ylabel(f"epsilon at delta = {no_less(promised.delta)}")
    axes.legend(loc="lower right", frameon=False)


def _clip_norms(axes: Any, rows: _Rows) -> None:
    """The clip norm of each round, which follows the updates' norms."""
    norms = [row["clip_norm"] for row in rows]
    axes.plot([row["round_index"] + 1 for row in rows], norms, color=_ACCURACY)
    # Its steps are geometric; within a power of ten plain numbers read better.
    if max(norms) > 10 * min(norms):
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("clip norm")


def _costs(axes: Any, rows: _Rows) -> None:
    """Seconds of each round that went into encryption, by what they were spent on."""
    for key, label, color, marker in (
        ("encrypt_seconds", "encrypt, one client", _ACCURACY, "o"),
        ("aggregate_seconds", "add, server, all clients", _EPSILON, "s"),
        ("decrypt_seconds", "decrypt, holders", _QUIET, "^"),
    ):
        measured = [row for row in rows if row.get(key) is not None]
        each = [max(1, row["clients"]) if key == "encrypt_seconds" else 1 for row in measured]
        seconds = [row[key] / count for row, count in zip(measured, each, strict=True)]
        if measured:
            rounds = [row["round_index"] + 1 for row in measured]
            axes.plot(rounds, seconds, color=color, marker=marker, markersize=3, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("seconds a round (private)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
