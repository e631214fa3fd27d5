"""``hubbub train`` and ``hubbub resume``."""

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import save
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub import config as configs
from hubbub import files, report, strict_json
from hubbub.accounting import PrivacyGuarantee, rounded_up
from hubbub.accounting.chain import read_chain
from hubbub.accounting.promise import earlier_from
from hubbub.accounting.runs import RunCharge
from hubbub.build import Run, build
from hubbub.cli.output import console, print_json, say, strict
from hubbub.errors import LedgerError, RunFolderError
from hubbub.participation import (
    BallsInBinsSampling,
    CyclicPoissonSampling,
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    Participation,
    PoissonSampling,
    SingleParticipation,
    TruncatedPoissonSampling,
)
from hubbub.strategies import BandedToeplitz
from hubbub.training import RoundResult, RunStore, evaluate
from hubbub.training import train as training_rounds
from hubbub.training.metrics import Metrics

__all__ = ["resume", "train"]

# Computed from clients' updates: for the operator's eyes, never for others.
PRIVATE = ("clients", "clients_per_second", "seconds", "clipped_fraction", "train_loss")


def train(file: Path, assignments: list[str], out: Path | None, *, allow_import: bool, as_json: bool) -> None:
    """Start a run in a new folder."""
    run = build(configs.resolve(configs.load(file), configs.overrides(assignments)), allow_import=allow_import)
    promised = run.plan.promise().after(run.plan.rounds, run.plan.delta)
    folder = _new_folder(out, file.stem)
    store = RunStore(folder, keep_releases=run.config.training.keep_releases)
    with store.locked():
        if (folder / "config.toml").exists():
            raise RunFolderError(f"{folder}: another run has begun here; choose another folder with --out")
        files.write_atomic(folder / "guarantee.json", strict_json.canonical(promised.as_json()))
        files.write_atomic(folder / "config.toml", configs.dump(_resolved(run), f"# {promised.sentence()}\n").encode())
    _train(run, promised, folder, store, as_json=as_json)


def resume(folder: Path, head: str | None, *, allow_import: bool, as_json: bool) -> None:
    """Go on with a run."""
    missing = [name for name in ("config.toml", "ledger.jsonl") if not (folder / name).is_file()]
    # A crash right after the settings were written leaves a run without a ledger and without a release: it may begin.
    if missing and (missing != ["ledger.jsonl"] or any((folder / "state").glob("releases/*"))):
        raise RunFolderError(f"{folder}: is no run ({' and '.join(missing)} not there); start one with 'hubbub train'")
    if not missing and read_chain(folder / "ledger.jsonl").records[-1].get("kind") == "close":
        raise RunFolderError(f"{folder}: was closed and its keys destroyed; start a new run, which is charged beside it")
    # Earlier runs count as they did when this one began, wherever their folders are now.
    earlier = None if missing else _recorded_earlier(folder)
    run = build(configs.resolve(configs.load(folder / "config.toml")), allow_import=allow_import, earlier=earlier)
    promised = run.plan.promise().after(run.plan.rounds, run.plan.delta)
    if missing and run.plan.earlier:
        files.write_atomic(folder / "guarantee.json", strict_json.canonical(promised.as_json()))
    _train(run, promised, folder, RunStore(folder, keep_releases=run.config.training.keep_releases), head, as_json=as_json)


def _recorded_earlier(folder: Path) -> tuple[RunCharge, ...]:
    path = folder / "ledger.jsonl"
    try:
        return earlier_from(read_chain(path).records[0])
    except (ValueError, TypeError) as error:
        raise LedgerError(f"{path}, line 1: the promise cannot be read ({error})") from error


def _train(
    run: Run, promised: PrivacyGuarantee, folder: Path, store: RunStore, head: str | None = None, *, as_json: bool
) -> None:
    # Steps of small models are slower on several threads, and far slower beside other work.
    torch.set_num_threads(1)
    screen = console(stderr=as_json)
    say(screen, promised.sentence())
    say(screen, f"Run folder: {folder}")
    # A shell that starts a command in the background leaves it deaf to the signal of Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    metrics = Metrics(folder / "metrics.jsonl")
    rows, before = metrics.rows, len(metrics.rows)
    _require_not_ahead(folder, rows)
    try:
        with metrics, _progress(screen, run.plan.rounds, before) as show:
            for result in training_rounds(run.plan, run.population, run.model, store, head=head):
                row = _row(run, result)
                metrics.add(strict(row))
                show(row)
    except KeyboardInterrupt:
        say(screen)
        say(screen, f"Stopped after {len(rows)} of {run.plan.rounds} rounds. Go on with: hubbub resume {folder}")
        say(screen, f"Ledger head, to keep elsewhere (hubbub resume {folder} --head H): {_head(folder)}")
        raise
    if len(rows) == before:
        say(screen, f"This run has done all {run.plan.rounds} rounds; nothing is left to train.")
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in run.model.named_parameters()}
    ledger_head = _head(folder)
    files.write_atomic(folder / "model.safetensors", save(tensors, {"ledger_head": ledger_head}))
    text = (folder / "config.toml").read_text()
    report.write(folder, report.RunSummary(folder.name, rows, promised, text, public=not run.config.training.validation))
    loss, accuracy = evaluate(run.model, (run.dataset.test_inputs, run.dataset.test_targets), F.cross_entropy)
    if as_json:
        print_json({"run": str(folder), "head": ledger_head, "loss": loss, "accuracy": accuracy, **promised.as_json()})
        return
    say(screen, f"Accuracy {accuracy:.2%}, loss {loss:.4f} on {len(run.dataset.test_targets):,} test examples.")
    say(screen, f"Report: {folder / 'report.md'} and {folder / 'report.png'}")
    say(screen, f"Ledger head, to keep elsewhere (hubbub verify {folder} --head H): {ledger_head}")


