"""Modules that use their parameters in every way there is, each with inputs of its kind."""

import itertools
from collections.abc import Callable

import torch
from torch import nn

Made = tuple[nn.Module, torch.Tensor, torch.Tensor]


class Tied(nn.Module):
    """An embedding whose table is the output layer's weight, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 6)
        self.inner = nn.Linear(6, 6)
        self.out = nn.Linear(6, 3)
        self.out.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.inner(self.table(x))).mean(dim=1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.attention(x, x, x, need_weights=False)[0].mean(dim=1))


def forks() -> nn.Module:
    """Asks the example what to do."""
    module = nn.Linear(4, 3)
    module.register_forward_hook(lambda _, given, made: made if float(given[0].sum()) > 0 else -made)
    return module


def counts() -> nn.Module:
    """Counts its calls, and so has another gradient each time."""
    module, calls = nn.Linear(4, 3), itertools.count(1)
    module.register_forward_hook(lambda *called: called[2] * (1 + 1e-6 * next(calls)))
    return module


class Mixes(nn.Linear):
    """Keeps what it saw last, and adds it to what comes next."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.last = torch.zeros(1, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made, self.last = super().forward(x + self.last), x.detach()
        return made


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(144, 3),
    )  # fmt: skip


def _norms() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.PReLU(), nn.Linear(8, 3)
    )


def _frozen() -> nn.Module:
    module = _network()
    module[0].weight.requires_grad_(False)
    module[3].bias.requires_grad_(False)
    return module


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3)), (4,)),
    "network": (_network, (2, 6, 6)),
    "sequence": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2), nn.Flatten(), nn.Linear(12, 3)), (6, 4)),
    "norms": (_norms, (2, 6, 6)),
    "frozen": (_frozen, (2, 6, 6)),
    "tied": (Tied, (5,)),
    "attention": (Attention, (5, 4)),
    "instance norm": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2), nn.Flatten(), nn.Linear(6, 3)),
        (4,),
    ),
    "batch norm of one": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten(), nn.Linear(48, 3)),
        (2, 6, 6),
    ),
}


def made(name: str, examples: int) -> Made:
    """A module, inputs and targets, each time the same."""
    make, shape = MODULES[name]
    torch.manual_seed(0)
    module = make()
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(examples, *shape, generator=generator)
    if name == "tied":
        inputs = torch.randint(0, 3, (examples, *shape), generator=generator)
    return module, inputs, torch.randint(0, 3, (examples,), generator=generator)
