"""What a data set is: training and test examples in memory, once, as tensors."""

from dataclasses import dataclass

import numpy as np
import torch

from hubbub._checks import shown
from hubbub.errors import DataError

__all__ = ["IGNORED", "Dataset"]

# The target that counts for nothing: what torch.nn.functional.cross_entropy leaves out unless told otherwise.
IGNORED = -100


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples for classification: of each input as a whole, or of each place of a sequence.

    Args:
        train_inputs: ``(examples, *shape)``: floats, or whole numbers from 0, such as those of characters.
        train_targets: Class numbers in int64, ``(examples,)``, or ``(examples, length)`` for sequences; there -100 stands
            where nothing is asked, as after the end of a short sequence.
        test_inputs: Public test examples, as above.
        test_targets: As above.
        users: ``(examples,)`` whose example each one is, where the data know; else ``None``.
        declared_classes: Number of classes; by default one more than the largest test target.

    Raises:
        DataError: Lengths or shapes differ, an input is not finite, a label is unknown to the test data, or a sequence asks
            nothing.
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
                if not isinstance(given, torch.Tensor) or not given.ndim:
                    raise DataError(f"{part}_{name}: is no tensor of examples, but {shown(given)}")
            if len(inputs) != len(targets) or not len(inputs):
                raise DataError(f"{part}: has {len(inputs)} inputs and {len(targets)} targets")
            _require_inputs(f"{part}_inputs", inputs)
            _require_targets(f"{part}_targets", targets)
        for part in ("inputs", "targets"):
            train, test = (getattr(self, f"{split}_{part}").shape[1:] for split in ("train", "test"))
            if train != test:
                raise DataError(f"train_{part}: have the shape {tuple(train)} each, test_{part} {tuple(test)}; they must agree")
        known = (
            "the public test data know" if self.declared_classes is None else f"declared_classes = {self.declared_classes} are"
        )
        for part in ("train", "test"):
            lowest, highest = _range(getattr(self, f"{part}_targets"))
            if lowest < 0 or highest >= self.classes:
                raise DataError(
                    f"{part}_targets: run from {lowest} to {highest}, but {known} the classes 0 to {self.classes - 1} only"
                )
        if self.users is not None and self.users.shape != (len(self.train_inputs),):
            raise DataError(
                f"users: has {len(self.users)} entries of shape {self.users.shape[1:]} for {len(self.train_inputs)} training "
                "examples; each must have one"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def classes(self) -> int:
        """Number of classes, as declared or by the public test data: private labels must not shape a released model."""
        if self.declared_classes is not None:
            return self.declared_classes
        return int(self.test_targets.max()) + 1

    def without_test(self, validation: float, seed: int) -> "Dataset":
        """The same training data with a part of them in place of the test data, to choose settings by.

        Args:
            validation: The share of training examples to hold out, strictly between 0 and 1.
            seed: Of the split.
        """
        order = torch.randperm(len(self.train_inputs), generator=torch.Generator().manual_seed(seed))
        held = max(1, round(validation * len(order)))
        if held >= len(order):
            raise DataError(f"validation = {validation}: leaves none of {len(order)} examples to train on")
        rest, out = order[held:], order[:held]
        return Dataset(
            self.train_inputs[rest],
            self.train_targets[rest],
            self.train_inputs[out],
            self.train_targets[out],
            None if self.users is None else self.users[rest.numpy()],
            self.classes,
        )


def _require_inputs(name: str, inputs: torch.Tensor) -> None:
    if not inputs.numel():
        raise DataError(f"{name}: have the shape {tuple(inputs.shape)}, which holds no number")
    if inputs.dtype == torch.bool or inputs.is_complex():
        raise DataError(f"{name}: are {inputs.dtype}; they must be floats or whole numbers")
    # One pass and no copy: NaN is both the least and the largest of numbers among which it is.
    lowest, highest = (bound.item() for bound in torch.aminmax(inputs))
    if inputs.is_floating_point():
        if not np.isfinite([lowest, highest]).all():
            raise DataError(f"{name}: holds a number that is not finite")
    elif lowest < 0:
        raise DataError(f"{name}: holds {lowest}; whole numbers stand for characters or the like and count from 0")


def _require_targets(name: str, targets: torch.Tensor) -> None:
    if targets.dtype != torch.int64 or targets.ndim not in (1, 2):
        raise DataError(
            f"{name}: are {targets.dtype} of shape {tuple(targets.shape)}; they must be class numbers, torch.int64 of shape "
            "(examples,) or (examples, length)"
        )
    if targets.ndim == 2 and not bool((targets != IGNORED).any(dim=1).all()):
        index = int((targets != IGNORED).any(dim=1).int().argmin())
        raise DataError(f"{name}[{index}]: is {IGNORED} everywhere, so that there is nothing to learn; leave that example out")


def _range(targets: torch.Tensor) -> tuple[int, int]:
    """The least and the largest target; in sequences, of those that count."""
    counted = targets[targets != IGNORED] if targets.ndim == 2 else targets
    return int(counted.min()), int(counted.max())
