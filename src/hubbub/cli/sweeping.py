"""``hubbub sweep``: runs over a grid of settings, begun or resumed, and one table of all of them."""

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hubbub._util.checks import integer
from hubbub.accounting import rounded_up
from hubbub.cli.output import console, print_columns, print_json, say
from hubbub.errors import ConfigError, HubbubError
from hubbub.experiment import config as configs
from hubbub.experiment.sweep import grid as grids
from hubbub.experiment.sweep.grid import CELLS, RECORD, Cell, SweepRecord, value_words, worded
from hubbub.experiment.sweep.page import epsilon_words, spread_words, write
from hubbub.experiment.sweep.results import PointSummary, SweepSummary, sweep_summary
from hubbub.experiment.sweep.work import Task, current_scores, finish_all, read_scores
from hubbub.training.run_folder.record import read_run

__all__ = ["Asked", "sweep"]

_MOST_JOBS = 1024
# Rows of the table on a terminal.
_MOST_ROWS = 60


@dataclass(frozen=True)
class Asked:
    """The flags of the command."""

    grid: Sequence[str]
    seeds: str | None
    assignments: Sequence[str]
    output: Path | None
    jobs: int
    allow_import: bool
    as_json: bool


def sweep(source: Path, asked: Asked) -> None:
    """Begin a sweep of a config file, or resume the sweep in a folder; exits with 1 if a cell failed."""
    integer("--jobs", asked.jobs, at_least=1, at_most=_MOST_JOBS)
    screen = console(stderr=asked.as_json)
    if source.is_dir():
        folder, record = source, _resumed(source, asked)
        cells = grids.cells_of(record.base, record.grid)
    else:
        folder, record = asked.output or Path("runs", f"{source.stem}-sweep"), _described(source, asked)
        cells = grids.cells_of(record.base, record.grid)
        if not (folder / RECORD).exists():
            grids.require_runnable(cells, allow_import=asked.allow_import)
        grids.begin(folder, record)
    with grids.locked(folder):
        found = _finished(screen, folder, record, cells, asked.jobs)
    if asked.as_json:
        print_json(found.as_json())
    else:
        _print(screen, folder, found)
    if failed := sum(cell.state == "failed" for cell in found.cells):
        say(screen, f"{failed} of {len(cells)} runs failed; correct the errors, then: {_again(folder, asked.jobs)}")
        raise typer.Exit(1)


def _described(source: Path, asked: Asked) -> SweepRecord:
    """The sweep that the flags describe."""
    settings, fixed = configs.load(source), configs.overrides(asked.assignments)
    grid = grids.grid_of(asked.grid, asked.seeds)
    for axis in grid.axes:
        section, _, key = axis.key.partition(".")
        if key in fixed.get(section, {}):
            raise ConfigError(f"--set {axis.key}: is also on the grid; name it once")
    # Checked alone: neither layer may name both noise and budget, though the flags may replace one by the other.
    for layer in (settings, fixed):
        configs.resolve(layer)
    here = Path.cwd()
    base = grids.absolute(configs.merge(settings, fixed), here)
    return SweepRecord(source.name, base, grid.absolute(here), asked.allow_import)


def _resumed(folder: Path, asked: Asked) -> SweepRecord:
    """The sweep in a folder."""
    if not (folder / RECORD).is_file():
        raise ConfigError(
            f"{folder}: is no sweep ({RECORD} not there); name a config file and --grid, or the folder of a sweep"
        )
    given = {"--grid": asked.grid, "--seeds": asked.seeds, "--set": asked.assignments, "--output": asked.output}
    for flag, value in given.items():
        if value:
            raise ConfigError(f"{flag}: the sweep in {folder} is described by its own {RECORD}; leave it out")
    record = grids.read_record(folder)
    if record.allow_import and not asked.allow_import:
        raise ConfigError(f"{folder}: its settings name code of your own; pass --allow-import to run it")
    return record


