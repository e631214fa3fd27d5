"""Data sets of other libraries: anything with a length and items, such as torchvision's and Hugging Face's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from hubbub._checks import nearest, shown
from hubbub.datasets.dataset import Dataset
from hubbub.errors import DataError

__all__ = ["Items", "from_examples"]

_PIXELS = ("1", "L", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "LA")


class Items(Protocol):
    """Examples that can be counted and asked for by number: pairs (input, target), or mappings from columns."""

    def __len__(self) -> int:
        """How many."""

    def __getitem__(self, index: int, /) -> Any:
        """One of them."""


def from_examples(
    train: Items,
    test: Items,
    *,
    inputs: str = "image",
    targets: str = "label",
    users: str | Sequence[Any] | np.ndarray | None = None,
    transform: Callable[[Any], Any] | None = None,
    classes: int | None = None,
) -> Dataset:
    """A data set of torchvision's or Hugging Face's kind as tensors; every item is asked for once.

    Images of Pillow become floats from 0 to 1, ``(channels, height, width)``, as torchvision's ``ToTensor`` has them. Tensors,
    arrays, numbers and lists of numbers keep their shape: fractions become float32, whole numbers int64, bytes (uint8) floats
    from 0 to 1.

    Args:
        train: Pairs (input, target), as in torchvision, or mappings from columns, as in a split of Hugging Face's ``datasets``.
        test: Public test examples, as above.
        inputs: The column of inputs, where items are mappings.
        targets: The column of class numbers, one for each example or, in sequences, at each place, where items are mappings.
        users: The column that says whose a training example is, or that for each training example in order; ``None`` where
            nobody knows.
        transform: What to make of each input first, such as numbers of a text; called once for each example, so that random
            augmentation is drawn once.
        classes: Number of classes; by default one more than the largest test target.

    Raises:
        DataError: No length, a missing column, inputs of different shapes, or a target that is no whole number.

    Example:
        >>> pairs = [([0.0, 1.0], 0), ([1.0, 0.0], 1)]
        >>> from_examples(pairs, pairs, users=["ann", "bob"]).train_inputs
        tensor([[0., 1.],
                [1., 0.]])
    """
    column = users if isinstance(users, str) else None
    train_inputs, train_targets, told = _tensors("train", train, (inputs, targets, column), transform)
    test_inputs, test_targets, _ = _tensors("test", test, (inputs, targets, None), transform)
    owners = None if users is None else _users(users if column is None else told)
    return Dataset(train_inputs, train_targets, test_inputs, test_targets, owners, classes)


def _tensors(
    name: str, items: Items, columns: tuple[str, str, str | None], transform: Callable[[Any], Any] | None
) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
    """Inputs and targets of all items, and their entries in the third column, where there is one."""
    inputs, targets, users = columns
    xs, ys, told = _Stack(f"{name} inputs"), _Stack(f"{name} targets"), []
    for index in range(count := _length(name, items)):
        item, where = items[index], f"{name}[{index}]"
        x, y = _pair(item, where, inputs, targets)
        xs.add(_input(x if transform is None else transform(x), where), index, count)
        ys.add(_target(y, where), index, count)
        if users is not None:
            told.append(_of_column(item, users, where))
    return xs.whole(), ys.whole(), told


class _Stack:
    """Tensors of one shape and type, put into one as they come."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._all = torch.empty(0)

    def add(self, tensor: torch.Tensor, index: int, count: int) -> None:
        """Put in the next of so many."""
        if index == 0:
            self._all = torch.empty((count, *tensor.shape), dtype=tensor.dtype)
        first = self._all[0]
        if (tensor.shape, tensor.dtype) != (first.shape, first.dtype):
            raise DataError(
                f"{self._name}[{index}]: is {tensor.dtype} of shape {tuple(tensor.shape)}, the first is {first.dtype} of "
                f"{tuple(first.shape)}; make all alike, such as with transform = a function that pads, cuts or scales"
            )
        self._all[index] = tensor

    def whole(self) -> torch.Tensor:
        """All of them, ``(examples, *shape)``."""
        return self._all


def _length(name: str, items: object) -> int:
    if isinstance(items, Mapping):
        raise DataError(f"{name}: is a mapping of {', '.join(map(str, items))}; give one split, such as dataset['train']")
    try:
        return len(items)  # type: ignore[arg-type] # what has no length is refused here
    except TypeError as error:
        raise DataError(
            f"{name}: is a {type(items).__name__} without a length, such as a stream; give a list of its examples"
        ) from error


def _pair(item: Any, where: str, inputs: str, targets: str) -> tuple[Any, Any]:
    """Input and target of an item."""
    if isinstance(item, Mapping):
        return _of_column(item, inputs, where), _of_column(item, targets, where)
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    raise DataError(f"{where}: is {shown(item)}; it must be a pair (input, target) or a mapping from columns")


def _of_column(item: Any, column: str, where: str) -> Any:
    if not isinstance(item, Mapping):
        raise DataError(f"{where}: is a {type(item).__name__}, which has no column {column!r}; give users as a list")
    if column not in item:
        known = [str(name) for name in item]
        raise DataError(f"{where}: has no column {column!r}{nearest(column, known)}; there are {', '.join(known)}")
    return item[column]


def _input(value: Any, where: str) -> torch.Tensor:
    """An input as floats or int64."""
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
    """Numbers as a tensor on the CPU; what else there may be is refused."""
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
    else:
        try:
            tensor = torch.from_numpy(np.array(value))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{name} is {shown(value)}, a {type(value).__name__}; it must be numbers in a regular shape: give transform"
            ) from error
    if tensor.is_complex():
        raise DataError(f"{name} is complex; it must be real numbers")
    return tensor


def _users(users: Any) -> np.ndarray:
    if not len(users):
        raise DataError("users: is empty; each training example must have one")
    owners = np.array([user.item() if isinstance(user, torch.Tensor) else user for user in users])
    if owners.ndim != 1 or owners.dtype.kind not in "iuU":
        raise DataError(f"users: the first is {shown(users[0])}; each must be a name or a whole number")
    return owners
