"""What the headlines have in common: runs as settings of ``hubbub train``, each kept in a file as it comes, tables, pictures.

A run is a mapping of settings, such as ``{"training.rounds": 600}``, so that each can be repeated by hand: ``hubbub train --set
training.rounds=600 …``. Its record stands in a JSON file beside the settings that made it; a run that is in the file is never
computed again.
"""

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub._util.files import write_atomic
from hubbub.experiment.build import Run, build, with_moments
from hubbub.experiment.config import PRIVATELY, Layer, resolve
from hubbub.training import evaluate, train
from hubbub.training.run_folder import NORMALIZATION

Settings = Mapping[str, Any]
Record = dict[str, Any]

DOCS = Path(__file__).parent.parent.parent / "docs"
_PAGE = DOCS / "results.md"
# Okabe and Ito's colours, which people with any colour vision tell apart.
COLORS = ("#000000", "#D55E00", "#E69F00", "#009E73", "#0072B2", "#56B4E9", "#CC79A7")
MARKERS = ("X", "s", "D", "o", "^", "v", "P")
# Of training examples, by how many the accuracy on them is told.
_SEEN = 10_000
# Of a finished run, these settings are told.
_TOLD = (
    "privacy.mode", "privacy.strategy", "privacy.epsilon", "privacy.noise_multiplier", "privacy.clip_norm",
    "training.learning_rate", "training.seed",
)  # fmt: skip
# What settings are chosen by, and a seed that is not used again.
_HELD_OUT, _CHOOSING_SEED = 0.1, 1000


class Runs:
    """Finished runs by their settings, in a JSON file.

    Args:
        file: Where they are; it need not exist.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        records = json.loads(file.read_text()) if file.exists() else []
        self._records: dict[str, Record] = {_name(record["settings"]): record for record in records}

    def get(self, settings: Settings) -> Record | None:
        """The record of a run: settings, test accuracy by round, training accuracy, epsilon; ``None`` if it is not finished."""
        return self._records.get(_name(settings))

    def finish(self, wanted: Iterable[Settings], arguments: argparse.Namespace) -> None:
        """Compute what is missing, in order, and keep each record as it comes."""
        missing = {_name(settings): settings for settings in wanted if self.get(settings) is None}
        if arguments.jobs == 1:
            for settings in missing.values():
                self._keep(one_run(settings, arguments.data, arguments.device))
            return
        with ProcessPoolExecutor(arguments.jobs) as pool:
            running = [pool.submit(one_run, settings, arguments.data, arguments.device) for settings in missing.values()]
            for done in as_completed(running):
                self._keep(done.result())

    def _keep(self, record: Record) -> None:
        self._records[_name(record["settings"])] = record
        lines = ",\n".join(json.dumps(self._records[name], sort_keys=True) for name in sorted(self._records))
        write_atomic(self._file, f"[\n{lines}\n]\n".encode(), mode=0o644)
        told = ", ".join(f"{name.partition('.')[2]} {record['settings'][name]}" for name in _TOLD if name in record["settings"])
        print(f"{final(record):.4f} after {record['cpu_seconds']:.0f} s: {told}", flush=True)


def one_run(settings: Settings, data: str | None, device: str) -> Record:
    """Train by these settings, and say how it went.

    Args:
        settings: As of ``hubbub train --set``.
        data: A file or folder, where the data set needs one; the setting ``data.path`` is a name in it.
        device: Where gradients are computed. Noise comes from the processor: the same on every machine.
    """
    if device == "cpu":
        torch.set_num_threads(1)
    started = time.process_time()
    if (name := settings.get("data.path")) is not None:
        data = str(Path(data or os.environ.get("HUBBUB_DATA", "")) / name)
    run = build(resolve(layer({**settings, "training.device": device, "data.path": data})), allow_import=True)
    if run.config.data.normalization == PRIVATELY:
        with tempfile.TemporaryDirectory() as folder:
            run = with_moments(run, Path(folder) / NORMALIZATION)
    model = run.model.to(device)
    accuracies: dict[str, float] = {}
    epsilon = 0.0
    for result in train(run.plan, run.population, model):
        rounds, epsilon = result.round_index + 1, result.epsilon
        if rounds % run.config.training.evaluate_every == 0 or rounds == run.plan.rounds:
            accuracies[str(rounds)] = _accuracy(run, run.dataset.test_inputs, run.dataset.test_targets)
    seen = run.dataset.train_inputs[:_SEEN], run.dataset.train_targets[:_SEEN]
    return {
        "settings": dict(settings),
        "accuracy": accuracies,
        "train_accuracy": _accuracy(run, *seen),
        # Without privacy there is none, and JSON knows no infinity.
        "epsilon": None if run.plan.mechanism is None else epsilon,
        "noise_multiplier": None if run.plan.mechanism is None else run.plan.mechanism.noise_multiplier,
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def _accuracy(run: Run, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    return evaluate(run.model, (inputs, targets), F.cross_entropy)[1]


def layer(settings: Settings) -> Layer:
    """Settings as the tool's config takes them."""
    found: Layer = {}
    for name, value in settings.items():
        section, _, key = name.partition(".")
        found.setdefault(section, {})[key] = value
    return found


