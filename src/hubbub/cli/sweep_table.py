"""A sweep's results in a terminal: a table, and what choosing among its rows costs."""

import math
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hubbub.accounting import rounded_up
from hubbub.cli.output import print_columns, say
from hubbub.report.sweep_told import PointTold, Spread, SweepTold, value_words
from hubbub.sweep.cells import worded
from hubbub.sweep.results import CELLS

__all__ = ["print_results"]

# A terminal's table of more points is no table any more.
_MOST_ROWS = 60


def print_results(screen: Console, folder: Path, found: SweepTold) -> None:
    """The table, and what choosing among its rows costs."""
    say(screen)
    _print_table(screen, found)
    say(screen)
    for line in _choice_lines(found):
        say(screen, line)
    for cell in found.cells:
        if cell.state == "failed":
            say(screen, f"Failed: {worded(cell.settings)}: {cell.error}")
    say(screen, f"Page: {folder / 'sweep.html'} (table: results.csv, results.json; a report of each run in {CELLS}/)")


def _print_table(screen: Console, found: SweepTold) -> None:
    table = Table(box=None, pad_edge=False)
    for key, _ in found.axes:
        table.add_column(key.partition(".")[2])
    of = " (held-out, private)" if found.held_out else ""
    for name in (f"accuracy{of}", "loss", "epsilon of one run", ""):
        table.add_column(name, justify="left" if not name else "right")
    points = found.points
    if len(points) > _MOST_ROWS:
        points = tuple(sorted((p for p in points if p.accuracy), key=lambda p: -p.accuracy.mean))[:_MOST_ROWS]  # type: ignore[union-attr]
    for point in points:
        values = [value_words(value) for value in point.values]
        table.add_row(*values, *_measured(point), _mark(point), style="bold" if point.best else None)
    print_columns(table)
    if len(points) < len(found.points):
        say(screen, f"The {len(points)} best of {len(found.points)}; all are in results.csv.")
    if found.seeds > 1:
        say(screen, f"Means over {found.seeds} seeds ± their standard deviation.")


def _measured(point: PointTold) -> tuple[str, str, str]:
    def told(spread: Spread | None, pattern: str) -> str:
        if spread is None:
            return "–"
        deviation = "" if spread.deviation is None else f" ± {format(spread.deviation, pattern)}"
        return f"{format(spread.mean, pattern)}{deviation}"

    epsilon = "–" if point.epsilon is None else rounded_up(point.epsilon)
    return told(point.accuracy, ".2%"), told(point.loss, ".4f"), epsilon


def _mark(point: PointTold) -> str:
    if point.best:
        return "best"
    if point.finished:
        return "frontier" if point.frontier else ""
    return point.state


def _choice_lines(found: SweepTold) -> Iterator[str]:
    told, best = found.choice, found.best
    yield f"Whatever is published of these runs, chosen by looking at all: {told.sentence}"
    if told.epsilon is not None and math.isfinite(told.epsilon) and best is not None and best.epsilon is not None:
        yield (
            f"The best row's own epsilon, {rounded_up(best.epsilon)}, is of a run that was fixed before anybody looked; it "
            "does not cover that it was chosen."
        )
    if told.trials:
        costs = "; ".join(f"{rounded_up(epsilon)} for a {words}" for words, epsilon in told.trials)
        yield (
            f"Had the number of runs been random, each a cell drawn at random, and only the best been published, epsilon would "
            f"be {costs} (Papernot and Steinke 2022). It was not: this does not apply to a grid."
        )
    for assumption in told.assumptions:
        yield f"Assumed: {assumption}."
    yield from told.warnings
