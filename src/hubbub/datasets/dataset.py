"""Data sets as tensors: from other libraries' data sets, and partitioned among clients."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from hubbub._util.checks import integer, nearest, number, positive, shown
from hubbub.errors import DataError

# The target that torch.nn.functional.cross_entropy ignores by default.
IGNORED = -100


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples for classification: one class for each input, or for each place of a sequence.

    Args:
        train_inputs: ``(examples, *shape)``: floats, or integers from 0, such as characters.
        train_targets: Class numbers in int64, ``(examples,)``, or ``(examples, length)`` for sequences; there -100 is
            ignored, as after the end of a short sequence.
        test_inputs: Public test examples, as above.
        test_targets: As above.
        users: ``(examples,)``, the user of each example; ``None`` if unknown.
        declared_classes: Number of classes; by default one more than the largest test target.

    Raises:
        DataError: Lengths or shapes differ, an input is not finite, a label is unknown to the test data, or a sequence has
            no target.

    Example:
        >>> inputs, targets = torch.rand(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> data = Dataset(inputs, targets, inputs[:3], targets[:3])
        >>> data.shape, data.classes
        ((2,), 3)
    """

    train_inputs: torch.Tensor
    train_targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor
    users: np.ndarray | None = None
    declared_classes: int | None = None

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            inputs, targets = getattr(self, f"{part}_inputs"), getattr(self, f"{part}_targets")
            for name, given in (("inputs", inputs), ("targets", targets)):
                if not isinstance(given, torch.Tensor) or not given.ndim or given.layout != torch.strided or given.is_meta:
                    raise DataError(f"{part}_{name}: is {shown(given)}; it must be a tensor of examples, dense and in memory")
            if len(inputs) != len(targets) or not len(inputs):
                raise DataError(f"{part}: has {len(inputs)} inputs and {len(targets)} targets")
            _require_inputs(f"{part}_inputs", inputs)
            _require_targets(f"{part}_targets", targets)
        for part in ("inputs", "targets"):
            train, test = (getattr(self, f"{split}_{part}").shape[1:] for split in ("train", "test"))
            if train != test:
                raise DataError(f"train_{part}: have the shape {tuple(train)} each, test_{part} {tuple(test)}; they must agree")
        declared = self.declared_classes
        known = "the public test data know" if declared is None else f"declared_classes = {declared} means"
        for part in ("train", "test"):
            targets = getattr(self, f"{part}_targets")
            counted = targets[targets != IGNORED] if targets.ndim == 2 else targets
            lowest, highest = int(counted.min()), int(counted.max())
            if lowest < 0 or highest >= self.classes:
                raise DataError(
                    f"{part}_targets: run from {lowest} to {highest}, but {known} the classes 0 to {self.classes - 1} only"
                )
        if self.users is not None:
            _require_users(self.users, len(self.train_inputs))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def classes(self) -> int:
        """Number of classes, as declared or from the public test data: private labels must not shape a released model."""
        if self.declared_classes is not None:
            return integer("declared_classes", self.declared_classes, at_least=1)
        return int(self.test_targets.max()) + 1

    def without_test(self, validation: float, seed: int) -> "Dataset":
        """The training data with a held-out part of them in place of the test data, for choosing settings.

        Args:
            validation: The held-out share, strictly between 0 and 1.
            seed: Seed of the split.
        """
        number("validation", validation, lambda share: 0 < share < 1, "be above 0 and below 1")
        order = torch.randperm(len(self.train_inputs), generator=torch.Generator().manual_seed(seed))
        held = max(1, round(validation * len(order)))
        if held >= len(order):
            raise DataError(f"validation = {validation}: leaves 0 of {len(order)} examples to train on")
        rest, out = order[held:], order[:held]
        inputs, targets = self.train_inputs, self.train_targets
        users = None if self.users is None else self.users[rest.numpy()]
        return Dataset(inputs[rest], targets[rest], inputs[out], targets[out], users, self.classes)


