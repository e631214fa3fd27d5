"""Central training on MNIST at equal epsilon: DP-SGD, correlated noise in a fixed order, independent noise in the same order.

Each of 60,000 images is a unit of privacy by itself; MLP 784-128-10, batches of 1,000, 10 epochs, momentum 0.9, clip norm 1,
delta 1e-5. DP-SGD draws its batches by coins, which amplifies privacy; the two others visit every image once an epoch, in an
order that stays, and promise no more than that. The learning rate of each method and epsilon is the best of a grid on 6,000
held-out *training* images with a seed that is not used again; the table is made of three other seeds.

    python examples/headlines/mnist_central.py --data FOLDER_WITH_MNIST_NPZ

The noise is that of a simulation: from a known seed, of the same law as that of a release. Finished runs are kept, so that an
interrupted script goes on where it was.
"""

from collections.abc import Mapping

from _comparison import Comparison
from _runs import Runs, Settings, parsed, parser, show
from torch import nn

from hubbub.models import Mlp

GRIDS = {
    "DP-SGD, Poisson": (0.1, 0.2, 0.4, 0.8),
    "banded, fixed order": (0.2, 0.4, 0.8, 1.6, 3.2),
    "independent, fixed order": (0.025, 0.05, 0.1, 0.2, 0.4),
}
COMMON = {
    "training.momentum": 0.9,
    "privacy.unit": "example",
    "privacy.noise": "simulation",
    "privacy.clip_norm": 1.0,
    "model.name": "mnist_central:mlp_128",
}


def mlp_128(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network of 101,770 parameters."""
    return Mlp(shape, classes, hidden=128)


def methods(batch: int, epochs: int, steps: int) -> Mapping[str, Settings]:
    """What each method adds: batches of so many by coins, or each example once an epoch of so many steps."""
    order = {"privacy.mode": "dp-ftrl", "participation.epochs": epochs, "participation.rounds_per_epoch": steps}
    return {
        "DP-SGD, Poisson": {"privacy.mode": "dp-fedavg", "training.cohort_size": batch},
        "banded, fixed order": {**order, "privacy.strategy": "optimal-toeplitz"},
        "independent, fixed order": {**order, "privacy.strategy": "identity"},
    }


def full() -> Comparison:
    """The comparison that the docs show."""
    base = {"data.name": "mnist", "training.rounds": 600, "training.evaluate_every": 60, "privacy.delta": 1e-5}
    return Comparison({**COMMON, **base}, methods(1000, 10, 60), GRIDS, (1.0, 2.0, 4.0, 8.0))


def quick() -> Comparison:
    """Eight steps on small images."""
    base = {"data.name": "digits", "training.rounds": 8, "training.evaluate_every": 4, "privacy.delta": 1e-4}
    return Comparison({**COMMON, **base}, methods(360, 2, 4), dict.fromkeys(GRIDS, (0.4,)), (2.0, 8.0))


def main() -> None:
    made = parser(__doc__.splitlines()[0], "mnist_central.json", "mnist_central.png")
    made.add_argument("--epsilons", type=float, nargs="+", help="only these, in this order")
    arguments = parsed(made)
    comparison, runs = quick() if arguments.quick else full(), Runs(arguments.results)
    if not arguments.table:
        comparison.finish(runs, arguments)
    show("mnist_central", comparison.table(runs, arguments.seeds), arguments)
    comparison.draw(arguments.picture, runs, arguments.seeds, "MNIST, MLP, central training", "example")


if __name__ == "__main__":
    main()
