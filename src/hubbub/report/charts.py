"""The charts of a run's page and of its picture; several runs are drawn over one another."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hubbub.accounting import rounded_up
from hubbub.accounting.statement import no_less
from hubbub.report.audit import draw_bounds, draw_scores
from hubbub.report.drawing import INK, MARKERS, SERIES, canvas, labelled, legible, look, shown, styled
from hubbub.report.summary import RunSummary

# Curves of at most this many points have markers.
_FEW = 40
# Larger values in the metrics are damage, and no axis has room for them.
_LARGEST = 1e30
_THRESHOLD: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 3)), "linewidth": 1}
_Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Chart:
    """A titled ``<svg>``, how to read it, and whether it was computed from clients' data or shows who took part."""

    title: str
    picture: str
    about: str
    private: bool = False


def charts(runs: Sequence[RunSummary], *, public: bool = False) -> Iterator[Chart]:
    """All charts of the runs that have data for them; with ``public`` none that is private."""
    measured = [run for run in runs if run.public] if public else runs
    held_out = [run.name for run in measured if not run.public]
    about = "On public test data."
    if held_out:
        on = "n held-out training data, without noise: to choose settings, not for release."
        about = f"O{on}" if len(held_out) == len(measured) else f"On public test data; {', '.join(held_out)}: o{on}"
    yield from _over_rounds(measured, "accuracy", "Accuracy", about, percent=True, private=bool(held_out))
    yield from _over_rounds(measured, "loss", "Loss", about, private=bool(held_out))
    for name in sorted({name for run in runs for row in run.rows for name in row.get("evaluation", {})}):
        about = "Measured by clients on their own data, under noise that epsilon counts. Bars are two standard errors of it."
        yield _chart(f"Clients' {name}", partial(_draw_measured, runs=runs, name=name), about)
    if any(run.epsilons for run in runs):
        yield _chart("Epsilon", partial(draw_epsilon, runs=runs), "Spent after each round, from the ledger.")
    if any(run.strength for run in runs):
        about = (
            "From public numbers: the L2 norm of each released sum, of the noise in it as expected, and of the sum without "
            "noise as estimated from these two. Where the sum is far below the noise, the model learns only from many rounds "
            "together."
        )
        yield _chart("Noise against signal", partial(_draw_strength, runs=runs), about)
    yield from _over_rounds(runs, "clip_norm", "Clip norm", "It follows the noised count of updates that were not clipped.")
    for run in runs:
        if run.audit is not None:
            about = "Lower bounds from canaries. A narrow bar beyond the line of the stated epsilon disproves the guarantee."
            of = f" of {run.name}" if len(runs) > 1 else ""
            yield _chart(f"Audit{of}", partial(draw_bounds, found=run.audit), about)
    if not public:
        yield from _private(runs)


def _private(runs: Sequence[RunSummary]) -> Iterator[Chart]:
    about = "Share of each round's updates that were clipped."
    yield from _over_rounds(runs, "clipped_fraction", "Updates clipped", about, percent=True, private=True)
    for run in runs:
        of = f" of {run.name}" if len(runs) > 1 else ""
        if run.mechanism is not None and run.counts.size:
            about = f"Promised: {run.guarantee.cohorts}."
            yield _chart(f"Participation{of}", partial(_draw_counts, run=run), about, private=True)
        if run.audit is not None:
            about = "Scores of present and of absent canaries, and their distributions according to the guarantee."
            yield _chart(f"What an adversary sees{of}", partial(draw_scores, found=run.audit), about, private=True)


@styled()
def _chart(title: str, draw: Callable[[Any], str], about: str, *, private: bool = False) -> Chart:
    """A chart from a function that draws on axes and returns in words what it drew."""
    made = canvas()
    return Chart(title, shown(made, draw(made.subplots())), about, private)


def _over_rounds(
    runs: Sequence[RunSummary], key: str, title: str, about: str, *, percent: bool = False, private: bool = False
) -> Iterator[Chart]:
    """A chart of one number of each round's metrics, if any run has it."""
    if any(_points(run, key) for run in runs):
        draw = partial(draw_over_rounds, runs=runs, key=key, y=title.lower(), percent=percent)
        yield _chart(title, draw, about, private=private)


def _points(run: RunSummary, key: str) -> _Points:
    rows = (row for row in run.rows if row.get(key) is not None)
    return [(row["round_index"] + 1, row[key]) for row in rows if abs(row[key]) <= _LARGEST]


