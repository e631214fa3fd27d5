"""CIFAR-10: correlated noise over 20 epochs against DP-SGD with amplified privacy.

Each image is a unit of privacy by itself. Batches of 500, 20 epochs of 100 steps, momentum 0.95, the learning rate falling over
the last quarter to a twentieth, clip norm 1, delta 1e-5. DP-SGD draws its batches by coins; the others visit every image once
an epoch in an order that stays, with noise for what momentum and cooldown make of the steps. Two parts:

    noise   how much noise is in the trained model, without training: DP-SGD's root mean squared error over each mechanism's
    train   accuracies, learning rates chosen on 5,000 held-out *training* images with a seed that is not used again

    python examples/headlines/cifar10.py --device cuda          # in full; a processor would take days
    python examples/headlines/cifar10.py --reduced              # 5 epochs of 100 steps, a small network on images of half size

With ``cifar10.npz``, whose images are JPEG files, accuracies are not those of the published images.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _comparison import Comparison, draw
from _runs import Runs, Settings, layer, markdown, parsed, parser, show
from torch import nn

from hubbub import factorization
from hubbub._util.files import write_atomic
from hubbub.accounting import calibrate
from hubbub.experiment.config import resolve
from hubbub.experiment.planner import planned
from hubbub.mechanism import utility
from hubbub.mechanism.participation import FixedEpochs
from hubbub.mechanism.strategies import Strategy
from hubbub.mechanism.workloads import momentum
from hubbub.training import ServerOptimizer

EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
PARTS = ("noise", "train")
IMAGES, STEPS = 50_000, 100
MOMENTUM, COOLDOWN, COOLDOWN_TO = 0.95, 0.25, 0.05
DP_SGD = "DP-SGD, Poisson"
STRATEGIES = {
    "tree": {"privacy.strategy": "tree"},
    "tree, best decoder": {"privacy.strategy": "tree-full"},
    "BLT, 4 buffers": {"privacy.strategy": "cifar10:buffered"},
    "banded": {"privacy.strategy": "banded"},
    "16 bands, amplified": {
        "privacy.strategy": "banded",
        "privacy.bands": 16,
        "privacy.sampling": "cyclic-poisson",
        "participation.cycle_length": 16,
    },
    "dense": {"privacy.strategy": "cifar10:of_all_rows"},
}
RATES = {DP_SGD: (0.1, 0.2, 0.4), "tree": (0.05, 0.1, 0.2)}
CORRELATED_RATES = (0.2, 0.4, 0.8)


def buffered(rounds: int) -> Strategy:
    """The BLT for momentum at one learning rate: for one that falls, the best strategy is not Toeplitz, as every BLT is."""
    participation = FixedEpochs(rounds // STEPS, STEPS)
    return factorization.blt.optimize(momentum(rounds, MOMENTUM), buffers=4, participation=participation).strategy


def of_all_rows(rounds: int) -> Strategy:
    """The dense strategy for the steps as they cool down, without momentum: with it no more than 1,000 rounds are optimized."""
    workload = ServerOptimizer("fedavg", cooldown=COOLDOWN, cooldown_to=COOLDOWN_TO).workload(rounds)
    return factorization.dense.optimize(workload, participation=FixedEpochs(rounds // STEPS, STEPS)).strategy


class SmallCnn(nn.Sequential):
    """Two convolutions on images of half the size, and two dense layers with tanh."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        channels, height, width = shape
        super().__init__(
            nn.AvgPool2d(2),
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (height // 8) * (width // 8), 64),
            nn.Tanh(),
            nn.Linear(64, classes),
        )


def base(epochs: int, steps: int, **further: Any) -> Settings:
    """Settings of all runs."""
    return {
        "training.rounds": epochs * steps,
        "training.evaluate_every": steps,
        "training.momentum": MOMENTUM,
        "training.cooldown": COOLDOWN,
        "training.cooldown_to": COOLDOWN_TO,
        "privacy.unit": "example",
        "privacy.noise": "simulation",
        "privacy.clip_norm": 1.0,
        "privacy.delta": 1e-5,
        "data.name": "cifar10",
        "model.name": "cifar-cnn",
        **further,
    }


def methods(batch: int, epochs: int, steps: int, names: tuple[str, ...]) -> Mapping[str, Settings]:
    """What each method adds."""
    found: dict[str, Settings] = {DP_SGD: {"privacy.mode": "dp-fedavg", "training.cohort_size": batch}}
    for name in names:
        random = "privacy.sampling" in STRATEGIES[name]
        fixed = {"participation.epochs": epochs, "participation.rounds_per_epoch": steps}
        order = {"training.cohort_size": batch} if random else fixed
        found[name] = {"privacy.mode": "dp-ftrl", **order, **STRATEGIES[name]}
    return found


def comparison(arguments: argparse.Namespace) -> Comparison:
    """In full; reduced; or only to show that all works."""
    grids = {**dict.fromkeys(STRATEGIES, CORRELATED_RATES), **RATES}
    if arguments.quick:
        small = base(2, 4, **{"data.name": "digits", "model.name": "mlp"})
        return Comparison(small, methods(360, 2, 4, ("tree", "banded")), dict.fromkeys(grids, (0.4,)), (2.0, 8.0))
    if arguments.reduced:
        reduced = base(5, STEPS, **{"model.name": "cifar10:SmallCnn"})
        return Comparison(reduced, methods(500, 5, STEPS, ("tree", "banded")), grids, (2.0, 8.0))
    return Comparison(base(20, STEPS), methods(500, 20, STEPS, tuple(STRATEGIES)), grids, EPSILONS)


def noise(quick: bool, file: Path, *, compute: bool) -> dict[str, dict[str, float]]:
    """Root mean squared error of what the optimizer makes of the noise, by method and epsilon; kept as it comes."""
    epochs, steps, images = (2, STEPS, 2000) if quick else (20, STEPS, IMAGES)
    found: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}
    for method, settings in methods(images // steps, epochs, steps, tuple(STRATEGIES)).items():
        if method in found or not compute:
            continue
        plan = planned(
            resolve(layer({**base(epochs, steps), **settings, "privacy.epsilon": EPSILONS[0]})), images, allow_import=True
        )
        if plan.mechanism is None:
            raise SystemExit(f"{method}: has no noise")
        strategy, participation = plan.mechanism.strategy, plan.participation
        error = utility.root_mean_squared_error(plan.server.workload(plan.rounds), strategy)
        found[method] = {
            f"{epsilon:g}": calibrate(strategy, participation, epsilon=epsilon, delta=plan.delta).stddev * error
            for epsilon in EPSILONS
        }
        write_atomic(file, json.dumps(found, indent=1).encode(), mode=0o644)
        print(f"{method}: {found[method]}", flush=True)
    return found


def ratios(found: Mapping[str, Mapping[str, float]]) -> dict[str, dict[float, float]]:
    """How many times less noise each mechanism leaves in the model than DP-SGD does, by method and epsilon."""
    return {m: {float(epsilon): found[DP_SGD][epsilon] / value for epsilon, value in row.items()} for m, row in found.items()}


def noise_table(found: Mapping[str, Mapping[float, float]]) -> str:
    """The ratios as Markdown."""
    rows = [[method, *(f"{value:.2f}" for value in row.values())] for method, row in found.items()]
    return markdown(["DP-SGD's noise over that of", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)], rows)


