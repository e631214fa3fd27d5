"""``hubbub train``, ``resume`` and ``extend``, their trackers, and the ranks that share a run.

Rank 0 reads settings and folder, records and prints; the others build their clients and the model from its settings, and share
its rounds.
"""

import logging
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hubbub.accounting import rounded_up
from hubbub.accounting.statement import no_less
from hubbub.cli.output import console, print_json, promised_words, say
from hubbub.errors import ConfigError, RankError, RunFolderError
from hubbub.experiment import config as configs
from hubbub.experiment.build import build, client_side, data_of
from hubbub.experiment.engine import population_of
from hubbub.experiment.engine.folder import RunInFolder
from hubbub.experiment.planner import noise_for_earlier_runs
from hubbub.experiment.settings import require_engine
from hubbub.ledger.actual_cost import spent
from hubbub.ledger.chain import read_chain
from hubbub.training import RunPlan
from hubbub.training import train as run_rounds
from hubbub.training.ranks import Ranks, has_launcher
from hubbub.training.run_folder import NORMALIZATION
from hubbub.training.run_folder.record import ledger_of, read_run

# Exit status of a run that stop_epsilon ended before its last round.
_BUDGET_SPENT = 3
_HERE = "127.0.0.1"
# The number of the process that started this rank: it may have ended before this one could ask.
_STARTER = "HUBBUB_STARTER"


