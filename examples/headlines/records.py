"""Accuracy at equal epsilon on fixed features: the files of ``examples/records``, five seeds each, next to published figures.

    python examples/headlines/records.py --data FOLDER --seeds 5

The folder has ``mnist.npz``, ``fashion-mnist.npz``, ``cifar10.npz`` (images in JPEG) and ``cifar-10-batches-bin`` (the
published ones).

A run is a file of settings with a few changed ones, as ``hubbub train FILE --set …``, with its secret noise. Finished runs are
kept, so that an interrupted script goes on where it was.
"""

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from _comparison import draw
from _runs import Runs, Settings, accuracies, markdown, parsed, parser, show

FOLDER = Path(__file__).parent.parent / "records"
TRAMER_BONEH = "[Tramèr and Boneh 2021](https://arxiv.org/abs/2011.11660)"


@dataclass(frozen=True)
class Task:
    """Rows of the table.

    Args:
        name: What is learnt, and where; a heading.
        mechanism: In words.
        file: In ``examples/records``.
        changes: Changed settings, by epsilon.
        published: A published figure, by epsilon.
    """

    name: str
    mechanism: str
    file: str
    changes: Mapping[float, Settings]
    published: Mapping[float, str] = field(default_factory=dict)

    def tests(self, epsilon: float, seeds: int, quick: Settings) -> list[Settings]:
        """The runs of a row."""
        layer = tomllib.loads((FOLDER / self.file).read_text())
        own = {f"{section}.{key}": value for section, keys in layer.items() for key, value in keys.items()}
        settings = {**own, **spent(epsilon), **self.changes[epsilon], **quick}
        return [{**settings, "training.seed": seed} for seed in range(seeds)]

    def command(self, epsilon: float) -> str:
        """What makes one of them."""
        layer = tomllib.loads((FOLDER / self.file).read_text())
        own = {} if layer["privacy"]["epsilon"] == epsilon else spent(epsilon)
        changes = {**own, **self.changes[epsilon]}
        flags = "".join(f" --set {key}={_word(value)}" for key, value in changes.items())
        return f"`{self.file}{flags}`"


def _word(value: object) -> str:
    """A setting as the command takes it."""
    return "default" if value is None else value if isinstance(value, str) else f"{value:g}"


def spent(epsilon: float) -> Settings:
    """The setting of a budget; infinity is no privacy."""
    return {"privacy.epsilon": epsilon} if math.isfinite(epsilon) else {"privacy.mode": "none"}


