"""``hubbub sweep``: runs over a grid of settings, begun or resumed, and one table of all of them."""

import csv
import io
import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from hubbub._util.checks import integer
from hubbub._util.files import write_atomic
from hubbub.accounting import rounded_up
from hubbub.cli.output import console, print_columns, print_json, say
from hubbub.errors import ConfigError, HubbubError
from hubbub.experiment import config as configs
from hubbub.experiment.sweep.grid import Cell, absolute, cells_of, grid_of, require_runnable, worded
from hubbub.experiment.sweep.record import CELLS, RECORD, SweepRecord, begin, is_finished, locked, read_record, sweep_summary
from hubbub.experiment.sweep.work import Ended, Event, Task, finish_all, read_scores
from hubbub.report.sweep_page import write
from hubbub.report.sweep_summary import PointSummary, Spread, SweepSummary, value_words

__all__ = ["Asked", "sweep"]

_MOST_JOBS = 1024


@dataclass(frozen=True)
class Asked:
    """What the command line says of a sweep: flags of the grid and of the settings, the folder, how many processes."""

    grid: Sequence[str]
    seeds: str | None
    assignments: Sequence[str]
    output: Path | None
    jobs: int
    allow_import: bool
    as_json: bool


def sweep(source: Path, asked: Asked) -> None:
    """Begin a sweep of a config file, or resume that of a folder; exits 1 if a cell has failed."""
    integer("--jobs", asked.jobs, at_least=1, at_most=_MOST_JOBS)
    screen = console(stderr=asked.as_json)
    if source.is_dir():
        folder, record = source, _continued(source, asked)
        cells = cells_of(record.base, record.grid)
    else:
        record = _described(source, asked)
        cells = cells_of(record.base, record.grid)
        folder = asked.output or Path("runs", f"{source.stem}-sweep")
        if not (folder / RECORD).exists():
            require_runnable(cells, allow_import=asked.allow_import)
        begin(folder, record)
    with locked(folder):
        found = _finished(screen, folder, record, cells, asked.jobs)
    if asked.as_json:
        print_json(found.as_json())
    else:
        print_results(screen, folder, found)
    if failed := [cell for cell in found.cells if cell.state == "failed"]:
        say(screen, f"{len(failed)} of {len(cells)} runs failed; mend what is wrong, then: {_again(folder, asked.jobs)}")
        raise typer.Exit(1)


def _finished(screen: Console, folder: Path, record: SweepRecord, cells: Sequence[Cell], jobs: int) -> SweepSummary:
    """Finish the runs that are not, and write what came of all; after Ctrl-C, what came of them so far."""
    errors, tasks = _left(folder, cells, allow_import=record.allow_import)
    _introduce(screen, folder, (len(cells), len(tasks), len(errors)), jobs)
    by_folder = {folder / CELLS / cell.name: cell for cell in cells}
    # A shell that starts a command in the background leaves it deaf to the signal of Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _progress(screen, cells, len(cells) - len(tasks)) as show:

            def shown(task: Task, event: Event) -> None:
                cell = by_folder[task.folder]
                if isinstance(event, Ended) and event.error:
                    errors[cell.name] = event.error
                show(cell, task, event)

            finish_all(tasks, jobs, shown)
    except KeyboardInterrupt:
        found = _written(folder, record, cells, errors)
        done = sum(cell.state == "finished" for cell in found.cells)
        say(screen)
        say(screen, f"Stopped: {done} of {len(cells)} runs are finished. Resume with: {_again(folder, jobs)}")
        raise
    return _written(folder, record, cells, errors)


def _again(folder: Path, jobs: int) -> str:
    return f"hubbub sweep {folder}" + (f" --jobs {jobs}" if jobs > 1 else "")


def _described(source: Path, asked: Asked) -> SweepRecord:
    """The sweep that the command line names."""
    settings = configs.load(source)
    grid = grid_of(asked.grid, asked.seeds)
    fixed = configs.overrides(asked.assignments)
    for axis in grid.axes:
        section, _, key = axis.key.partition(".")
        if key in fixed.get(section, {}):
            raise ConfigError(f"--set {axis.key}: is also on the grid; name it once")
    base: configs.Layer = {}
    for layer in (settings, fixed):
        # Each is checked by itself first: one layer may not name both noise and budget, though a later one may replace either.
        configs.resolve(layer)
        base = configs.merge(base, layer)
    here = Path.cwd()
    return SweepRecord(source.name, absolute(base, here), grid.absolute(here), asked.allow_import)


def _continued(folder: Path, asked: Asked) -> SweepRecord:
    """The sweep that a folder holds."""
    given = {"--grid": asked.grid, "--seeds": asked.seeds, "--set": asked.assignments, "--output": asked.output}
    if not (folder / RECORD).is_file():
        raise ConfigError(
            f"{folder}: is no sweep ({RECORD} not there); name a config file and --grid, or the folder of a sweep"
        )
    for flag, value in given.items():
        if value:
            raise ConfigError(f"{flag}: the sweep in {folder} is described by its own {RECORD}; leave it out")
    record = read_record(folder)
    if record.allow_import and not asked.allow_import:
        raise ConfigError(f"{folder}: its settings name code of your own; pass --allow-import to run it")
    return record


