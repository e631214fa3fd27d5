"""Model, data, and how a client trains: nothing here knows of privacy."""

import functools

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

Examples = tuple[torch.Tensor, torch.Tensor]

TEST_EXAMPLES = 360


def new_model() -> nn.Module:
    """Two dense layers; the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@functools.cache
def digits() -> tuple[Examples, Examples]:
    """Training and test examples of scikit-learn's digits, shuffled once and for all."""
    pixels, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    train, test = order[TEST_EXAMPLES:], order[:TEST_EXAMPLES]
    return (inputs[train], targets[train]), (inputs[test], targets[test])


def examples_of(partition: int, partitions: int) -> Examples:
    """One client's share of the training examples."""
    (inputs, targets), _ = digits()
    return inputs[partition::partitions], targets[partition::partitions]


def train(model: nn.Module, examples: Examples, epochs: int, learning_rate: float) -> None:
    """A few epochs of SGD in batches of 8."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for _ in range(epochs):
        for inputs, targets in zip(*(part.split(8) for part in examples), strict=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()


def accuracy(model: nn.Module) -> float:
    """The part of the test examples that the model gets right."""
    _, (inputs, targets) = digits()
    with torch.no_grad():
        return float((model(inputs).argmax(dim=1) == targets).float().mean())