def _require_users(users: np.ndarray, examples: int) -> None:
    if getattr(users, "shape", None) != (examples,):
        given = f"has the shape {users.shape}" if isinstance(users, np.ndarray) else f"is {shown(users)}"
        raise DataError(f"users: {given}; it must be an array of shape ({examples},)")
    if users.dtype.kind not in "iuU" and not all(isinstance(user, str) for user in users):
        raise DataError(f"users: are {users.dtype}; each must be an integer or a name, and none may be missing")


def _require_inputs(name: str, inputs: torch.Tensor) -> None:
    if not inputs.numel():
        raise DataError(f"{name}: have the shape {tuple(inputs.shape)}, which has no numbers")
    if inputs.dtype == torch.bool or inputs.is_complex():
        raise DataError(f"{name}: are {inputs.dtype}; they must be floats or integers")
    # One pass and no copy: NaN propagates to both bounds.
    lowest, highest = (bound.item() for bound in torch.aminmax(inputs))
    if inputs.is_floating_point():
        if not np.isfinite([lowest, highest]).all():
            raise DataError(f"{name}: holds a number that is not finite")
    elif lowest < 0:
        raise DataError(f"{name}: holds {lowest}; integers, such as characters, must count from 0")


def _require_targets(name: str, targets: torch.Tensor) -> None:
    if targets.dtype != torch.int64 or targets.ndim not in (1, 2):
        raise DataError(
            f"{name}: are {targets.dtype} of shape {tuple(targets.shape)}; they must be int64, a number or a row each"
        )
    if targets.ndim == 2 and not bool((targets != IGNORED).any(dim=1).all()):
        index = int((targets != IGNORED).any(dim=1).int().argmin())
        raise DataError(f"{name}[{index}]: is {IGNORED} everywhere, so it has no target; leave that example out")


_PIXELS = ("1", "L", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "LA")


class _Items(Protocol):
    """A sequence of examples: pairs (input, target), or mappings from column names."""

    def __len__(self) -> int:
        """Number of examples."""

    def __getitem__(self, index: int, /) -> Any:
        """One example."""


def from_examples(
    train: _Items,
    test: _Items,
    *,
    inputs: str = "image",
    targets: str = "label",
    users: str | Sequence[Any] | np.ndarray | None = None,
    transform: Callable[[Any], Any] | None = None,
    classes: int | None = None,
) -> Dataset:
    """A data set as tensors, from a torchvision or Hugging Face data set; every item is read once.

    Images of Pillow become floats from 0 to 1, ``(channels, height, width)``, as torchvision's ``ToTensor`` has them. Tensors,
    arrays, numbers and lists of numbers keep their shape: floats become float32, integers int64, bytes (uint8) floats
    from 0 to 1.

    Args:
        train: Pairs (input, target), as in torchvision, or mappings from column names, as in Hugging Face's ``datasets``.
        test: Public test examples, as above.
        inputs: The column of inputs, if items are mappings.
        targets: The column of class numbers, one for each example or, in sequences, at each place, if items are mappings.
        users: The column of users, or the user of each training example in order; ``None`` if unknown.
        transform: Applied to each input, such as a tokenizer; called once for each example, so random augmentation is drawn
            once.
        classes: Number of classes; by default one more than the largest test target.

    Raises:
        DataError: No length, a missing column, inputs of different shapes, or a target that is not an integer.

    Example:
        >>> pairs = [([0.0, 1.0], 0), ([1.0, 0.0], 1)]
        >>> from_examples(pairs, pairs, users=["ann", "bob"]).train_inputs
        tensor([[0., 1.],
                [1., 0.]])
    """
    column = users if isinstance(users, str) else None
    train_inputs, train_targets, named = _tensors("train", train, (inputs, targets, column), transform)
    test_inputs, test_targets, _ = _tensors("test", test, (inputs, targets, None), transform)
    owners: np.ndarray | None = None
    if users is not None:
        given = users if column is None else named
        if not len(given):
            raise DataError("users: is empty; each training example must have one")
        with suppress(ValueError):
            owners = np.array([user.item() if isinstance(user, torch.Tensor) else user for user in given])
        # Of names and NaN NumPy makes text, and of all unnamed examples one user.
        odd = [user for user in given if isinstance(user, float)]
        if odd or owners is None or owners.ndim != 1 or owners.dtype.kind not in "iuU":
            one = f"one is {shown(odd[0])}" if odd else f"the first is {shown(given[0])}"
            raise DataError(f"users: {one}; each must be a name or an integer")
    return Dataset(train_inputs, train_targets, test_inputs, test_targets, owners, classes)