@dataclass(frozen=True)
class How:
    """The flags on how a run is computed and tracked; ``None`` leaves it to the settings.

    With ``track_private`` MLflow and W&B get the numbers that no epsilon covers, too; TensorBoard gets all anyway.
    """

    engine: str | None = None
    plan: str | None = None
    nproc: int | None = None
    tensorboard: Path | None = None
    mlflow: str | None = None
    wandb: str | None = None
    track_private: bool = False
    allow_import: bool = False
    as_json: bool = False

    def shared(self, config: configs.Config) -> Ranks | None:
        """The ranks that share the run, as the flags or the settings say; ``None`` on a rank whose work is done.

        Without a launcher and with more than one process, the command is started again under torch's.
        """
        training = config.training
        if has_launcher():
            # Before it waits for the others.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            if starter := os.environ.get(_STARTER):
                from hubbub._util.processes import end_with

                end_with(int(starter))
            # Machines have different numbers of cores, and ranks must compute alike.
            torch.set_num_threads(1)
        elif training.nproc > 1:
            if config.data.features != "none":
                # Once, on all cores, and not by each process.
                data_of(config, allow_import=self.allow_import)
            _launch(training.nproc, sys.argv[1:])
        ranks = Ranks.launched(time_limit=training.rank_timeout, shard_optimizer=training.shard == "optimizer")
        if ranks.leads:
            return ranks
        settings, plan = cast("tuple[configs.Config, RunPlan]", ranks.lead(lambda: None))
        side = client_side(settings, allow_import=self.allow_import, ranks=ranks)
        for _ in run_rounds(plan, side.population, side.model):
            pass
        return None

    def settings(self, *layers: configs.Layer) -> configs.Config:
        """The settings of all layers, replaced by those of the flags."""
        named = {"engine": self.engine, "plan": self.plan, "nproc": self.nproc}
        config = configs.resolve(*layers, {"training": {key: value for key, value in named.items() if value is not None}})
        require_engine(config)
        return config

    def require_trackers(self) -> None:
        """Check the flags of trackers before a run begins."""
        if self.track_private and self.mlflow is None and self.wandb is None:
            raise ConfigError("--track-private: needs --mlflow or --wandb; --tensorboard gets all numbers anyway")
        if not (named := self._trackers()):
            return
        from hubbub.experiment import tracking

        for extra, wanted in named.items():
            if not str(wanted):
                raise ConfigError(f"--{extra} = '': name where to")
            tracking.require(extra)
        if self.tensorboard is not None:
            place = next((at for at in (self.tensorboard, *self.tensorboard.parents) if os.path.lexists(at)), Path())
            if not place.is_dir():
                raise ConfigError(f"--tensorboard = {str(self.tensorboard)!r}: {place} is no folder; name another one")

    def _trackers(self) -> dict[str, str | Path]:
        named = {"tensorboard": self.tensorboard, "mlflow": self.mlflow, "wandb": self.wandb}
        return {extra: wanted for extra, wanted in named.items() if wanted is not None}

    @contextmanager
    def tracked(self, screen: Console, run_name: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        """A function that tracks a row of metrics; a tracker that fails is dropped, and the run continues."""
        if not (named := self._trackers()):
            yield lambda _: None
            return
        from hubbub.experiment import tracking

        stack = ExitStack()
        try:
            writers = {name: stack.enter_context(getattr(tracking, name)(place, run_name)) for name, place in named.items()}

            def show(row: Mapping[str, Any]) -> None:
                for name, write in list(writers.items()):
                    try:
                        tracking.log(row, write, private=self.track_private or name == "tensorboard")
                    except Exception as error:  # noqa: BLE001 # whatever a tracker raises, the run continues
                        del writers[name]
                        number = row["round_index"] + 1
                        say(screen, f"--{name}: stopped at round {number} ({error}); the run continues without it")

            yield show
        finally:
            try:
                stack.__exit__(*sys.exc_info())
            except Exception as error:  # noqa: BLE001 # the report is still to be written
                say(screen, f"A tracker could not be closed ({error}); its last rounds may be missing there")


def _launch(nproc: int, arguments: Sequence[str]) -> NoReturn:
    """Run a command of hubbub in several processes of this machine, under torch's launcher, and exit.

    The exit status is that of rank 0, or 1 if a process was killed.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # it is public, and in no __all__
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, start_processes

    # More than a few for each core gain nothing, and hundreds take all memory.
    if nproc > (most := max(16, 4 * (cores := os.cpu_count() or 1))):
        raise ConfigError(f"nproc = {nproc}: must be at most {most} on this machine, which has {cores} cores")
    # What they exchange stays on this machine.
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # By a port of its own choice torch would listen on all interfaces.
    listening = socket.create_server((_HERE, 0))
    port = listening.getsockname()[1]
    store = TCPStore(_HERE, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    # Each rank says itself what is wrong.
    logging.disable(logging.CRITICAL)
    all_of_them = {
        "WORLD_SIZE": nproc,
        "MASTER_ADDR": _HERE,
        "MASTER_PORT": port,
        # The store is here, and not on rank 0.
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "LOCAL_WORLD_SIZE": nproc,
        _STARTER: os.getpid(),
    }
    environments = {
        rank: {name: str(value) for name, value in {**all_of_them, "RANK": rank, "LOCAL_RANK": rank}.items()}
        for rank in range(nproc)
    }
    command = dict.fromkeys(range(nproc), ("-m", "hubbub", *arguments))
    try:
        ranks = start_processes("hubbub", sys.executable, command, environments, DefaultLogsSpecs(os.devnull))
        try:
            failures = ranks.wait(period=0.1).failures  # type: ignore[union-attr] # it waits without a limit
        finally:
            # A second signal would leave torch's threads behind, for which this process would wait without end.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_IGN)
            ranks.close()
            del store
    except (KeyboardInterrupt, SignalException):
        sys.exit(130)
    if not failures:
        sys.exit(0)
    rank, first = min(failures.items(), key=lambda failure: failure[1].timestamp)
    if first.exitcode < 0:
        say(console(stderr=True), f"hubbub: rank {rank}: was ended by {signal.Signals(-first.exitcode).name}")
    sys.exit(next((failure.exitcode for failure in (failures.get(0, first), first) if failure.exitcode > 0), 1))


def train(file: Path, assignments: list[str], out: Path | None, how: How) -> None:
    """Start a run in a new folder."""
    layer, named = configs.load(file), configs.overrides(assignments)
    _begin([layer, named], out, file.stem, how, configs.replaced(layer, named, str(file)))


def _begin(layers: Sequence[configs.Layer], out: Path | None, stem: str, how: How, lines: Sequence[str]) -> None:
    """Start a run in a new folder, by default ``runs/STEM-N``, after some lines for people."""
    how.require_trackers()
    config = how.settings(*layers)
    if (ranks := how.shared(config)) is None:
        return
    again = "it would begin another run; resume the first one instead"
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        raise ConfigError(f"torchrun started this command again, and {again}")
    # A folder that is named would be the same, and is refused if it has a run.
    if out is None and os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
        raise ConfigError(f"SLURM started this job again, and {again}, or name a new folder with -o")
    say(console(stderr=how.as_json), *lines)

    def begun() -> RunInFolder:
        run = build(config, allow_import=how.allow_import, ranks=ranks)
        if run.encryption:
            from hubbub.experiment.engine.parties import require_keys

            require_keys(run)
        folder = new_folder(out, "runs", stem)
        return RunInFolder.begun(run, folder, allow_import=how.allow_import, ranks=ranks)

    _train(_led(ranks, begun), how, config)


def _led(ranks: Ranks, make: Callable[[], RunInFolder]) -> RunInFolder:
    """Begin or resume a run on rank 0, and give the others its settings and its plan."""
    begun: list[RunInFolder] = []

    def lead() -> object:
        begun.append(make())
        return begun[0].run.config, begun[0].run.plan

    ranks.lead(lead)
    return begun[0]


def resume(folder: Path, head: str | None, how: How) -> None:
    """Resume a run, by default with the engine that it began with."""
    how.require_trackers()
    if how.engine == "flower":
        # On Flower each client trains by itself.
        how = replace(how, plan="one-by-one", nproc=1 if how.nproc is None else how.nproc)
    path = folder / "config.toml"
    if (ranks := how.shared(how.settings(configs.load(path) if path.is_file() else {}))) is None:
        return
    begun = _led(ranks, lambda: RunInFolder.resumed(folder, head, allow_import=how.allow_import, ranks=ranks))
    _train(begun, how, how.settings(configs.load(path)))


def extend(folder: Path, rounds: int, assignments: Sequence[str], out: Path | None, head: str | None, how: How) -> None:
    """Train more rounds from the model of a finished run, in a new folder."""
    from hubbub.experiment.extending import extension

    named = configs.overrides(assignments)
    if "rounds" in named.get("training", {}):
        raise ConfigError("--set training.rounds: is given by --rounds; leave it out")
    if "extends" in named.get("training", {}):
        raise ConfigError(f"--set training.extends: is {folder}, as RUN says; leave it out")
    if head is not None:
        read_chain(ledger_of(folder)).require_head(head)
    recorded, layer = read_run(folder), extension(folder)
    cost, done = spent(recorded.promise, recorded.history).guarantee, len(recorded.history.rounds)
    privacy = layer["privacy"]
    said = f"epsilon {rounded_up(cost.epsilon)} at delta {no_less(cost.delta)}" if cost.private else "no privacy guarantee"
    lines = [f"{folder}: {done} of {recorded.promise.rounds} rounds, {said}"]
    if (others := privacy["earlier_runs"][1:]) and "earlier_runs" not in named.get("privacy", {}):
        lines.append(f"The privacy cost also counts other runs over the same people: {', '.join(others)}")
    lines += configs.replaced(layer, named, str(folder / "config.toml"))
    if named.get("privacy", {}).get("clipping") == "fixed":
        # Settings of an adaptive clip norm, which is fixed from here on.
        for key in ("target_quantile", "clip_norm_learning_rate", "clip_count_stddev"):
            privacy.pop(key, None)
    if "flower" in (how.engine, named.get("training", {}).get("engine")):
        # On Flower each client trains by itself.
        layer["training"] |= {"plan": "one-by-one", "nproc": 1}
    if privacy.get("bands", 0) > rounds:
        lines.append(f"privacy.bands = {privacy.pop('bands')} of {folder} is more than {rounds} rounds; it is at its default")
    _begin([layer, {"training": {"rounds": rounds}}, named], out, f"{folder.resolve().name}-extended", how, lines)


def _train(begun: RunInFolder, how: How, config: configs.Config) -> None:
    screen, run, folder = console(stderr=how.as_json), begun.run, begun.folder
    introduce = cache(partial(_introduce, screen, begun, config.training.engine))
    # A resumed run is introduced after its ledger, settings and releases were checked against each other.
    if not begun.ledger_head:
        introduce()
    # A shell that starts a command in the background makes it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = begun.rounds_measured
    unit = run.plan.privacy_unit
    try:
        with how.tracked(screen, folder.name) as track, _progress(screen, run.plan.rounds, before, unit) as show:
            for row in begun.rounds(population_of(begun, config.training.engine, allow_import=how.allow_import)):
                introduce()
                show(row)
                track(row)
    except (KeyboardInterrupt, RankError, OSError) as error:
        head = begun.ledger_head
        if head or not isinstance(error, OSError):
            stopped = f"Stopped after {begun.rounds_measured} of {run.plan.rounds} rounds."
            say(screen, "", f"{stopped} Resume with: hubbub resume {shlex.quote(str(folder))}")
        if head:
            say(screen, f"Ledger head, to keep elsewhere (hubbub resume {shlex.quote(str(folder))} --head H): {head}")
        raise
    measured = begun.finish()
    introduce()
    done, planned = run.plan.rounds, run.config.training.rounds
    if done < planned:
        budget = run.config.privacy.stop_epsilon
        say(
            screen,
            f"The budget is spent after {done} of {planned} rounds: one more would take epsilon above stop_epsilon = {budget}. "
            f"The model is kept; the exit status is {_BUDGET_SPENT}.",
        )
    if begun.rounds_measured == before:
        say(screen, f"All {done} rounds are done; nothing is left to train.")
    _say_finished(screen, begun, measured, how)
    if done < planned:
        raise typer.Exit(_BUDGET_SPENT)


def _say_finished(screen: Console, begun: RunInFolder, measured: tuple[float, float], how: How) -> None:
    run, folder = begun.run, begun.folder
    loss, accuracy = measured
    if run.config.training.fairness:
        # Private, so never in the JSON object.
        found = begun.fairness()
        say(
            screen,
            f"Private, not for release: accuracy on each of {found.clients:,} clients' own examples is "
            f"{found.accuracy.mean:.2%} on average, {found.accuracy.worst_tenth:.2%} for the worst tenth "
            f"({folder / 'private-fairness.json'}).",
        )
    head, held_out = begun.ledger_head, bool(run.config.training.validation)
    if how.as_json:
        scores = {"loss": loss, "accuracy": accuracy, "held_out": held_out}
        print_json({"run": str(folder), "head": head, **scores, **run.plan.promised.as_json()})
        return
    of = "held-out training examples (private)" if held_out else "test examples"
    say(
        screen,
        f"Accuracy {accuracy:.2%}, loss {loss:.4f} on {len(run.dataset.test_targets):,} {of}.",
        f"Report: {folder / 'report.html'} (in short: {folder / 'report.md'})",
        f"Ledger head, to keep elsewhere (hubbub verify {shlex.quote(str(folder))} --head H): {head}",
    )


def _introduce(screen: Console, begun: RunInFolder, engine: str) -> None:
    words = promised_words(begun.run.plan.promised, len(begun.run.population.clients))
    say(screen, *words, *noise_for_earlier_runs(begun.run.config, begun.run.plan), f"Run folder: {begun.folder}")
    # A resumed run knows it from its settings; nothing is computed before its ledger was read.
    if engine == "process" and not begun.ledger_head and (computed := begun.prepare()):
        say(screen, f"Clients are trained {computed}")
    if engine == "flower":
        say(screen, f"Flower app of this run: {begun.folder / 'app'} (its README.md says how to run it on a federation)")


@contextmanager
def _progress(screen: Console, rounds: int, done: int, unit: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that shows a row of metrics: in a live bar on a terminal, else in plain lines."""
    words = TextColumn("{task.fields[words]}")
    columns = TextColumn("round"), MofNCompleteColumn(), BarColumn(bar_width=20), words, TimeRemainingColumn()
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=rounds, completed=done, words="")
        last: dict[str, Any] = {}

        def show(row: dict[str, Any]) -> None:
            number = row["round_index"] + 1
            if not row.get("released", True):
                say(screen, f"round {number}/{rounds}  aborted, its privacy cost stays spent: {row['fault']}")
            last.update({key: value for key, value in row.items() if value is not None})
            if screen.is_terminal:
                bar.update(task, completed=number, words=_words(last, unit))
            elif number % max(1, rounds // 20) == 0 or number == rounds:
                say(screen, f"round {number}/{rounds}  {_words(last, unit)}")
                # Not repeated for later rounds, which have other models.
                for measured in ("loss", "accuracy", "evaluation"):
                    last.pop(measured, None)

        yield show


def _words(row: dict[str, Any], unit: str) -> str:
    measured = row.get("evaluation", {}).items()
    parts = [
        f"loss {row['loss']:.3f}" if "loss" in row else "",
        f"accuracy {row['accuracy']:.1%}" if "accuracy" in row else "",
        *(f"{unit}s' {name} {one['value']:.3g} ± {one['standard_error']:.2g}" for name, one in measured),
        f"epsilon {rounded_up(row['epsilon'])}",
        f"clip norm {row['clip_norm']:.3g}" if "clip_norm" in row else "",
        f"{row['clients_per_second']:.0f} {unit}s/s",
    ]
    return "  ".join(filter(None, parts))


def new_folder(out: Path | None, kind: str, stem: str) -> Path:
    """A new or empty folder: the given one, or the next free one of a stem."""
    if out is not None:
        held = {found.name for found in out.iterdir()} if out.is_dir() else {""} if out.exists() else set()
        # What a start leaves that was killed before its settings were written.
        if held <= {"guarantee.json", "state"} and {p.name for p in (out / "state").rglob("*") if not p.is_dir()} == {"lock"}:
            held = set()
        # What a run released before its settings were written is used by the next one.
        begun = {"config.toml", "ledger.jsonl"}
        if held and (NORMALIZATION not in held or held & begun):
            resume = f", or resume it with 'hubbub resume {shlex.quote(str(out))}'" if held & begun else ""
            raise RunFolderError(f"{out}: exists already; choose another with --out{resume}")
        return out
    return next(folder for number in count(1) if not (folder := Path(kind, f"{stem}-{number}")).exists())
