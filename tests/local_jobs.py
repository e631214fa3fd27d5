"""Clients of uneven sizes, and modules of many kinds of layers, for whoever trains them."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.models import Cnn, Mlp
from hubbub.training.simulation.local import Job

IMAGES, SENTENCES = (1, 12, 12), (9,)
# So that last batches are whole, ragged, single, and not there at all.
SIZES = (13, 20, 7, 0, 11, 1, 20)


def jobs(shape: tuple[int, ...], *, sizes: Sequence[int] = SIZES, classes: int = 10, sequences: bool = False) -> list[Job]:
    generator = torch.Generator().manual_seed(5)
    found = []
    for i, size in enumerate(sizes):
        if sequences:
            inputs = torch.randint(classes, (size, *shape), generator=generator)
            targets = torch.randint(classes, (size, *shape), generator=generator)
            # Sentences end somewhere.
            targets[:, shape[0] - i % 3 :] = -100
        else:
            inputs = torch.randn(size, *shape, generator=generator)
            targets = torch.randint(classes, (size,), generator=generator)
        found.append(Job(i, inputs, targets, seed=100 + i, round_index=2))
    return found


class Layers(nn.Module):
    """Convolutions with and without groups, strides and biases, norms, both dropouts, a frozen layer, a shared one, a view."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Conv2d(1, 4, 3, padding=1)
        self.frozen.requires_grad_(False)
        self.first = nn.Conv2d(4, 6, 3, padding="same", bias=False)
        self.norm = nn.GroupNorm(2, 6)
        self.second = nn.Conv2d(6, 8, 3, stride=2, groups=2)
        self.features, self.single = nn.Dropout2d(0.2), nn.Dropout(0.3)
        self.shared = nn.Linear(8, 8)
        # One layer by two names, and one weight in two layers.
        self.again = self.shared
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.shared.weight
        self.layer_norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 10, bias=False)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm(self.first(F.relu(self.frozen(x)))))
        x = self.features(F.avg_pool2d(F.max_pool2d(F.relu(self.second(x)), 2), kernel_size=1))
        x = F.adaptive_avg_pool2d(x, 1)
        x = x.view(x.size(0), -1)
        x = self.shared(torch.tanh(self.again(x))) + self.tied(x)
        return self.last(self.single(self.layer_norm(x))) * self.scale


class Standardizes(nn.Linear):
    """Makes what is not a number of an example that is zero everywhere."""

    def __init__(self, features: int = 144) -> None:
        super().__init__(features, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return super().forward((x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True))


class Tied(nn.Module):
    """One large matrix as a layer in two places, of rows and of sequences of rows, and once past all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(144, 144)
        self.out = nn.Linear(144, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.inner(x.flatten(1)).relu()
        pairs = self.inner(torch.stack([rows, rows.roll(1, dims=1)], dim=1)).relu().mean(dim=1)
        return self.out(pairs + 0.1 * rows @ self.inner.weight)


class Factors(nn.Module):
    """Large layers whose rows are parameters themselves, or a part of some."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(6, 144))
        self.inner = nn.Linear(144, 144, bias=False)
        self.left = nn.Parameter(torch.randn(10, 72) / 9)
        self.right = nn.Parameter(torch.randn(144, 72) / 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys = self.inner(self.queries[1:])
        seen = torch.softmax(x.flatten(1) @ keys.T / 12, dim=1) @ keys
        return F.linear(x.flatten(1) + seen, F.linear(self.left, self.right))


class OneDimensional(nn.Module):
    """A convolution over time, attention by hand, an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.convolution = nn.Conv1d(6, 6, 3, padding=1)
        self.attention = nn.Linear(6, 18)
        self.head = nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.convolution(self.embedding(x).transpose(1, 2)).transpose(1, 2)
        query, key, value = self.attention(h).chunk(3, dim=-1)
        weights = (query @ key.transpose(1, 2) / math.sqrt(6)).softmax(dim=-1)
        return self.head(h + weights @ value).transpose(1, 2)


class Lstm(nn.Module):
    def __init__(self, *, layers: int = 1, bidirectional: bool = False, bias: bool = True, batch_first: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 5)
        self.lstm = nn.LSTM(5, 6, layers, bias=bias, bidirectional=bidirectional, batch_first=batch_first)
        self.head = nn.Linear(12 if bidirectional else 6, 10)
        self.batch_first = batch_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(x)
        h, (last, _) = self.lstm(embedded if self.batch_first else embedded.transpose(0, 1))
        h = h if self.batch_first else h.transpose(0, 1)
        return self.head(h + last.sum(dim=0).repeat(1, h.shape[-1] // 6).unsqueeze(1)).transpose(1, 2)


MODELS: dict[str, tuple[Callable[[], nn.Module], list[Job]]] = {
    "layers": (Layers, jobs(IMAGES)),
    "cnn": (lambda: Cnn((1, 28, 28), 10), jobs((1, 28, 28))),
    "standardizes": (Standardizes, jobs(IMAGES)),
    "mlp": (lambda: Mlp(IMAGES, 10), jobs(IMAGES)),
    "tied": (Tied, jobs(IMAGES)),
    "factors": (Factors, jobs(IMAGES)),
    "one dimension": (OneDimensional, jobs(SENTENCES, sequences=True)),
    "lstm": (Lstm, jobs(SENTENCES, sequences=True)),
}
