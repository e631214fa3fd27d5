"""``hubbub train`` and ``hubbub resume``."""

import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hubbub import config as configs
from hubbub._checks import one_of
from hubbub.accounting import rounded_up
from hubbub.accounting.wording import crude_delta, unit_word
from hubbub.build import build
from hubbub.cli.output import console, print_json, say
from hubbub.cli.tracked import Tracked
from hubbub.engine.apps import require_flower
from hubbub.engine.folder import RunInFolder
from hubbub.errors import RunFolderError
from hubbub.training import Population
from hubbub.training.workers import WorkerError

__all__ = ["How", "Tracked", "begin", "resume", "train"]

ONE_BY_ONE = "one-by-one"
# The status with which a command exits whose run was ended by its budget before it had done all rounds of its settings.
BUDGET_SPENT = 3


@dataclass(frozen=True)
class How:
    """What the command line says of how a run is computed, and where its numbers go; ``None`` leaves it to the settings."""

    engine: str | None = None
    plan: str | None = None
    workers: int | None = None
    tracked: Tracked = field(default_factory=Tracked)

    def layer(self) -> configs.Layer:
        """As settings."""
        named = {"engine": self.engine, "plan": self.plan, "workers": self.workers}
        return {"training": {key: value for key, value in named.items() if value is not None}}


def train(file: Path, assignments: list[str], out: Path | None, how: How, *, allow_import: bool, as_json: bool) -> None:
    """Start a run in a new folder."""
    begin([configs.load(file), configs.overrides(assignments)], out, file.stem, how, allow_import=allow_import, as_json=as_json)


def begin(layers: Sequence[configs.Layer], out: Path | None, stem: str, how: How, *, allow_import: bool, as_json: bool) -> None:
    """Start a run of these settings in a new folder, by default one in ``runs/`` that is named after ``stem``."""
    how.tracked.require()
    config = _settings(how, *layers)
    run = build(config, allow_import=allow_import)
    if run.encryption and config.training.engine == "process":
        from hubbub.engine.parties import require_keys

        require_keys(run, run.encryption)
    begun = RunInFolder.begun(run, _new_folder(out, stem))
    _train(begun, config.training.engine, how.tracked, allow_import=allow_import, as_json=as_json)


def resume(folder: Path, head: str | None, how: How, *, allow_import: bool, as_json: bool) -> None:
    """Go on with a run, by default with the engine that it began with."""
    how.tracked.require()
    begun = RunInFolder.gone_on_with(folder, head, workers=how.workers, allow_import=allow_import)
    if how.engine == "flower":
        # There each client trains on its own, however it did before.
        how = replace(how, plan=ONE_BY_ONE, workers=1)
    config = _settings(how, configs.load(folder / "config.toml"))
    _train(begun, config.training.engine, how.tracked, allow_import=allow_import, as_json=as_json)


def _settings(how: How, *layers: configs.Layer) -> configs.Config:
    """The settings of all layers, with what the command line says of how the run is computed.

    Raises:
        ConfigError: They do not go together, or Flower is needed and not installed.
    """
    if how.engine is not None:
        one_of("--engine", how.engine, configs.ENGINES)
    config = configs.resolve(*layers, how.layer())
    if config.training.engine == "flower":
        require_flower()
    return config


def _train(begun: RunInFolder, engine: str, tracked: Tracked, *, allow_import: bool, as_json: bool) -> None:
    screen, run, folder = console(stderr=as_json), begun.run, begun.folder
    _introduce(screen, begun, engine)
    # A shell that starts a command in the background leaves it deaf to the signal of Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = begun.rounds_measured
    try:
        with (
            tracked.opened(screen, folder.name) as track,
            _progress(screen, run.plan.rounds, before, unit_word(run.plan.privacy_unit)) as show,
        ):

            def shown(row: dict[str, Any]) -> None:
                show(row)
                track(row)

            if engine == "flower":
                from hubbub.engine.flower_app import run_locally

                run_locally(begun, shown, allow_import=allow_import)
            else:
                for row in begun.rounds(_clients(begun)):
                    shown(row)
    except (KeyboardInterrupt, WorkerError):
        say(screen)
        say(screen, f"Stopped after {begun.rounds_measured} of {run.plan.rounds} rounds. Go on with: hubbub resume {folder}")
        say(screen, f"Ledger head, to keep elsewhere (hubbub resume {folder} --head H): {begun.ledger_head}")
        raise
    _say_budget(screen, begun)
    if begun.rounds_measured == before:
        say(screen, f"This run has done all {run.plan.rounds} rounds; nothing is left to train.")
    loss, accuracy = begun.finish()
    if run.config.training.fairness:
        _say_fairness(screen, begun)
    head = begun.ledger_head
    if as_json:
        measured = {"loss": loss, "accuracy": accuracy, "held_out": bool(run.config.training.validation)}
        print_json({"run": str(folder), "head": head, **measured, **begun.promised.as_json()})
        _end(begun)
        return
    of = "held-out training examples (private)" if run.config.training.validation else "test examples"
    say(screen, f"Accuracy {accuracy:.2%}, loss {loss:.4f} on {len(run.dataset.test_targets):,} {of}.")
    say(screen, f"Report: {folder / 'report.html'} (in short: {folder / 'report.md'})")
    say(screen, f"Ledger head, to keep elsewhere (hubbub verify {folder} --head H): {head}")
    _end(begun)


