"""``hubbub train`` and ``hubbub resume``."""

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hubbub import config as configs
from hubbub._checks import one_of
from hubbub.accounting import rounded_up
from hubbub.build import build
from hubbub.cli.output import console, print_json, say
from hubbub.engine.apps import require_flower
from hubbub.engine.folder import RunInFolder
from hubbub.errors import RunFolderError
from hubbub.training import Population

__all__ = ["resume", "train"]


def train(
    file: Path, assignments: list[str], out: Path | None, engine: str | None, *, allow_import: bool, as_json: bool
) -> None:
    """Start a run in a new folder."""
    config = _on(engine, configs.resolve(configs.load(file), configs.overrides(assignments)))
    run = build(config, allow_import=allow_import)
    if run.encryption and config.training.engine == "process":
        from hubbub.engine.parties import require_keys

        require_keys(run, run.encryption)
    _train(
        RunInFolder.begun(run, _new_folder(out, file.stem)), config.training.engine, allow_import=allow_import, as_json=as_json
    )


def resume(folder: Path, head: str | None, engine: str | None, *, allow_import: bool, as_json: bool) -> None:
    """Go on with a run, by default with the engine that it began with."""
    begun = RunInFolder.gone_on_with(folder, head, allow_import=allow_import)
    config = _on(engine, begun.run.config)
    _train(begun, config.training.engine, allow_import=allow_import, as_json=as_json)


def _on(engine: str | None, config: configs.Config) -> configs.Config:
    """The settings with the engine that the command line names, if it names one.

    Raises:
        ConfigError: Flower is not installed.
    """
    if engine is not None:
        config = replace(config, training=replace(config.training, engine=one_of("--engine", engine, configs.ENGINES)))
    if config.training.engine == "flower":
        require_flower()
    return config


def _train(begun: RunInFolder, engine: str, *, allow_import: bool, as_json: bool) -> None:
    screen, run, folder = console(stderr=as_json), begun.run, begun.folder
    say(screen, begun.promised.sentence())
    if begun.promised.setting:
        say(screen, f"Who is trusted with what: {begun.promised.setting}")
    say(screen, f"Run folder: {folder}")
    if engine == "flower":
        say(screen, f"Flower app of this run: {folder / 'app'} (its README.md says how to run it on a federation)")
    # A shell that starts a command in the background leaves it deaf to the signal of Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = begun.rounds_measured
    try:
        with _progress(screen, run.plan.rounds, before) as show:
            if engine == "flower":
                from hubbub.engine.flower_app import run_locally

                run_locally(begun, show, allow_import=allow_import)
            else:
                for row in begun.rounds(_clients(begun)):
                    show(row)
    except KeyboardInterrupt:
        say(screen)
        say(screen, f"Stopped after {begun.rounds_measured} of {run.plan.rounds} rounds. Go on with: hubbub resume {folder}")
        say(screen, f"Ledger head, to keep elsewhere (hubbub resume {folder} --head H): {begun.ledger_head}")
        raise
    if begun.rounds_measured == before:
        say(screen, f"This run has done all {run.plan.rounds} rounds; nothing is left to train.")
    loss, accuracy = begun.finish()
    head = begun.ledger_head
    if as_json:
        print_json({"run": str(folder), "head": head, "loss": loss, "accuracy": accuracy, **begun.promised.as_json()})
        return
    say(screen, f"Accuracy {accuracy:.2%}, loss {loss:.4f} on {len(run.dataset.test_targets):,} test examples.")
    say(screen, f"Report: {folder / 'report.md'} and {folder / 'report.png'}")
    say(screen, f"Ledger head, to keep elsewhere (hubbub verify {folder} --head H): {head}")


def _clients(begun: RunInFolder) -> Population:
    """The clients of a run in this process, encrypting where it says so."""
    terms = begun.run.encryption
    if terms is None:
        return begun.run.population
    from hubbub.engine.parties import parties

    return parties(begun, terms)


@contextmanager
def _progress(screen: Console, rounds: int, done: int) -> Iterator[Any]:
    """Shows a row: as a live bar on a terminal, as plain lines elsewhere."""
    if not screen.is_terminal:
        last: dict[str, Any] = {}

        def show_line(row: dict[str, Any]) -> None:
            _say_burned(screen, row, rounds)
            last.update({key: value for key, value in row.items() if value is not None})
            number = row["round_index"] + 1
            if number % max(1, rounds // 20) == 0 or number == rounds:
                say(screen, f"round {number}/{rounds}  {_words(last)}")

        yield show_line
        return
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[words]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen) as bar:
        task = bar.add_task("", total=rounds, completed=done, words="")
        shown: dict[str, Any] = {}

        def show_bar(row: dict[str, Any]) -> None:
            _say_burned(screen, row, rounds)
            shown.update({key: value for key, value in row.items() if value is not None})
            bar.update(task, completed=row["round_index"] + 1, words=_words(shown))

        yield show_bar


def _say_burned(screen: Console, row: dict[str, Any], rounds: int) -> None:
    """Every round that was charged for nothing, whatever else is shown."""
    if not row.get("released", True):
        say(screen, f"round {row['round_index'] + 1}/{rounds}  not released, charged all the same: {row['fault']}")


def _words(row: dict[str, Any]) -> str:
    epsilon = row.get("epsilon", math.inf)
    parts = [
        f"loss {row['loss']:.3f}" if row.get("loss") is not None else "",
        f"accuracy {row['accuracy']:.1%}" if row.get("accuracy") is not None else "",
        f"epsilon {rounded_up(epsilon)}",
        f"{row['clients_per_second']:.0f} clients/s",
        _costs(row),
    ]
    return "  ".join(part for part in parts if part)


def _costs(row: dict[str, Any]) -> str:
    """What encryption cost, where there was any."""
    parts = []
    if "encrypt_seconds" in row:
        parts.append(f"encrypt {row['encrypt_seconds'] / max(1, row['clients']):.2f} s a client")
    parts += [
        f"{word} {row[key]:.2f} s" for word, key in (("add", "aggregate_seconds"), ("decrypt", "decrypt_seconds")) if key in row
    ]
    return ", ".join(parts)


def _new_folder(out: Path | None, stem: str) -> Path:
    """The folder of a new run; what is there already is never written over."""
    if out is not None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RunFolderError(f"{out}: exists already; choose another with --out, or go on with 'hubbub resume {out}'")
        return out
    number = 1
    while Path("runs", f"{stem}-{number}").exists():
        number += 1
    return Path("runs", f"{stem}-{number}")