def _left(folder: Path, cells: Sequence[Cell], *, allow_import: bool) -> tuple[dict[str, str], list[Task]]:
    """The errors of cells that cannot be read, and the tasks of those that are to be finished."""
    errors: dict[str, str] = {}
    tasks = []
    for cell in cells:
        place = folder / CELLS / cell.name
        try:
            if is_finished(place):
                continue
        except (HubbubError, OSError) as error:
            errors[cell.name] = str(error)
            continue
        tasks.append(Task(place, cell.config, allow_import))
    return errors, tasks


def _introduce(screen: Console, folder: Path, numbers: tuple[int, int, int], jobs: int) -> None:
    """What is to be done of so many runs, with so many left and so many that cannot be read."""
    runs, left, lost = numbers
    done = f", {runs - left - lost} of them finished" if left + lost < runs else ""
    broken = f", {lost} of them cannot be read" if lost else ""
    say(screen, f"Sweep of {runs} runs{done}{broken}: {left} to do, {min(jobs, max(left, 1))} at a time, in {folder}")
    if runs > 1:
        say(screen, "Choosing among runs over the same people costs privacy beyond that of each; the table states how much.")


def _written(folder: Path, record: SweepRecord, cells: Sequence[Cell], errors: Mapping[str, str]) -> SweepSummary:
    """The results of the sweep as it stands, also as files in its folder."""
    found = sweep_summary(folder, record, cells, errors)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(found.rows())
    write_atomic(folder / "results.csv", text.getvalue().encode())
    write(folder, found)
    return found


@contextmanager
def _progress(screen: Console, cells: Sequence[Cell], done: int) -> Iterator[Callable[[Cell, Task, Event], None]]:
    """Shows what happens: a bar for the whole and one a running cell on a terminal, and a line a finished cell."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bar:
        whole = bar.add_task("all runs", total=len(cells), completed=done)
        rows: dict[str, TaskID] = {}
        ended = done

        def show(cell: Cell, task: Task, event: Event) -> None:
            nonlocal ended
            if isinstance(event, Ended):
                if cell.name in rows:
                    bar.remove_task(rows.pop(cell.name))
                ended += 1
                say(screen, f"run {ended}/{len(cells)}  {_short(cell)}: {_outcome(task, event)}")
                bar.advance(whole)
                return
            if cell.name not in rows:
                rows[cell.name] = bar.add_task(f"  {_short(cell)}", total=cell.config.training.rounds)
            bar.update(rows[cell.name], completed=event.done)

        yield show


def _short(cell: Cell) -> str:
    return ", ".join(f"{key.partition('.')[2]} {value_words(value)}" for key, value in cell.settings.items())


def _outcome(task: Task, event: Ended) -> str:
    if event.error:
        return f"failed: {event.error}"
    scores = read_scores(task.folder)
    return "finished" if scores is None else f"accuracy {scores.accuracy:.2%}"


# A terminal's table of more points is no table any more.
_MOST_ROWS = 60


def print_results(screen: Console, folder: Path, found: SweepSummary) -> None:
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


def _print_table(screen: Console, found: SweepSummary) -> None:
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


def _measured(point: PointSummary) -> tuple[str, str, str]:
    def mean(spread: Spread | None, pattern: str) -> str:
        if spread is None:
            return "–"
        deviation = "" if spread.deviation is None else f" ± {format(spread.deviation, pattern)}"
        return f"{format(spread.mean, pattern)}{deviation}"

    epsilon = "–" if point.epsilon is None else rounded_up(point.epsilon)
    return mean(point.accuracy, ".2%"), mean(point.loss, ".4f"), epsilon


def _mark(point: PointSummary) -> str:
    if point.best:
        return "best"
    if point.finished:
        return "frontier" if point.frontier else ""
    return point.state


def _choice_lines(found: SweepSummary) -> Iterator[str]:
    choice, best = found.choice, found.best
    yield f"Whatever is published of these runs, chosen by looking at all: {choice.sentence}"
    if choice.epsilon is not None and math.isfinite(choice.epsilon) and best is not None and best.epsilon is not None:
        yield (
            f"The best row's own epsilon, {rounded_up(best.epsilon)}, is of a run that was fixed before anybody looked; it "
            "does not cover that it was chosen."
        )
    if choice.trials:
        costs = "; ".join(f"{rounded_up(epsilon)} for a {words}" for words, epsilon in choice.trials)
        yield (
            f"Had the number of runs been random, each a cell drawn at random, and only the best been published, epsilon would "
            f"be {costs} (Papernot and Steinke 2022). It was not: this does not apply to a grid."
        )
    for assumption in choice.assumptions:
        yield f"Assumed: {assumption}."
    yield from choice.warnings