def main() -> None:
    made = parser(__doc__.splitlines()[0], "cifar10.json", "cifar10.png")
    made.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS), help="only these")
    made.add_argument("--reduced", action="store_true", help="a small network on images of half size, 5 epochs, 2 epsilons")
    made.add_argument("--epsilons", type=float, nargs="+", help="train only at these, in this order")
    arguments = parsed(made)
    if "noise" in arguments.part:
        kept = arguments.results.with_name(f"{arguments.results.stem}_noise.json")
        found = noise(arguments.quick, kept, compute=not arguments.table)
        show("cifar10_noise", noise_table(ratios(found)), arguments)
        curves = {method: {epsilon: [ratio] for epsilon, ratio in row.items()} for method, row in ratios(found).items()}
        file = arguments.picture.with_stem(f"{arguments.picture.stem}_noise")
        draw(file, curves, "Noise in the trained model, DP-SGD's over each", "epsilon at delta 1e-5, example level", "ratio")
    if "train" in arguments.part:
        compared, runs = comparison(arguments), Runs(arguments.results)
        if not arguments.table:
            compared.finish(runs, arguments)
        show("cifar10_reduced" if arguments.reduced else "cifar10", compared.table(runs, arguments.seeds), arguments)
        compared.draw(arguments.picture, runs, arguments.seeds, title(arguments), "example")


def title(arguments: argparse.Namespace) -> str:
    """Of the picture: what was trained."""
    return "CIFAR-10, 5 epochs, small network on small images" if arguments.reduced else "CIFAR-10, 20 epochs"


if __name__ == "__main__":
    main()
