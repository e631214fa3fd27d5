"""Accuracy and epsilon over rounds, as a picture."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from hubbub.accounting import PrivacyGuarantee, rounded_up

__all__ = ["draw"]

_ACCURACY, _EPSILON, _QUIET = "#1b6ca8", "#b5542b", "#6b6b6b"


def draw(name: str, rows: Sequence[Mapping[str, Any]], promised: PrivacyGuarantee, *, public: bool) -> bytes:
    """A PNG of two panels over rounds: test accuracy, and epsilon spent beside what was promised."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    encrypted = [row for row in rows if row.get("decrypt_seconds") is not None]
    figure = Figure(figsize=(8, 8 if encrypted else 6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    above, below, *third = figure.subplots(
        3 if encrypted else 2, 1, sharex=True, height_ratios=(3, 2, 2)[: 3 if encrypted else 2]
    )
    evaluated = [row for row in rows if row.get("accuracy") is not None]
    rounds = [row["round_index"] + 1 for row in evaluated]
    above.plot(rounds, [row["accuracy"] for row in evaluated], color=_ACCURACY, marker="o", markersize=3)
    above.set_ylabel("accuracy on test data" if public else "accuracy on held-out clients' data (private)")
    above.yaxis.set_major_formatter(PercentFormatter(1.0))
    above.set_title(name, loc="left", fontweight="bold")
    if evaluated:
        last = evaluated[-1]["accuracy"]
        above.annotate(
            f"{last:.1%}", (rounds[-1], last), xytext=(0, 6), textcoords="offset points", ha="right", color=_ACCURACY
        )
        # So that the number has room above the line.
        above.margins(y=0.15)
    if promised.private:
        below.plot(
            [row["round_index"] + 1 for row in rows],
            [row["epsilon"] for row in rows],
            color=_EPSILON,
            label="spent",
        )
        below.axhline(promised.epsilon, color=_QUIET, linestyle="--", label=f"promised: {rounded_up(promised.epsilon)}")
        # Of next to nothing, too.
        below.set_ylim(0, max(promised.epsilon * 1.15, 1e-9))
        below.set_ylabel(f"epsilon at delta = {promised.delta:g}")
        below.legend(loc="lower right", frameon=False)
    else:
        below.set_yticks([])
        below.text(0.5, 0.5, "no privacy: epsilon is infinite", transform=below.transAxes, ha="center", color=_EPSILON)
    for axes in third:
        _costs(axes, encrypted)
    lowest = third[0] if third else below
    lowest.set_xlabel("round")
    lowest.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (above, below, *third):
        axes.grid(visible=True, color="#e5e5e5")
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _costs(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
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
    axes.set_ylabel("seconds a round")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