CENTRAL, FEDERATED = "MNIST, each image a unit", "MNIST, 1,000 clients"
FASHION, CIFAR = "Fashion-MNIST, each image a unit", "CIFAR-10, each image a unit"
OTHER = {"data.name": "fashion-mnist"}
LOSSLESS = {"data.path": "cifar-10-batches-bin"}
# A setting that is None takes its default.
BUFFERS = {"privacy.strategy": "blt", "privacy.bands": None}
TASKS = (
    Task(
        CENTRAL, "DP-SGD, Poisson", "mnist.toml",
        {1.0: {"training.rounds": 100}, 2.0: {}, 2.5: {}, 3.0: {}, 8.0: {}},
        {2.5: f"98.7 % at epsilon 3, {TRAMER_BONEH}"},
    ),
    Task(
        CENTRAL, "banded, fixed order (zero-out)", "mnist_ftrl.toml",
        {1.0: {"training.learning_rate": 2.0}, 2.0: {}, 2.5: {}, 3.0: {}, 8.0: {}},
    ),
    Task(
        CENTRAL, "BLT, fixed order (zero-out)", "mnist_ftrl.toml",
        {1.0: {**BUFFERS, "training.learning_rate": 2.0}, 2.0: BUFFERS, 3.0: BUFFERS, 8.0: BUFFERS},
    ),
    Task(CENTRAL, "banded, cyclic Poisson", "mnist_cyclic.toml", {1.0: {}, 2.0: {}, 3.0: {}, 8.0: {}}),
    Task(
        FEDERATED, "DP-FedAvg, Poisson", "mnist_clients.toml",
        {1.0: {"privacy.clip_norm": 0.04, "training.learning_rate": 0.05}, 2.0: {}, 8.0: {"privacy.clip_norm": 0.15}},
    ),
    Task(
        FEDERATED, "banded, fixed rotation (zero-out)", "mnist_rotation.toml",
        {1.0: {"privacy.clip_norm": 0.02}, 2.0: {}, 8.0: {"privacy.clip_norm": 0.06, "training.learning_rate": 0.1}},
    ),
    Task(
        FASHION, "DP-SGD, Poisson", "fashion_mnist.toml", {1.0: {}, 2.0: {}, 3.0: {}, 8.0: {}},
        {3.0: f"89.7 %, {TRAMER_BONEH}"},
    ),
    Task(
        FASHION, "banded, fixed order (zero-out)", "mnist_ftrl.toml",
        {1.0: {**OTHER, "training.learning_rate": 2.0}, 2.0: OTHER, 3.0: OTHER, 8.0: OTHER},
    ),
    Task(
        FASHION, "BLT, fixed order (zero-out)", "mnist_ftrl.toml",
        {
            1.0: {**OTHER, **BUFFERS, "training.learning_rate": 2.0},
            **{epsilon: {**OTHER, **BUFFERS} for epsilon in (2.0, 3.0, 8.0)},
        },
    ),
    Task(FASHION, "banded, cyclic Poisson", "mnist_cyclic.toml", dict.fromkeys((1.0, 2.0, 3.0, 8.0), OTHER)),
    Task(
        CIFAR, "DP-SGD, Poisson", "cifar10.toml", dict.fromkeys((1.0, 2.0, 3.0, 8.0), LOSSLESS),
        {3.0: f"67.0 %, {TRAMER_BONEH}"},
    ),
    Task(CIFAR, "banded, fixed order (zero-out)", "cifar10_ftrl.toml", dict.fromkeys((1.0, 2.0, 3.0, 8.0), LOSSLESS)),
    Task(
        CIFAR, "BLT, fixed order (zero-out)", "cifar10_ftrl.toml",
        {epsilon: {**LOSSLESS, **BUFFERS} for epsilon in (1.0, 2.0, 3.0, 8.0)},
    ),
    Task(CIFAR, "banded, cyclic Poisson", "cifar10_cyclic.toml", dict.fromkeys((1.0, 2.0, 3.0, 8.0), LOSSLESS)),
    Task(
        CIFAR, "DP-SGD, Poisson, on patches", "cifar10_patches.toml",
        {
            1.0: {**LOSSLESS, "training.rounds": 40, "training.learning_rate": 6.0}, 3.0: LOSSLESS,
            8.0: {**LOSSLESS, "training.rounds": 100},
        },
        {3.0: f"69.3 %, a CNN on scattering, {TRAMER_BONEH}"},
    ),
    Task(
        CIFAR, "no privacy", "cifar10.toml",
        {math.inf: {**LOSSLESS, "training.learning_rate": 0.001, "training.rounds": 200}},
    ),
    Task(
        "CIFAR-10 (lossy copy), each image a unit", "DP-SGD, Poisson", "cifar10.toml", {1.0: {}, 2.0: {}, 3.0: {}, 8.0: {}},
        {3.0: f"67.0 % on the lossless images, {TRAMER_BONEH}"},
    ),
    Task("CIFAR-10 (lossy copy), each image a unit", "banded, cyclic Poisson", "cifar10_cyclic.toml", {3.0: {}}),
    Task(
        "CIFAR-10 (lossy copy), each image a unit", "no privacy", "cifar10.toml",
        {math.inf: {"training.learning_rate": 0.001, "training.rounds": 200}},
    ),
)  # fmt: skip
# By the ending of the file's name: title, what stands before the mechanisms of a task, and published accuracies at epsilon 3.
PICTURES: dict[str, tuple[str, dict[str, str], dict[str, float]]] = {
    "": (
        "MNIST, linear model on scattering features",
        {CENTRAL: "central: ", FEDERATED: "1,000 clients: "},
        {"Tramèr and Boneh 2021": 0.987},
    ),
    "_fashion_mnist": (
        "Fashion-MNIST, linear model on scattering features", {FASHION: ""}, {"Tramèr and Boneh 2021": 0.897},
    ),
    "_cifar10": (
        "CIFAR-10, linear model on scattering features or patches", {CIFAR: ""},
        {"Tramèr and Boneh 2021, linear": 0.67, "their CNN": 0.693},
    ),
}  # fmt: skip
QUICK = {
    "data.name": "digits", "training.rounds": 4, "training.evaluate_every": 4, "training.cohort_size": None,
    "participation.epochs": None, "participation.rounds_per_epoch": None, "participation.cycle_length": None,
    "privacy.mode": "dp-fedavg", "privacy.sampling": None, "privacy.strategy": None, "privacy.bands": None,
    "privacy.epsilon": 50.0,
}  # fmt: skip


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation in percent, and of how many seeds."""
    if not values:
        return "not computed"
    deviation = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 2 else ""
    return f"{100 * statistics.mean(values):.2f}{deviation} % ({len(values)})"


def table(tasks: Sequence[Task], runs: Runs, seeds: int, quick: Settings) -> str:
    """Under the name of each task a table, with a row for each mechanism and epsilon."""
    header = ("epsilon", "mechanism", "accuracy (seeds)", "one core", "`hubbub train examples/records/…`", "published")
    parts = []
    for name, same in groupby(tasks, lambda task: task.name):
        rows = []
        for task, epsilon in [(row, epsilon) for row in same for epsilon in row.changes]:
            tests = task.tests(epsilon, seeds, quick)
            seconds = [record["cpu_seconds"] for settings in tests if (record := runs.get(settings)) is not None]
            took = f"{statistics.median(seconds):.0f} s" if seconds else ""
            budget = "∞" if math.isinf(epsilon) else f"{epsilon:g}"
            accuracy, published = spread(accuracies(runs, tests)), task.published.get(epsilon, "")
            rows.append((budget, task.mechanism, accuracy, took, task.command(epsilon), published))
        parts.append(f"### {name}\n\n{markdown(header, rows)}")
    return "\n\n".join(parts)


def main() -> None:
    arguments = parsed(parser(__doc__.splitlines()[0], "records.json", "records.png"))
    tasks, quick = (TASKS[:1], QUICK) if arguments.quick else (TASKS, {})
    runs = Runs(arguments.results)
    if not arguments.table:
        wanted = [task.tests(epsilon, arguments.seeds, quick) for task in tasks for epsilon in task.changes]
        runs.finish([settings for tests in wanted for settings in tests], arguments)
    show("records", table(tasks, runs, arguments.seeds, quick), arguments)
    for ending, (title, shown, published) in PICTURES.items():
        curves = {
            f"{shown[task.name]}{task.mechanism}": {
                epsilon: found
                for epsilon in task.changes
                if len(found := accuracies(runs, task.tests(epsilon, arguments.seeds, quick))) >= min(3, arguments.seeds)
            }
            for task in tasks
            if task.name in shown and math.inf not in task.changes
        }
        points = {f"published: {name} (see text)": {3.0: [value]} for name, value in published.items()}
        file = arguments.picture.with_stem(arguments.picture.stem + ending)
        draw(file, {**curves, **points}, title, "epsilon at delta 1e-5", "test accuracy", share=True)


if __name__ == "__main__":
    main()