def _tensors(
    name: str, items: _Items, columns: tuple[str, str, str | None], transform: Callable[[Any], Any] | None
) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
    """Inputs and targets of all items, and their entries in the third column, if given."""
    if isinstance(items, Mapping):
        raise DataError(f"{name}: is a mapping of {', '.join(map(str, items))}; give one split, such as dataset['train']")
    if not hasattr(items, "__len__"):
        raise DataError(f"{name}: is a {type(items).__name__} without a length, such as a stream; give a list of its examples")
    xs, ys, named = torch.empty(0), torch.empty(0), list[Any]()
    for index in range(count := len(items)):
        where = f"{name}[{index}]"
        x, y, user = _parts(items[index], where, columns)
        xs = _put(f"{name} inputs", xs, _input(x if transform is None else transform(x), where), index, count)
        ys = _put(f"{name} targets", ys, _target(y, where), index, count)
        named.append(user)
    return xs, ys, named


def _parts(item: Any, where: str, columns: tuple[str, str, str | None]) -> tuple[Any, Any, Any]:
    """Input, target and user of an item; the user is ``None`` without a column of users."""
    if isinstance(item, Mapping):
        known = [str(name) for name in item]
        for column in columns:
            if column is not None and column not in item:
                raise DataError(f"{where}: has no column {column!r}{nearest(column, known)}; there are {', '.join(known)}")
        inputs, targets, users = columns
        return item[inputs], item[targets], None if users is None else item[users]
    if columns[2] is not None:
        raise DataError(f"{where}: is a {type(item).__name__}, which has no column {columns[2]!r}; give users as a list")
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1], None
    raise DataError(f"{where}: is {shown(item)}; it must be a pair (input, target) or a mapping from column names")


def _put(name: str, stack: torch.Tensor, tensor: torch.Tensor, index: int, count: int) -> torch.Tensor:
    """The stack ``(count, *shape)`` of tensors of one shape and type, that of the first one, with one more in place."""
    if index == 0:
        stack = torch.empty((count, *tensor.shape), dtype=tensor.dtype)
    if (tensor.shape, tensor.dtype) != (stack.shape[1:], stack.dtype):
        raise DataError(
            f"{name}[{index}]: is {tensor.dtype} of shape {tuple(tensor.shape)}, the first is {stack.dtype} of "
            f"{tuple(stack.shape[1:])}; make all alike by transform"
        )
    stack[index] = tensor
    return stack


def _input(value: Any, where: str) -> torch.Tensor:
    mode = getattr(value, "mode", None)
    if isinstance(mode, str):
        if mode not in _PIXELS:
            raise DataError(f"{where}: is an image of mode {mode!r}; give transform = lambda image: image.convert('RGB')")
        pixels = np.array(value.convert("L") if mode == "1" else value)
        value = pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    tensor = _tensor(value, f"{where}: its input")
    if tensor.dtype == torch.uint8:
        return tensor.to(torch.float32) / 255
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def _target(value: Any, where: str) -> torch.Tensor:
    tensor = _tensor(value, f"{where}: its target")
    if tensor.is_floating_point() or tensor.ndim > 1:
        raise DataError(f"{where}: its target is {shown(value)}; it must be a class number, or a list of them for a sequence")
    return tensor.to(torch.int64)


def _tensor(value: Any, name: str) -> torch.Tensor:
    try:
        tensor = value.detach().cpu() if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} is {shown(value)}; it must be numbers in a regular shape: give transform") from error
    if tensor.is_complex():
        raise DataError(f"{name} is complex; it must be real numbers")
    return tensor


