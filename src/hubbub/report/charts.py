"""The charts of a run's page, each an SVG; several runs are laid over one another."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hubbub._util.checks import Array
from hubbub.accounting import rounded_up
from hubbub.mechanism.strategies import Identity, Strategy
from hubbub.mechanism.utility import noising_matrix
from hubbub.report.drawing import DASHES, INK, MARKERS, SERIES, figure, legible, shown, styled
from hubbub.report.summary import RunSummary

__all__ = [
    "ENCRYPTION",
    "MOST_DRAWN",
    "PHASES",
    "encryption",
    "encryption_seconds",
    "epsilon",
    "measured",
    "measured_names",
    "noise_matrix",
    "over_rounds",
    "participations",
    "phase_seconds",
    "phases",
    "strategy_matrix",
    "strength",
]

# A larger C is not made for a picture.
MOST_DRAWN = 2000
# So many points a curve have marks of their own.
_FEW = 40
# What is larger is no number of a run, and no axis has room for it.
_LARGEST = 1e30
Row = Mapping[str, Any]


@styled
def epsilon(runs: Sequence[RunSummary]) -> str:
    """Epsilon after each round, and what was promised for all of them."""
    private = [run for run in runs if run.guarantee.private]
    curves = [_spent(run) for run in private]
    if not any(curves):
        return ""
    made, axes = figure()
    top = 0.0
    for run, points in zip(private, curves, strict=True):
        _curve(axes, run.number, points, run.name if len(private) > 1 else "spent")
        top = max(top, run.guarantee.epsilon, *(value for _, value in points))
    if len(private) == 1:
        promised = private[0].cost.promised.epsilon
        axes.axhline(promised, color=INK, linestyle=(0, (4, 3)), linewidth=1, label=f"promised: {rounded_up(promised)}")
    axes.set_ylim(0, max(top * 1.12, 1e-9))
    axes.set_xlim(left=0)
    deltas = sorted({run.guarantee.delta for run in private})
    of = f" at delta {deltas[0]:g}" if len(deltas) == 1 else ""
    _dressed(axes, f"epsilon{of}")
    axes.legend(loc="lower right")
    return shown(made, f"Epsilon{of} over rounds: {_ends(private, curves, rounded_up)}")


def _spent(run: RunSummary) -> list[tuple[int, float]]:
    """Rounds, and what they have cost by the ledger, from none on; of many rounds some."""
    begun = len(run.recorded.history.rounds)
    rounds = sorted({0} | {1 + round(i * (begun - 1) / (_FEW - 1)) for i in range(_FEW)}) if begun else []
    points = [(count, run.epsilon_after(count)) for count in rounds]
    return [point for point in points if math.isfinite(point[1])]


@styled
def strength(runs: Sequence[RunSummary]) -> str:
    """What was released in each round: its norm, and that of the noise in it."""
    known = [(run, run.strength) for run in runs if run.strength is not None]
    if not known:
        return ""
    made, axes = figure()
    if len(known) == 1:
        (_, found), drawn = known[0], iter(zip(SERIES, DASHES, strict=True))
        for norms, label in (
            (found.released, "released: sum and noise"),
            (found.noise, "the noise, as expected"),
            (found.signal, "the sum, as estimated"),
        ):
            color, style = next(drawn)
            axes.plot(found.rounds, norms, color=color, linestyle=style, label=label)
        axes.set_yscale("log")
    for run, found in known if len(known) > 1 else ():
        look = {"color": SERIES[run.number % len(SERIES)], "linestyle": DASHES[run.number % len(DASHES)]}
        axes.plot(found.rounds, found.signal / found.noise, label=legible(run.name), **look)
    _dressed(axes, "L2 norm of a round's sum" if len(known) == 1 else "sum over noise, as estimated")
    axes.legend(loc="best")
    return shown(made, "How strong the noise of each round is against the sum")


@styled
def participations(run: RunSummary) -> str:
    """How many clients took part how often, and the most that was promised."""
    found = run.participation
    if found is None:
        return ""
    made, axes = figure()
    counts = np.bincount(np.asarray(found.counts))[1:]
    axes.bar(np.arange(1, len(counts) + 1), counts, width=0.8, color=SERIES[0])
    if found.most is not None:
        axes.axvline(found.most + 0.5, color=INK, linestyle=(0, (4, 3)), linewidth=1, label=f"promised: at most {found.most}")
        axes.legend(loc="best")
    _dressed(axes, f"{run.guarantee.privacy_unit}s", "rounds that one took part in")
    return shown(made, "How often clients took part")


# What encryption takes in a round: the key of a row of metrics, and what it is.
ENCRYPTION = {
    "encrypt_seconds": "encrypt, one client",
    "aggregate_seconds": "add, server, all clients",
    "decrypt_seconds": "decrypt, holders",
}


def encryption_seconds(rows: Sequence[Row], key: str) -> list[tuple[int, float]]:
    """Rounds, from 1, and the seconds of a part of encryption in each: of one client where all clients do it.

    Example:
        >>> encryption_seconds([{"round_index": 0, "encrypt_seconds": 3.0, "clients": 2}], "encrypt_seconds")
        [(1, 1.5)]
    """
    clients = {row["round_index"] + 1: row.get("clients") or 1 for row in rows if key == "encrypt_seconds"}
    return [(number, seconds / clients.get(number, 1)) for number, seconds in _points(rows, key)]


@styled
def encryption(run: RunSummary) -> str:
    """Seconds of each round that went into encryption; empty where nothing was decrypted."""
    if not _points(run.rows, "decrypt_seconds"):
        return ""
    made, axes = figure()
    for i, (key, label) in enumerate(ENCRYPTION.items()):
        if points := encryption_seconds(run.rows, key):
            _curve(axes, i, points, label)
    axes.set_yscale("log")
    _dressed(axes, "seconds a round")
    # Curves of any shape may be anywhere below.
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return shown(made, "What encryption takes in each round")


def strategy_matrix(run: RunSummary) -> str:
    """C, of correlated noise."""
    strategy = _drawn(run)
    if strategy is None:
        return ""
    return _matrix(np.asarray(strategy.matrix(), dtype=np.float64), "C, the strategy")


def noise_matrix(run: RunSummary) -> str:
    """C⁻¹, of correlated noise."""
    strategy = _drawn(run)
    return "" if strategy is None else _matrix(noising_matrix(strategy), "C⁻¹, the noise")


def _drawn(run: RunSummary) -> Strategy | None:
    """The strategy of a run, where its noise is correlated and its matrix of a size to be drawn."""
    mechanism = run.mechanism
    if mechanism is None or isinstance(mechanism.strategy, Identity) or mechanism.rounds > MOST_DRAWN:
        return None
    return mechanism.strategy


@styled
def _matrix(matrix: Array, name: str) -> str:
    from hubbub.report.pictures import signed_image

    made, axes = figure(3.2, width=3.9)
    signed_image(made, axes, matrix, most=300)
    axes.grid(visible=False)
    axes.set_title(f"{name}, {matrix.shape[0]:,} × {matrix.shape[1]:,}", loc="left", fontsize=9)
    return shown(made, f"The matrix {name}")


@styled
def over_rounds(runs: Sequence[RunSummary], key: str, words: str, *, percent: bool = False, zero: bool = False) -> str:
    """One number of each round's row; empty where no row has it.

    Args:
        runs: What is laid over one another.
        key: Of the number.
        words: What it is, for the axis.
        percent: Whether it is a share.
        zero: Whether the axis begins at 0.
    """
    known = [(run, points) for run in runs if (points := _points(run.rows, key))]
    if not known:
        return ""
    made, axes = figure()
    for run, points in known:
        _curve(axes, run.number, points, run.name)
    values = [value for _, points in known for _, value in points]
    if percent:
        from matplotlib.ticker import PercentFormatter

        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if len(set(values)) == 1:
            axes.set_ylim(0, 1.05)
    if min(values) > 0 and max(values) > 30 * min(values) and not percent:
        axes.set_yscale("log")
    elif zero:
        axes.set_ylim(bottom=0)
    if len(known) > 1:
        axes.legend(loc="best")
    elif key == "accuracy":
        points = known[0][1]
        falls = len(points) > 1 and points[-1][1] < points[-2][1]
        place = {"xytext": (0, -12 if falls else 5), "textcoords": "offset points", "ha": "right"}
        axes.annotate(f"{points[-1][1]:.1%}", points[-1], color=SERIES[0], **place)
        axes.margins(y=0.14)
    _dressed(axes, words)
    ends = _ends([run for run, _ in known], [points for _, points in known])
    return shown(made, f"{words[0].upper()}{words[1:]} over rounds: {ends}")


def measured_names(runs: Sequence[RunSummary]) -> list[str]:
    """What the clients of any of the runs measured under noise."""
    return sorted({name for run in runs for row in run.rows for name in row.get("evaluation", {})})


@styled
def measured(runs: Sequence[RunSummary], name: str) -> str:
    """What clients measured under noise, with bars of two standard errors of that noise; empty where none did."""
    made, axes = figure()
    for run in runs:
        found = {row["round_index"] + 1: row["evaluation"][name] for row in run.rows if name in row.get("evaluation", {})}
        values, errors = ([one[key] for one in found.values()] for key in ("value", "standard_error"))
        look = {"color": SERIES[run.number % len(SERIES)], "linestyle": DASHES[run.number % len(DASHES)], "capsize": 2}
        axes.errorbar(list(found), values, yerr=2 * np.array(errors, dtype=float), label=legible(run.name), **look)
    if len(runs) > 1:
        axes.legend(loc="best")
    _dressed(axes, name)
    return shown(made, f"What clients measured under noise: {name}")


def _points(rows: Sequence[Row], key: str) -> list[tuple[int, float]]:
    return [(row["round_index"] + 1, row[key]) for row in rows if row.get(key) is not None and abs(row[key]) <= _LARGEST]


def _curve(axes: Any, number: int, points: Sequence[tuple[int, float]], label: str) -> None:
    axes.plot(
        *zip(*points, strict=True),
        color=SERIES[number % len(SERIES)],
        linestyle=DASHES[number % len(DASHES)],
        marker=MARKERS[number % len(MARKERS)] if len(points) <= _FEW else "",
        label=legible(label),
    )


def _dressed(axes: Any, y: str, x: str = "round") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _ends(
    runs: Sequence[RunSummary], curves: Sequence[Sequence[tuple[int, float]]], said: Callable[[float], str] = "{:.4g}".format
) -> str:
    """Where curves begin and end, in words, for those who do not see them."""
    return "; ".join(
        f"{run.name} from {said(points[0][1])} to {said(points[-1][1])}"
        for run, points in zip(runs, curves, strict=True)
        if points
    )


# In the order of a round; what comes last is between rounds.
PHASES = {
    "sample": "sample the cohort",
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


def phase_seconds(run: RunSummary) -> Mapping[str, float]:
    """Seconds of each phase in all rounds whose metrics have it; empty without such. Phases of no name here are left out."""
    known = [row["phases"] for row in run.rows if row.get("phases")]
    sums = {name: sum(phases.get(name, 0.0) for phases in known) for name in PHASES}
    return sums if any(sums.values()) and max(sums.values()) < _LARGEST else {}


@styled
def phases(runs: Sequence[RunSummary]) -> str:
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
    axes.set_yticks(range(len(PHASES)), list(PHASES.values()))
    axes.set_ylim(len(PHASES) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    return shown(made, f"Where the time went{what}")


def _bars(axes: Any, seconds: Mapping[str, float]) -> str:
    """One bar a phase; answers with what is seen, in words."""
    whole = sum(seconds.values())
    axes.barh(range(len(PHASES)), list(seconds.values()), height=0.7, color=SERIES[0])
    for height, value in enumerate(seconds.values()):
        axes.annotate(
            f"{value:.3g} s, {value / whole:.1%}", (value, height), xytext=(4, 0), textcoords="offset points", va="center",
            color=INK,
        )  # fmt: skip
    # The longest bar needs room for its words, too.
    axes.set_xlim(0, 1.45 * max(seconds.values()))
    axes.set_xlabel("seconds, all rounds together")
    return ": " + ", ".join(f"{PHASES[name]} {value / whole:.1%}" for name, value in seconds.items())


def _dots(axes: Any, run: RunSummary, seconds: Mapping[str, float]) -> None:
    rounds = sum(1 for row in run.rows if row.get("phases"))
    axes.plot(
        [max(value / rounds, _SHORTEST) for value in seconds.values()],
        range(len(PHASES)),
        color=SERIES[run.number % len(SERIES)],
        marker=MARKERS[run.number % len(MARKERS)],
        linestyle="",
        markersize=5,
        label=legible(run.name),
    )
