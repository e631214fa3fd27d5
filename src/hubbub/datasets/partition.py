"""How a data set is dealt to clients."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from hubbub._checks import integer, positive
from hubbub.datasets.dataset import Dataset
from hubbub.errors import DataError

__all__ = ["by_user", "dealt", "dirichlet", "iid"]


def iid(examples: int, clients: int, seed: int) -> list[np.ndarray]:
    """Equal shares at random: the indices of each client's examples.

    Args:
        examples: How many there are.
        clients: From 1 to ``examples``.
        seed: Of the shuffle.

    Raises:
        ValueError: More clients than examples.
    """
    integer("clients", clients, at_least=1, at_most=examples)
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(examples), clients)]


def dirichlet(targets: torch.Tensor, clients: int, alpha: float, seed: int) -> list[np.ndarray]:
    """Shares of equal size whose label mixtures are drawn from a Dirichlet distribution.

    Args:
        targets: ``(examples,)`` class numbers.
        clients: From 1 to the number of examples.
        alpha: Concentration above 0: small means few labels a client, large means nearly IID.
        seed: Of the mixtures and of the deal.

    Raises:
        ValueError: More clients than examples, or alpha not above 0.
        DataError: Examples have no label of their own, but one at each place of a sequence.

    Source: Hsu, Qi and Brown 2019, https://arxiv.org/abs/1909.06335.
    """
    integer("clients", clients, at_least=1, at_most=len(targets))
    if targets.ndim != 1:
        raise DataError(
            "partition = 'dirichlet': deals examples by their label, but these are sequences with a target at each of "
            f"{targets.shape[1]} places; use 'user' or 'iid'"
        )
    generator = np.random.default_rng(seed)
    labels = targets.numpy()
    stacks = [list(generator.permutation(np.flatnonzero(labels == c))) for c in range(int(labels.max()) + 1)]
    wanted = generator.dirichlet(np.full(len(stacks), positive("alpha", alpha)), size=clients)
    parts: list[np.ndarray] = []
    for client, share in enumerate(wanted):
        size = len(labels) * (client + 1) // clients - len(labels) * client // clients
        mine: list[int] = []
        for _ in range(size):
            left = np.array([len(stack) > 0 for stack in stacks])
            weights = np.where(left, share + 1e-12, 0)
            mine.append(int(stacks[generator.choice(len(stacks), p=weights / weights.sum())].pop()))
        parts.append(np.sort(np.array(mine)))
    return parts


def by_user(users: np.ndarray | None) -> list[np.ndarray]:
    """One client for each person in the data.

    Raises:
        DataError: The data do not say whose each example is.
    """
    if users is None:
        raise DataError("partition = 'user': this data set does not say whose each example is; use 'iid' or 'dirichlet'")
    _, owner = np.unique(users, return_inverse=True)
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner))[:-1])


def dealt(dataset: Dataset, parts: Sequence[np.ndarray]) -> tuple[Dataset, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The data set with its training examples client by client, and what each client has: views, so that data are held once.

    Args:
        dataset: Any.
        parts: The indices of each client's examples, each index once in all.

    Returns:
        The reordered data set, the given one itself where nothing moves; and each client's inputs and targets, in the order
        of its indices.
    """
    order, sizes = np.concatenate(parts), [len(part) for part in parts]
    if not np.array_equal(order, np.arange(len(dataset.train_inputs))):
        dataset = replace(
            dataset,
            train_inputs=dataset.train_inputs[order],
            train_targets=dataset.train_targets[order],
            users=None if dataset.users is None else dataset.users[order],
        )
    return dataset, list(zip(dataset.train_inputs.split(sizes), dataset.train_targets.split(sizes), strict=True))