def _end(begun: RunInFolder) -> None:
    """Say by the exit status that the budget ended the run before the settings did: what was trained until then is kept."""
    if begun.run.plan.rounds < begun.run.config.training.rounds:
        raise typer.Exit(BUDGET_SPENT)


def _introduce(screen: Console, begun: RunInFolder, engine: str) -> None:
    """What the run promises, who is trusted, and where it is."""
    run, folder = begun.run, begun.folder
    say(screen, begun.promised.sentence())
    units, unit = len(run.population.clients), unit_word(run.plan.privacy_unit)
    if begun.promised.private and (remark := crude_delta(run.plan.delta, units, unit)):
        say(screen, f"WARNING: {remark}")
    if begun.promised.setting:
        say(screen, f"Who is trusted with what: {begun.promised.setting}")
    say(screen, f"Run folder: {folder}")
    # A run that resumes says so by its settings; nothing is tried before its ledger was read.
    if engine == "process" and not begun.ledger_head and (computed := begun.prepare()):
        say(screen, f"Clients are trained {computed}")
    if engine == "flower":
        say(screen, f"Flower app of this run: {folder / 'app'} (its README.md says how to run it on a federation)")


def _say_budget(screen: Console, begun: RunInFolder) -> None:
    """Where the budget ended the run before its settings did."""
    done, asked = begun.run.plan.rounds, begun.run.config.training.rounds
    if done < asked:
        budget = begun.run.config.privacy.stop_epsilon
        say(
            screen,
            f"The budget is used up after {done} of {asked} rounds: one more would take epsilon above stop_epsilon = {budget}. "
            f"The model is kept; the exit status is {BUDGET_SPENT}.",
        )


def _say_fairness(screen: Console, begun: RunInFolder) -> None:
    """How evenly the model serves the clients: on the operator's screen, never among what programs read."""
    found = begun.fairness()
    accuracy, loss = found.accuracy, found.loss
    say(
        screen,
        f"Private, not for release: accuracy on each of {found.clients:,} clients' own examples is {accuracy.mean:.2%} on "
        f"average, {accuracy.worst_tenth:.2%} for the worst tenth of them, {accuracy.quantiles[0.25]:.2%} to "
        f"{accuracy.quantiles[0.75]:.2%} for the middle half; mean loss {loss.mean:.4f}, {loss.worst_tenth:.4f} for the worst "
        f"tenth ({begun.folder / 'private-fairness.json'}).",
    )


def _clients(begun: RunInFolder) -> Population:
    """The clients of a run in this process, encrypting where it says so."""
    terms = begun.run.encryption
    if terms is None:
        return begun.run.population
    from hubbub.engine.parties import parties

    return parties(begun, terms)


@contextmanager
def _progress(screen: Console, rounds: int, done: int, unit: str) -> Iterator[Any]:
    """Shows a row: as a live bar on a terminal, as plain lines elsewhere."""
    if not screen.is_terminal:
        last: dict[str, Any] = {}

        def show_line(row: dict[str, Any]) -> None:
            _say_aborted(screen, row, rounds)
            last.update({key: value for key, value in row.items() if value is not None})
            number = row["round_index"] + 1
            if number % max(1, rounds // 20) == 0 or number == rounds:
                say(screen, f"round {number}/{rounds}  {_words(last, unit)}")
                # What was measured stands on one line: later rounds have other models.
                for measured in ("loss", "accuracy"):
                    last.pop(measured, None)

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
            _say_aborted(screen, row, rounds)
            shown.update({key: value for key, value in row.items() if value is not None})
            bar.update(task, completed=row["round_index"] + 1, words=_words(shown, unit))

        yield show_bar


def _say_aborted(screen: Console, row: dict[str, Any], rounds: int) -> None:
    """Every round that was charged for nothing, whatever else is shown."""
    if not row.get("released", True):
        say(screen, f"round {row['round_index'] + 1}/{rounds}  not released, charged all the same: {row['fault']}")


def _words(row: dict[str, Any], unit: str) -> str:
    epsilon = row.get("epsilon", math.inf)
    parts = [
        f"loss {row['loss']:.3f}" if row.get("loss") is not None else "",
        f"accuracy {row['accuracy']:.1%}" if row.get("accuracy") is not None else "",
        f"epsilon {rounded_up(epsilon)}",
        f"clip norm {row['clip_norm']:.3g}" if row.get("clip_norm") is not None else "",
        f"{row['clients_per_second']:.0f} {unit}s/s",
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
