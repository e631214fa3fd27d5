"""``hubbub sweep``: runs over a grid of settings, begun or resumed, and one table of all of them."""

import shlex
import signal
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hubbub._util.checks import integer
from hubbub.cli.output import console, print_columns, print_json, say
from hubbub.errors import ConfigError
from hubbub.experiment import config as configs
from hubbub.experiment.sweep import grid as grids
from hubbub.experiment.sweep.grid import CELLS, RECORD, Cell, SweepRecord, worded
from hubbub.experiment.sweep.results import UNFINISHED, SweepSummary, found, sweep_summary, write
from hubbub.experiment.sweep.work import finish_all

_MOST_JOBS = 1024


@dataclass(frozen=True)
class Asked:
    """The flags of ``hubbub sweep``."""

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
    resumed = source.is_dir()
    folder = source if resumed else asked.output or Path("runs", f"{source.stem}-sweep")
    record = _resumed(source, asked) if resumed else _described(source, asked)
    cells = record.cells()
    if not resumed:
        if not (folder / RECORD).exists():
            grids.require_runnable(cells, allow_import=asked.allow_import)
        grids.begin(folder, record)
    with grids.locked(folder):
        results = _finished(screen, folder, record, cells, asked)
    if asked.as_json:
        print_json(results.as_json())
    else:
        _print(screen, folder, results)
    if failed := sum(cell.state == "failed" for cell in results.cells):
        say(screen, f"{failed} of {len(cells)} runs failed; correct the errors, then: {_again(folder, asked)}")
        raise typer.Exit(1)


def _described(source: Path, asked: Asked) -> SweepRecord:
    settings, fixed = configs.load(source), configs.overrides(asked.assignments)
    grid = grids.grid_of(asked.grid, asked.seeds)
    for name in grid:
        section, _, key = name.partition(".")
        if key in fixed.get(section, {}):
            raise ConfigError(f"--set {name}: is also on the grid; name it once")
    over: configs.Layer = {"privacy": {name.removeprefix("privacy."): values for name, values in grid.items()}}
    for line in configs.replaced(fixed, over, "--set"):
        raise ConfigError(f"--grid: {line}; leave one of them out")
    for layer in (fixed, over):
        say(console(stderr=asked.as_json), *configs.replaced(settings, layer, str(source)))
    return SweepRecord(source.name, configs.merge(settings, fixed), grid, str(Path.cwd()), asked.allow_import)


def _resumed(folder: Path, asked: Asked) -> SweepRecord:
    if not (folder / RECORD).is_file():
        raise ConfigError(f"{folder}: is no sweep ({RECORD} not there); name a config file and --grid, or a sweep's folder")
    given = {"--grid": asked.grid, "--seeds": asked.seeds, "--set": asked.assignments, "--output": asked.output}
    for flag, value in given.items():
        if value:
            raise ConfigError(f"{flag}: the sweep in {folder} is described by its own {RECORD}; leave it out")
    record = grids.read_record(folder)
    if record.allow_import and not asked.allow_import:
        raise ConfigError(f"{folder}: its settings name code of your own; pass --allow-import to run it")
    return record


def _finished(screen: Console, folder: Path, record: SweepRecord, cells: Sequence[Cell], asked: Asked) -> SweepSummary:
    """Train what is left and write the results, also after Ctrl-C."""
    before = [found(folder, cell)[0] for cell in cells]
    errors = {summary.name: summary.error for summary in before if summary.error}
    left = {folder / CELLS / cell.name: cell for cell, now in zip(cells, before, strict=True) if now.state in UNFINISHED}
    done = len(cells) - len(left)
    words = f", {done - len(errors)} of them finished" if done > len(errors) else ""
    words += f", {len(errors)} of them cannot be read" if errors else ""
    words += f": {len(left)} to do, {min(asked.jobs, max(len(left), 1))} at a time, in {folder}"
    say(screen, f"Sweep of {len(cells)} runs{words}")
    if len(cells) > 1:
        say(screen, "Choosing among runs over the same people costs privacy beyond each run's own; the results state how much.")
    # A shell that starts a command in the background makes it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    columns = TextColumn("runs"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn()
    settings = {place: cell.config for place, cell in left.items()}
    try:
        with (
            Progress(*columns, console=screen, disable=not screen.is_terminal) as bar,
            closing(finish_all(settings, asked.jobs, allow_import=asked.allow_import)) as ends,
        ):
            runs = bar.add_task("", total=len(cells), completed=done)
            for number, (place, outcome) in enumerate(ends, start=done + 1):
                cell = left[place]
                if isinstance(outcome, str):
                    errors[cell.name] = outcome
                ended = f"failed: {outcome}" if isinstance(outcome, str) else f"accuracy {outcome:.2%}"
                say(screen, f"run {number}/{len(cells)}  {worded(cell.settings)}: {ended}")
                bar.advance(runs)
    finally:
        results = sweep_summary(folder, record, cells, errors)
        write(folder, results)
        if waiting := sum(cell.state in UNFINISHED for cell in results.cells):
            ended = f"{len(cells) - waiting} of {len(cells)} runs have ended"
            say(screen, f"Stopped: {ended}. Resume with: {_again(folder, asked)}")
    return results


def _again(folder: Path, asked: Asked) -> str:
    jobs = f" --jobs {asked.jobs}" if asked.jobs > 1 else ""
    return f"hubbub sweep {shlex.quote(str(folder))}{jobs}{' --allow-import' if asked.allow_import else ''}"


def _print(screen: Console, folder: Path, results: SweepSummary) -> None:
    header, *rows = results.table()
    settings = len(results.points[0].settings)
    table = Table(*header[:settings], box=None, pad_edge=False)
    for title in header[settings:]:
        table.add_column(title, justify="right" if title else "left")
    for row in rows:
        table.add_row(*row, style="bold" if row[-1] == "best" else None)
    say(screen, "")
    print_columns(table)
    if results.seeds > 1:
        say(screen, f"Means over {results.seeds} seeds ± their standard deviation.")
    say(screen, "", *results.choice_lines())
    for cell in results.cells:
        if cell.state == "failed":
            say(screen, f"Failed: {worded(cell.settings)}: {cell.error}")
    say(screen, f"Page: {folder / 'sweep.html'} (table: results.csv, results.json; a report of each run in {CELLS}/)")