def draw_over_rounds(axes: Any, runs: Sequence[RunSummary], key: str, y: str, *, percent: bool = False) -> str:
    """Draw one number of each round's metrics; returns where each curve starts and ends, in words."""
    curves = [(run, points) for run in runs if (points := _points(run, key))]
    values = [value for _, points in curves for _, value in points]
    if percent:
        from matplotlib.ticker import PercentFormatter

        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if len(set(values)) == 1:
            axes.set_ylim(0, 1.05)
    elif values and min(values) > 0 and max(values) > 30 * min(values):
        _logarithmic(axes)
    return _draw_curves(axes, curves, y, "{:.4g}".format)


def _logarithmic(axes: Any) -> None:
    from matplotlib.ticker import LogFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter())


def draw_epsilon(axes: Any, runs: Sequence[RunSummary]) -> str:
    """Draw the epsilon spent over rounds; returns where each curve starts and ends, in words."""
    known = [run for run in runs if run.epsilons]
    deltas = sorted({run.guarantee.delta for run in known})
    of = f" at delta {no_less(deltas[0])}" if len(deltas) == 1 else ""
    words = _draw_curves(axes, [(run, run.epsilons) for run in known], f"epsilon{of}", rounded_up)
    tops = [run.guarantee.epsilon for run in known] + [value for run in known for _, value in run.epsilons]
    if len(known) == 1:
        promise = known[0].recorded.promise
        promised = promise.after(promise.rounds, promise.delta).epsilon
        axes.axhline(promised, label=f"promised: {rounded_up(promised)}", **_THRESHOLD)
        axes.legend(loc="lower right")
        tops.append(promised)
    axes.set_ylim(0, max(max(tops) * 1.12, 1e-9))
    axes.set_xlim(left=0)
    return words


def _draw_curves(axes: Any, curves: Sequence[tuple[RunSummary, _Points]], y: str, said: Callable[[float], str]) -> str:
    for run, points in curves:
        marker = MARKERS[run.number % len(MARKERS)] if len(points) <= _FEW else ""
        axes.plot(*zip(*points, strict=True), marker=marker, label=legible(run.name), **look(run.number))
    if len(curves) > 1:
        axes.legend(loc="best")
    labelled(axes, y)
    ends = "; ".join(f"{run.name} from {said(points[0][1])} to {said(points[-1][1])}" for run, points in curves)
    return f"{y[0].upper()}{y[1:]} over rounds: {ends}"


def _draw_strength(axes: Any, runs: Sequence[RunSummary]) -> str:
    known = [(run, run.strength) for run in runs if run.strength is not None]
    if len(known) == 1:
        found = known[0][1]
        norms = {
            "released: sum and noise": found.released,
            "the noise, expected": found.noise,
            "the sum, estimated": found.signal,
        }
        for number, (label, norm) in enumerate(norms.items()):
            axes.plot(found.rounds, norm, label=label, **look(number))
        _logarithmic(axes)
    else:
        for run, found in known:
            axes.plot(found.rounds, found.signal / found.noise, label=legible(run.name), **look(run.number))
    labelled(axes, "L2 norm of a round's sum" if len(known) == 1 else "sum over noise, estimated")
    axes.legend(loc="best")
    return "Noise against signal in each round's sum"


def _draw_counts(axes: Any, run: RunSummary) -> str:
    counts = np.bincount(run.counts)[1:]
    axes.bar(np.arange(1, len(counts) + 1), counts, width=0.8, color=SERIES[0])
    if run.most_participations is not None:
        most = run.most_participations
        axes.axvline(most + 0.5, label=f"promised: at most {most}", **_THRESHOLD)
        axes.legend(loc="best")
    labelled(axes, f"{run.guarantee.privacy_unit}s", "rounds that one took part in")
    return "How often clients took part"


def _draw_measured(axes: Any, runs: Sequence[RunSummary], name: str) -> str:
    for run in runs:
        found = {row["round_index"] + 1: row["evaluation"][name] for row in run.rows if name in row.get("evaluation", {})}
        values, errors = ([one[key] for one in found.values()] for key in ("value", "standard_error"))
        bars = 2 * np.array(errors, dtype=float)
        axes.errorbar(list(found), values, yerr=bars, label=legible(run.name), capsize=2, **look(run.number))
    if len(runs) > 1:
        axes.legend(loc="best")
    labelled(axes, name)
    return f"Measured by clients under noise: {name}"