def _head(folder: Path) -> str:
    """The head of the ledger as it stands on disk."""
    path = folder / "ledger.jsonl"
    return read_chain(path).head if path.is_file() else ""


def _require_not_ahead(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Metrics are written after a round is on record: more rounds than the ledger knows show that it was rolled back."""
    path = folder / "ledger.jsonl"
    if rows and path.is_file():
        begun, shown = sum(record.get("kind") == "begin" for record in read_chain(path).records), rows[-1]["round_index"] + 1
        if shown > begun:
            raise RunFolderError(
                f"{folder}: metrics.jsonl goes to {shown} rounds, its ledger to {begun}: it was rolled back; restore the ledger"
            )


def _row(run: Run, result: RoundResult) -> dict[str, Any]:
    """One line of the metrics: a public evaluation, epsilon, and what is private."""
    loss = accuracy = None
    number = result.round_index + 1
    if number % run.config.training.evaluate_every == 0 or number == run.plan.rounds:
        loss, accuracy = evaluate(run.model, (run.dataset.test_inputs, run.dataset.test_targets), F.cross_entropy)
    return {
        "round_index": result.round_index,
        "loss": loss,
        "accuracy": accuracy,
        "epsilon": result.epsilon,
        "delta": run.plan.delta,
        "clients": result.clients,
        "clients_per_second": result.clients_per_second,
        "seconds": result.seconds,
        **result.statistics,
        # Held-out training examples are clients' data too.
        "private": [*PRIVATE, *(("loss", "accuracy") if run.config.training.validation else ())],
    }


@contextmanager
def _progress(screen: Console, rounds: int, done: int) -> Iterator[Any]:
    """Shows a row: as a live bar on a terminal, as plain lines elsewhere."""
    if not screen.is_terminal:
        last: dict[str, Any] = {}

        def show_line(row: dict[str, Any]) -> None:
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
            shown.update({key: value for key, value in row.items() if value is not None})
            bar.update(task, completed=row["round_index"] + 1, words=_words(shown))

        yield show_bar


def _words(row: dict[str, Any]) -> str:
    epsilon = row.get("epsilon", math.inf)
    parts = [
        f"loss {row['loss']:.3f}" if row.get("loss") is not None else "",
        f"accuracy {row['accuracy']:.1%}" if row.get("accuracy") is not None else "",
        f"epsilon {rounded_up(epsilon)}",
        f"{row['clients_per_second']:.0f} clients/s",
    ]
    return "  ".join(part for part in parts if part)


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


def _resolved(run: Run) -> configs.Config:
    """The settings with everything that was derived from others written out, so that the file alone repeats the run."""
    config, plan = run.config, run.plan
    privacy = replace(config.privacy, epsilon=None, noise_multiplier=None)
    if plan.mechanism is not None:
        strategy = plan.mechanism.strategy
        name = config.privacy.strategy or ("identity" if config.privacy.mode == "dp-fedavg" else "banded-toeplitz")
        privacy = replace(
            privacy,
            noise_multiplier=plan.mechanism.noise_multiplier,
            strategy=name,
            bands=strategy.bands if isinstance(strategy, BandedToeplitz) and ":" not in name else config.privacy.bands,
            matrix=None if config.privacy.matrix is None else str(Path(config.privacy.matrix).expanduser().absolute()),
            neighboring_relation=plan.promise().after(0, plan.delta).neighboring_relation,
        )
    if privacy.earlier_runs:
        folders = tuple(str(Path(run).expanduser().absolute()) for run in privacy.earlier_runs)
        privacy = replace(privacy, earlier_runs=folders)
    sampling, participation = _named(plan.participation, config.participation)
    privacy = replace(privacy, sampling=sampling or privacy.sampling)
    data = config.data
    if data.path:
        data = replace(data, path=str(Path(data.path).expanduser().absolute()))
    size = None if isinstance(plan.participation, FixedEpochs | BallsInBinsSampling) else int(plan.expected_cohort_size)
    training = replace(config.training, cohort_size=size)
    return replace(config, training=training, privacy=privacy, participation=participation, data=data)


def _named(participation: Participation, wanted: configs.ParticipationConfig) -> tuple[str | None, configs.ParticipationConfig]:
    """How a config names it: as ``privacy.sampling``, and by the section ``[participation]``."""
    match participation:
        case PoissonSampling():
            return "poisson", wanted
        case FixedSizeSampling():
            return "fixed-size", wanted
        case TruncatedPoissonSampling():
            return "truncated-poisson", wanted
        case CyclicPoissonSampling():
            return "cyclic-poisson", wanted
        case BallsInBinsSampling(bins):
            return "balls-in-bins", configs.ParticipationConfig(bins=bins)
        case SingleParticipation():
            return None, configs.ParticipationConfig(pattern="single")
        case FixedEpochs() as pattern:
            return None, configs.ParticipationConfig(pattern="fixed-epochs", **asdict(pattern))
        case MinSeparation() as pattern:
            return None, configs.ParticipationConfig(pattern="min-separation", **asdict(pattern))
