"""Where the time of runs went, phase by phase, as a picture."""

from collections.abc import Mapping, Sequence
from typing import Any

from hubbub.report.svg import INK, MARKERS, SERIES, figure, legible, shown, styled
from hubbub.report.told import RunTold

__all__ = ["WORDS", "phase_seconds", "phases"]

# In the order of a round; what comes last is between rounds.
WORDS = {
    "sample": "draw the cohort",
    "aggregate": "train, clip, sum",
    "record": "record the cost",
    "noise": "add noise, open",
    "persist": "write to disk",
    "update": "update the model",
    "account": "compute epsilon",
    "evaluate": "measure the model",
}
# Of several runs a phase is a row of dots; what is shorter than this stands at its edge.
_SHORTEST = 1e-6
_LARGEST = 1e30


def phase_seconds(run: RunTold) -> Mapping[str, float]:
    """Seconds of each phase in all rounds whose metrics tell it; empty where none does. Phases of no name here are left out."""
    told = [row["phases"] for row in run.rows if row.get("phases")]
    sums = {name: sum(phases.get(name, 0.0) for phases in told) for name in WORDS}
    return sums if any(sums.values()) and max(sums.values()) < _LARGEST else {}


@styled
def phases(runs: Sequence[RunTold]) -> str:
    """The seconds of each phase: of one run in all, as bars with their shares; of several a round, as dots of their own."""
    known = [(run, seconds) for run in runs if (seconds := phase_seconds(run))]
    if not known:
        return ""
    made, axes = figure()
    if len(known) == 1:
        what = _bars(axes, known[0][1])
    else:
        for run, seconds in known:
            _dots(axes, run, seconds)
        axes.set_xscale("log")
        axes.set_xlabel("seconds a round")
        axes.legend(loc="best")
        what = ""
    axes.set_yticks(range(len(WORDS)), list(WORDS.values()))
    axes.set_ylim(len(WORDS) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    return shown(made, f"Where the time went{what}")


def _bars(axes: Any, seconds: Mapping[str, float]) -> str:
    """One bar a phase; answers with what is seen, in words."""
    whole = sum(seconds.values())
    axes.barh(range(len(WORDS)), list(seconds.values()), height=0.7, color=SERIES[0])
    for height, value in enumerate(seconds.values()):
        axes.annotate(
            f"{value:.3g} s, {value / whole:.1%}", (value, height), xytext=(4, 0), textcoords="offset points", va="center",
            color=INK,
        )  # fmt: skip
    # The longest bar needs room for its words, too.
    axes.set_xlim(0, 1.45 * max(seconds.values()))
    axes.set_xlabel("seconds, all rounds together")
    return ": " + ", ".join(f"{WORDS[name]} {value / whole:.1%}" for name, value in seconds.items())


def _dots(axes: Any, run: RunTold, seconds: Mapping[str, float]) -> None:
    rounds = sum(1 for row in run.rows if row.get("phases"))
    axes.plot(
        [max(value / rounds, _SHORTEST) for value in seconds.values()],
        range(len(WORDS)),
        color=SERIES[run.number % len(SERIES)],
        marker=MARKERS[run.number % len(MARKERS)],
        linestyle="",
        markersize=5,
        label=legible(run.name),
    )
