"""Adapters of a frozen base that several processes share: FSDP2 shards it, and only the adapters are trained, privately.

Every image is private. The base here is a small one of random weights; put your own in its place, which FSDP gathers layer by
layer. ``ReleasePath`` sees the gradients of the adapters alone, so that it does not matter how the base is kept.

    torchrun --nproc-per-node 2 examples/sharded_base.py
    python examples/sharded_base.py    # the same sums, made by one process that holds all of the base
"""

from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub import accounting
from hubbub.datasets import digits
from hubbub.ledger.promise import Promise
from hubbub.mechanism.participation import FixedEpochs
from hubbub.mechanism.strategies import toeplitz
from hubbub.noise.lattice import Lattice
from hubbub.training import LatticeSum, Ranks, ReleasePath
from hubbub.training.ranks import fingerprint

EPOCHS, STEPS, CLIP_NORM, DELTA = 4, 8, 1.0, 1e-4


class Adapted(nn.Module):
    """A frozen layer with a trained adapter of low rank (Hu et al. 2021, https://arxiv.org/abs/2106.09685)."""

    def __init__(self, layer: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs) + inputs @ self.down.T @ self.up.T


def shard(model: nn.Module, size: int) -> None:
    """Leave each rank its part of every frozen layer."""
    mesh = init_device_mesh("cpu", (size,))
    for part in model.modules():
        if isinstance(part, Adapted):
            fully_shard(part.layer, mesh=mesh)


def main() -> None:
    torch.set_num_threads(1)
    data, rounds, lattice = digits.load(), EPOCHS * STEPS, Lattice(CLIP_NORM)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), Adapted(nn.Linear(64, 512)), nn.ReLU(), Adapted(nn.Linear(512, 10)))
    adapters = [p for p in model.parameters() if p.requires_grad]
    dim = sum(p.numel() for p in adapters)
    # One rank, unless a launcher started several processes: then all of them execute this program.
    ranks = Ranks.launched()
    if ranks.size > 1:
        shard(model, ranks.size)
    optimizer = torch.optim.SGD(adapters, lr=1.0, momentum=0.9)

    participation = FixedEpochs(EPOCHS, rounds_per_epoch=STEPS)
    mechanism = accounting.calibrate(toeplitz.square_root(rounds, bands=STEPS), participation, epsilon=8.0, delta=DELTA)
    promise = Promise(rounds, mechanism, privacy_unit="example", delta=DELTA, settings={"clip_norm": CLIP_NORM})
    order = torch.randperm(len(data.train_inputs))
    path = ReleasePath(promise, dim, clients=len(order), ranks=ranks)
    path.start()

    def add(number: int | None, total: torch.Tensor) -> None:
        """Add the gradient of an image; without one go through the base all the same, since the other ranks wait there."""
        image = slice(number or 0, (number or 0) + 1)
        loss = F.cross_entropy(model(data.train_inputs[image]), data.train_targets[image])
        gradients = torch.autograd.grad(loss, adapters)
        if number is not None:
            # Clips the vector, and rounds it to whole steps.
            total += lattice.encode(torch.cat([gradient.flatten() for gradient in gradients]))[0]

    for step in range(rounds):
        batch = order[step % STEPS :: STEPS].tolist()
        # As many passes on every rank: FSDP gathers the base for all of them at once.
        passes = [*batch, *[None] * (-len(batch) % ranks.size)]
        zero = torch.zeros(dim, dtype=torch.int64)
        summed, _ = ranks.summed(
            [partial(add, number) for number in passes], zero, partial(fingerprint, step, batch, *adapters)
        )
        total = LatticeSum(summed, lattice, {})
        ticket = path.begin(batch, total, CLIP_NORM)
        release = total.open(path.row(ticket))
        path.commit(ticket, release)
        # From here on nothing is secret. The divisor is a fixed number, not how many came.
        mean = (release / (len(order) / STEPS)).float().split([p.numel() for p in adapters])
        for adapter, gradient in zip(adapters, mean, strict=True):
            adapter.grad = gradient.view_as(adapter)
        optimizer.step()
        if step % STEPS == STEPS - 1:
            # On every rank, as each pass.
            with torch.no_grad():
                right = model(data.test_inputs).argmax(dim=1) == data.test_targets
            if ranks.leads:
                spent = path.ledger.spent(DELTA).epsilon
                print(f"epoch {step // STEPS + 1}: accuracy {right.double().mean():.1%}, epsilon {spent:.2f}")
    if ranks.leads:
        print(path.ledger.spent(DELTA).sentence())


if __name__ == "__main__":
    main()