def final(record: Record) -> float:
    """The test accuracy after the last round."""
    return float(record["accuracy"][str(max(map(int, record["accuracy"])))])


def accuracies(runs: Runs, wanted: Iterable[Settings]) -> list[float]:
    """The final test accuracies of those runs that are finished."""
    return [final(record) for settings in wanted if (record := runs.get(settings)) is not None]


def choosing(settings: Settings) -> Settings:
    """The run by which a setting is judged: on a tenth of the training examples, trained on the others, in as many steps."""
    chosen = {**settings, "training.validation": _HELD_OUT, "training.seed": _CHOOSING_SEED}
    size = settings.get("training.cohort_size")
    if size is not None and settings.get("privacy.unit") == "example":
        chosen["training.cohort_size"] = round((1 - _HELD_OUT) * size)
    return chosen


def best(runs: Runs, settings: Settings, candidates: Sequence[Settings]) -> Settings | None:
    """Of further settings those with the best accuracy on held-out training examples; ``None`` if none was tried."""
    tried = [(candidate, runs.get(choosing({**settings, **candidate}))) for candidate in candidates]
    found = [(final(record), candidate) for candidate, record in tried if record is not None]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def percent(values: Sequence[float]) -> str:
    """The mean with the range in brackets; a dash where nothing is finished."""
    if not values:
        return "–"
    mean = sum(values) / len(values)
    spread = f" ({min(values):.2%} to {max(values):.2%})" if len(values) > 1 else ""
    return f"{mean:.2%}{spread}".replace("%", " %")


def cell(runs: Runs, tests: Sequence[Settings]) -> str:
    """What a table shows of the runs of several seeds; if some are not finished, of how many."""
    found = accuracies(runs, tests)
    return percent(found) + (f", {len(found)} of {len(tests)} seeds" if found and len(found) < len(tests) else "")


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def show(name: str, table: str, arguments: argparse.Namespace) -> None:
    """Print a table, and put it into the page where it is asked for: between ``<!-- table: NAME -->`` and ``<!-- end -->``."""
    print(table, end="\n\n", flush=True)
    if arguments.write:
        pattern = rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)"
        new, found = re.subn(pattern, lambda match: f"{match[1]}{table}\n{match[2]}", _PAGE.read_text(), flags=re.DOTALL)
        if found != 1:
            raise SystemExit(f"{_PAGE}: has {found} places for the table {name!r}; it must have one")
        write_atomic(_PAGE, new.encode(), mode=0o644)


def parser(description: str, results: str, picture: str) -> argparse.ArgumentParser:
    """The arguments that every script has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--data", help="the data file or its folder; by default the folder in HUBBUB_DATA")
    made.add_argument("--quick", action="store_true", help="a few rounds on scikit-learn's digits: only shows that all works")
    made.add_argument("--seeds", type=int, default=3, help="seeds of the runs that the table is made of")
    made.add_argument("--jobs", type=int, default=1, help="processes of one thread")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument("--table", action="store_true", help="compute nothing: the table and the picture of what is there")
    made.add_argument("--write", action="store_true", help="put the tables into docs/results.md")
    made.add_argument("--results", type=Path, default=DOCS / results, help="the file of finished runs")
    made.add_argument("--picture", type=Path, default=DOCS / "images" / picture)
    return made


def parsed(made: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments of this call; what is quick stays out of the docs unless it is told to go there."""
    arguments = made.parse_args()
    if arguments.quick and arguments.write:
        made.error("--write with --quick: the page shows real runs only; leave one of them out")
    if arguments.quick:
        for name in ("results", "picture"):
            if getattr(arguments, name) == made.get_default(name):
                setattr(arguments, name, Path(tempfile.gettempdir()) / f"quick_{made.get_default(name).name}")
    return arguments


def _name(settings: Settings) -> str:
    return json.dumps(dict(settings), sort_keys=True)