def _finished(screen: Console, folder: Path, record: SweepRecord, cells: Sequence[Cell], jobs: int) -> SweepSummary:
    """Train what is left and write the results, also after Ctrl-C."""
    errors: dict[str, str] = {}
    tasks: dict[Path, Cell] = {}
    for cell in cells:
        place = folder / CELLS / cell.name
        try:
            if not (place / "ledger.jsonl").exists() or current_scores(place, read_run(place)) is None:
                tasks[place] = cell
        except (HubbubError, OSError) as error:
            errors[cell.name] = str(error)
    done = len(cells) - len(tasks) - len(errors)
    words = (f", {done} of them finished" if done else "") + (f", {len(errors)} of them cannot be read" if errors else "")
    say(
        screen, f"Sweep of {len(cells)} runs{words}: {len(tasks)} to do, {min(jobs, max(len(tasks), 1))} at a time, in {folder}"
    )
    if len(cells) > 1:
        say(screen, "Choosing among runs over the same people costs privacy beyond each run's own; the results state how much.")
    # A shell that starts a command in the background makes it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _progress(screen, len(cells), len(cells) - len(tasks)) as (running, show):

            def ended(task: Task, error: str | None) -> None:
                cell = tasks[task.folder]
                if error:
                    errors[cell.name] = error
                scores = None if error else read_scores(task.folder)
                measured = f"accuracy {scores.accuracy:.2%}" if scores else f"failed: {error}"
                show(f"{_short(cell)}: {measured}")

            work = [Task(place, cell.config, record.allow_import) for place, cell in tasks.items()]
            finish_all(work, jobs, running, ended)
    except KeyboardInterrupt:
        found = sweep_summary(folder, record, cells, errors)
        write(folder, found)
        done = sum(cell.state == "finished" for cell in found.cells)
        say(screen)
        say(screen, f"Stopped: {done} of {len(cells)} runs are finished. Resume with: {_again(folder, jobs)}")
        raise
    found = sweep_summary(folder, record, cells, errors)
    write(folder, found)
    return found


def _again(folder: Path, jobs: int) -> str:
    return f"hubbub sweep {folder}" + (f" --jobs {jobs}" if jobs > 1 else "")


def _short(cell: Cell) -> str:
    return ", ".join(f"{key.partition('.')[2]} {value_words(value)}" for key, value in cell.settings.items())


@contextmanager
def _progress(
    screen: Console, runs: int, done: int
) -> Iterator[tuple[Callable[[Sequence[Task]], None], Callable[[str], None]]]:
    """Shows the runs at work as a bar on a terminal, and each that ended as a line."""
    columns = (
        TextColumn("runs"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bar:
        whole = bar.add_task("", total=runs, completed=done)
        ended = done

        def running(tasks: Sequence[Task]) -> None:
            rounds = (f"{task.rounds}/{task.config.training.rounds}" for task in tasks)
            bar.update(whole, description=f"rounds {', '.join(rounds)}" if tasks else "")

        def show(words: str) -> None:
            nonlocal ended
            ended += 1
            say(screen, f"run {ended}/{runs}  {words}")
            bar.advance(whole)

        yield running, show


def _print(screen: Console, folder: Path, found: SweepSummary) -> None:
    """Print the table and the privacy cost of choosing among its rows."""
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
    table = Table(*(key.partition(".")[2] for key, _ in found.axes), box=None, pad_edge=False)
    for name in (f"accuracy{' (held-out, private)' if found.held_out else ''}", "loss", "epsilon of one run"):
        table.add_column(name, justify="right")
    table.add_column("")
    points = found.points
    if len(points) > _MOST_ROWS:
        points = tuple(sorted(points, key=lambda point: -point.accuracy.mean if point.accuracy else 1.0)[:_MOST_ROWS])
    for point in points:
        numbers = spread_words(point.accuracy, ".2%"), spread_words(point.loss, ".4f"), epsilon_words(point.epsilon)
        table.add_row(*map(value_words, point.values), *numbers, _mark(point), style="bold" if point.best else None)
    print_columns(table)
    if len(points) < len(found.points):
        say(screen, f"The {len(points)} best of {len(found.points)}; all are in results.csv.")
    if found.seeds > 1:
        say(screen, f"Means over {found.seeds} seeds ± their standard deviation.")


def _mark(point: PointSummary) -> str:
    if point.state != "finished":
        return point.state
    return "best" if point.best else "frontier" if point.frontier else ""


def _choice_lines(found: SweepSummary) -> Iterator[str]:
    choice, best = found.choice, found.best
    yield f"All runs together, which covers whatever is published of them: {choice.sentence}"
    if choice.epsilon is not None and math.isfinite(choice.epsilon) and best is not None and best.epsilon is not None:
        yield (
            f"The best row's own epsilon, {rounded_up(best.epsilon)}, is for a run whose settings were fixed in advance; it "
            "does not cover that this run was chosen."
        )
    if choice.trials:
        costs = "; ".join(f"{rounded_up(epsilon)} for a {words}" for words, epsilon in choice.trials)
        yield (
            "If the number of runs had been random, each a cell drawn at random, and only the best were published, epsilon "
            f"would be {costs} (Papernot and Steinke 2022). This does not apply to a grid."
        )
    for assumption in choice.assumptions:
        yield f"Assumed: {assumption}."
    yield from choice.warnings