def iid(examples: int, clients: int, seed: int) -> list[np.ndarray]:
    """The indices of each client's examples, in equal shares at random.

    Args:
        examples: Number of examples.
        clients: From 1 to ``examples``.
        seed: Seed of the shuffle.

    Raises:
        ValueError: More clients than examples.

    Example:
        >>> [len(part) for part in iid(examples=10, clients=4, seed=0)]
        [3, 3, 2, 2]
    """
    integer("clients", clients, at_least=1, at_most=examples)
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(examples), clients)]


def dirichlet(targets: torch.Tensor, clients: int, alpha: float, seed: int) -> list[np.ndarray]:
    """The indices of each client's examples, in equal shares with label mixtures from a Dirichlet distribution.

    Args:
        targets: ``(examples,)`` class numbers.
        clients: From 1 to the number of examples.
        alpha: Concentration above 0: small means few labels a client, large means nearly IID.
        seed: Seed of the mixtures and the partition.

    Raises:
        ValueError: More clients than examples, or alpha not above 0.
        DataError: Examples are sequences with a target at each place.

    Example:
        >>> labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
        >>> [labels[part].tolist() for part in dirichlet(labels, clients=2, alpha=1e-3, seed=0)]
        [[1, 1, 1, 1], [0, 0, 0, 0]]

    Source: Hsu, Qi and Brown 2019, https://arxiv.org/abs/1909.06335.
    """
    integer("clients", clients, at_least=1, at_most=len(targets))
    if targets.ndim != 1:
        raise DataError("partition = 'dirichlet': needs one label for each example, not sequences; use 'user' or 'iid'")
    generator = np.random.default_rng(seed)
    labels = targets.numpy()
    stacks = [list(generator.permutation(np.flatnonzero(labels == c))) for c in range(int(labels.max()) + 1)]
    wanted = generator.dirichlet(np.full(len(stacks), positive("alpha", alpha)), size=clients)
    parts: list[np.ndarray] = []
    for client, share in enumerate(wanted):
        size = len(labels) * (client + 1) // clients - len(labels) * client // clients
        mine: list[int] = []
        for _ in range(size):
            weights = np.where([len(stack) > 0 for stack in stacks], share + 1e-12, 0)
            mine.append(int(stacks[generator.choice(len(stacks), p=weights / weights.sum())].pop()))
        parts.append(np.sort(np.array(mine)))
    return parts


def by_user(users: np.ndarray | None) -> list[np.ndarray]:
    """The indices of each user's examples, one client for each user.

    Raises:
        DataError: The users are unknown.

    Example:
        >>> [part.tolist() for part in by_user(np.array(["bob", "ann", "bob"]))]
        [[1], [0, 2]]
    """
    if users is None:
        raise DataError("partition = 'user': the users of this data set are unknown; use 'iid' or 'dirichlet'")
    _, owner = np.unique(users, return_inverse=True)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])


def dealt(dataset: Dataset, parts: Sequence[np.ndarray]) -> tuple[Dataset, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The data set ordered by client, and the examples of each client as views of it, without a copy.

    Args:
        dataset: The data set.
        parts: The indices of each client's examples; together each index once.

    Returns:
        The reordered data set (the given one if the order is the same), and each client's inputs and targets in the order of
        its indices.

    Example:
        >>> numbers, labels = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 1, 0])
        >>> _, clients = dealt(Dataset(numbers, labels, numbers, labels), by_user(np.array([7, 5, 7])))
        >>> [inputs.flatten().tolist() for inputs, _ in clients]
        [[1.0], [0.0, 2.0]]
    """
    order, sizes, each = np.concatenate(parts), [len(part) for part in parts], np.arange(len(dataset.train_inputs))
    if not np.array_equal(np.sort(order), each):
        raise DataError(f"parts: hold {len(order)} indices; together they must hold each of 0 to {len(each) - 1} once")
    if not np.array_equal(order, each):
        users = None if dataset.users is None else dataset.users[order]
        inputs, targets = dataset.train_inputs[order], dataset.train_targets[order]
        dataset = replace(dataset, train_inputs=inputs, train_targets=targets, users=users)
    return dataset, list(zip(dataset.train_inputs.split(sizes), dataset.train_targets.split(sizes), strict=True))
