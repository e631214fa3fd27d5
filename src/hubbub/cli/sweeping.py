"""``hubbub sweep``: runs over a grid of settings, begun or gone on with, and one table of all of them."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hubbub import config as configs
from hubbub._checks import integer
from hubbub.cli.output import console, print_json, say
from hubbub.cli.sweep_table import print_results
from hubbub.errors import ConfigError, HubbubError
from hubbub.files import write_atomic
from hubbub.report.sweep_told import SweepTold, value_words
from hubbub.report.sweeps import write
from hubbub.sweep.cells import Cell, absolute, absolute_grid, cells_of, require_runnable
from hubbub.sweep.grid import grid_of
from hubbub.sweep.pool import Ended, Event, finish_all
from hubbub.sweep.record import RECORD, SweepRecord, begin, locked, read_record
from hubbub.sweep.results import CELLS, csv_of, is_finished, sweep_told
from hubbub.sweep.work import Task, read_scores

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
    """Begin a sweep of a config file, or go on with that of a folder; exits 1 where a cell has failed."""
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


def _finished(screen: Console, folder: Path, record: SweepRecord, cells: Sequence[Cell], jobs: int) -> SweepTold:
    """Finish the runs that are not, and write what came of all; after Ctrl-C, what came of them so far."""
    errors, tasks = _left(folder, cells, allow_import=record.allow_import)
    _introduce(screen, folder, (len(cells), len(tasks), len(errors)), jobs)
    by_folder = {folder / CELLS / cell.name: cell for cell in cells}
    # A shell that starts a command in the background leaves it deaf to the signal of Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _progress(screen, cells, len(cells) - len(tasks)) as show:

            def told(task: Task, event: Event) -> None:
                cell = by_folder[task.folder]
                if isinstance(event, Ended) and event.error:
                    errors[cell.name] = event.error
                show(cell, task, event)

            finish_all(tasks, jobs, told)
    except KeyboardInterrupt:
        found = _written(folder, record, cells, errors)
        done = sum(cell.state == "finished" for cell in found.cells)
        say(screen)
        say(screen, f"Stopped: {done} of {len(cells)} runs are finished. Go on with: {_again(folder, jobs)}")
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
        base = _over(base, layer)
    here = Path.cwd()
    return SweepRecord(source.name, absolute(base, here), absolute_grid(grid, here), asked.allow_import)


def _over(base: configs.Layer, layer: configs.Layer) -> configs.Layer:
    """The layer over another one, as :func:`hubbub.config.resolve` lays them."""
    merged = {section: dict(keys) for section, keys in base.items()}
    for section, keys in layer.items():
        target = merged.setdefault(section, {})
        if section == "privacy" and keys.keys() & {"noise_multiplier", "epsilon"}:
            target.pop("noise_multiplier", None)
            target.pop("epsilon", None)
        target.update(keys)
    return merged


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
        say(screen, "Choosing among runs over the same people costs privacy beyond that of each; the table says how much.")


def _written(folder: Path, record: SweepRecord, cells: Sequence[Cell], errors: Mapping[str, str]) -> SweepTold:
    """The results of the sweep as it stands, also as files in its folder."""
    found = sweep_told(folder, record, cells, errors)
    write_atomic(folder / "results.csv", csv_of(found).encode())
    write(folder, found)
    return found


@contextmanager
def _progress(screen: Console, cells: Sequence[Cell], done: int) -> Iterator[Any]:
    """Shows what happens: a bar for the whole and one a running cell on a terminal, a line a finished cell elsewhere."""
    ended = done

    def line(cell: Cell, task: Task, event: Ended) -> str:
        nonlocal ended
        ended += 1
        return f"run {ended}/{len(cells)}  {_short(cell)}: {_outcome(task, event)}"

    if not screen.is_terminal:

        def show_line(cell: Cell, task: Task, event: Event) -> None:
            if isinstance(event, Ended):
                say(screen, line(cell, task, event))

        yield show_line
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen) as bar:
        whole = bar.add_task("all runs", total=len(cells), completed=done)
        rows: dict[str, Any] = {}

        def show_bar(cell: Cell, task: Task, event: Event) -> None:
            if isinstance(event, Ended):
                if cell.name in rows:
                    bar.remove_task(rows.pop(cell.name))
                say(screen, line(cell, task, event))
                bar.advance(whole)
                return
            if cell.name not in rows:
                rows[cell.name] = bar.add_task(f"  {_short(cell)}", total=event.planned)
            bar.update(rows[cell.name], completed=event.done)

        yield show_bar


def _short(cell: Cell) -> str:
    return ", ".join(f"{key.partition('.')[2]} {value_words(value)}" for key, value in cell.settings.items())


def _outcome(task: Task, event: Ended) -> str:
    if event.error:
        return f"failed: {event.error}"
    scores = read_scores(task.folder)
    return "finished" if scores is None else f"accuracy {scores.accuracy:.2%}"
