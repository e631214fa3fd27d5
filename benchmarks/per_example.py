"""Gradients of single examples, and sums of clipped ones, beside Opacus, opake and plain ``vmap(grad)``.

The network is the usual one for private training on CIFAR-10 (Papernot et al. 2021, "Tempered Sigmoid Activations for Deep
Learning with Differential Privacy", https://arxiv.org/abs/2007.14191): six convolutions of 32, 32, 64, 64, 128 and 128
channels, three poolings, and dense layers of 128 and 10, with tanh; 550,570 parameters. Both sides make every example's own
gradient by every parameter, on one thread: 500 at a time for Opacus, as a step of that size asks of it, and in the batches that
ours takes by itself.

opake hands out the sum of clipped gradients, and ours is made of the rounded ones that a release sums. It takes 20 examples at
a time, the cheapest for it of 10, 20, 50, 100 and all.
"""

import warnings
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import numpy.typing as npt
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

import _runner
from hubbub.noise.lattice import Lattice
from hubbub.training import ExamplePopulation
from hubbub.training.per_example import Chosen, ExampleGradients

Vector = npt.NDArray[np.floating]

BATCH, CLIP_NORM = 500, 0.5
OPAKE_BATCH = 20
GOAL, LATTICE_GOAL = 1.5, 1.0
# Of float32 sums in another order.
TOLERANCE = 1e-4


def cifar_cnn() -> nn.Module:
    def block(inner: int, outer: int) -> list[nn.Module]:
        layers = (nn.Conv2d(inner, outer, 3, padding=1), nn.Tanh(), nn.Conv2d(outer, outer, 3, padding=1), nn.Tanh())
        return [*layers, nn.MaxPool2d(2)]

    dense = (nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))
    return nn.Sequential(*block(3, 32), *block(32, 64), *block(64, 128), *dense)


def images() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return cifar_cnn(), torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))


def by_opacus(module: GradSampleModule, inputs: torch.Tensor, targets: torch.Tensor) -> Vector:
    """Each example's gradient; only the first and the last one's are handed out, so that no copy is measured."""
    for parameter in module.parameters():
        parameter.grad = parameter.grad_sample = None
    F.cross_entropy(module(inputs), targets).backward()
    ends = [p.grad_sample[[0, -1]].flatten(1) for p in module.parameters()]
    return torch.cat(ends, dim=1).numpy()


def by_vmap(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> Vector:
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(module, values, (x[None],)), y[None])

    ends = []
    for start in range(0, len(inputs), 20):
        part = slice(start, start + 20)
        found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs[part], targets[part])
        # As flat vectors, as ours are.
        ends += [torch.cat([g.flatten(1) for g in found.values()], dim=1)[[0, -1]]]
    return torch.stack([ends[0][0], ends[-1][1]]).numpy()


def by_us(gradients: ExampleGradients, inputs: torch.Tensor, targets: torch.Tensor) -> Vector:
    ends = [rows[[0, -1]] for rows, _ in gradients.rows(Chosen(inputs, targets, range(len(inputs)), int))]
    return torch.stack([ends[0][0], ends[-1][1]]).numpy()


def gradients_rows(seconds: float) -> list[_runner.Row]:
    warnings.simplefilter("ignore")
    module, inputs, targets = images()
    ours = ExampleGradients(module, F.cross_entropy)
    hooks, functorch = (GradSampleModule(deepcopy(module), force_functorch=force) for force in (False, True))
    peers: dict[str, Callable[[], Vector]] = {
        "opacus, hooks": lambda: by_opacus(hooks, inputs, targets),
        "opacus, functorch": lambda: by_opacus(functorch, inputs, targets),
        "torch, vmap(grad), 20 at a time": lambda: by_vmap(module, inputs, targets),
    }
    return [
        _runner.compare(
            f"each gradient of {BATCH} images, {ours.dim:,} parameters; {name}",
            lambda: by_us(ours, inputs, targets),
            peer,
            seconds=seconds,
            tolerance=TOLERANCE,
            goal=1.0 if name.startswith("torch") else GOAL,
        )
        for name, peer in peers.items()
    ]


def compare_sums(
    name: str, population: ExamplePopulation, module: nn.Module, peer: Callable[[], Vector], goal: float, seconds: float
) -> _runner.Row:
    return _runner.compare(
        f"clipped sum of {name}",
        lambda: population.collect(population.clients, module, CLIP_NORM, 0).open(None).numpy(),
        peer,
        seconds=seconds,
        tolerance=TOLERANCE,
        goal=goal,
    )


def opake_rows(seconds: float) -> list[_runner.Row]:
    from opake.dpsgd.clipping import clipped_grad

    warnings.simplefilter("ignore")
    module, inputs, targets = images()
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    population = ExamplePopulation(inputs, targets, F.cross_entropy)

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(module, values, (x[None],)), y[None])

    clipped, state = clipped_grad(loss, clipping_norm=CLIP_NORM, batch_argnums=(1, 2), microbatch_size=OPAKE_BATCH)

    def by_opake() -> Vector:
        total, _ = clipped(parameters, inputs, targets, state=state)
        return -torch.cat([g.reshape(-1) for g in total.pytree.values()]).numpy()

    return [compare_sums(f"{BATCH} gradients, 550,570 parameters; opake", population, module, by_opake, 1.0, seconds)]


def lattice_rows(seconds: float) -> list[_runner.Row]:
    torch.set_num_threads(1)
    lattice, found = Lattice(1.0), []
    for count, dim in ((1000, 101_770), (500, 550_570)):
        # As many rows as fit into memory beside the rest; they are encoded again and again.
        rows = 0.01 * torch.randn(50, dim, generator=torch.Generator().manual_seed(0))

        def together(rows: torch.Tensor = rows, times: int = count // 50) -> Vector:
            total = torch.zeros(rows.shape[1], dtype=torch.int64)
            for _ in range(times):
                lattice.encode_rows(rows, total)
            return total.numpy()

        def one_by_one(rows: torch.Tensor = rows, times: int = count // 50) -> Vector:
            total = torch.zeros(rows.shape[1], dtype=torch.int64)
            for _ in range(times):
                for row in rows:
                    total += lattice.encode(row)[0]
            return total.numpy()

        name = f"{count:,} gradients of {dim:,} numbers on the lattice; peer: encode, one by one"
        found.append(_runner.compare(name, together, one_by_one, seconds=seconds, tolerance=0.0, goal=LATTICE_GOAL))
    return found


if __name__ == "__main__":
    _runner.main(__doc__, gradients_rows, opake_rows, lattice_rows)
