"""Calls of linear layers and convolutions in a module, and each example's gradients of their weights and biases.

Such a gradient follows from the input of a layer and the gradient of its output. :class:`Taps` finds each call of such a layer
in an unmodified module and adds a zero to its output: the derivative by that zero is the output's gradient, and the weight need
not be differentiated. Parameters with other uses are named, to be differentiated as usual.

Source: Goodfellow 2015, "Efficient Per-Example Gradient Computations", https://arxiv.org/abs/1510.01799; Rochette et al. 2019,
"Efficient Per-Example Gradient Computations in Convolutional Neural Networks", https://arxiv.org/abs/1912.06015 (one
convolution with the examples as groups).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know
from torch.nn.grad import conv2d_weight
from torch.overrides import TorchFunctionMode

__all__ = [
    "Convolution",
    "Layer",
    "Taps",
    "Use",
    "bias_gradients",
    "summed_weight_gradient",
    "unfolded",
    "uses",
    "weight_gradients",
]

# With fewer channels the products of a convolution in groups are too small.
_FEW_CHANNELS = 8
_LINEAR = ("input", "weight", "bias")
_CONVOLUTION = (*_LINEAR, "stride", "padding", "dilation", "groups")


@dataclass(frozen=True)
class Convolution:
    """The geometry of a 2-D convolution, with the shape of its weight; if ``one``, of a 1-D one along the width."""

    kernel: tuple[int, int, int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    one: bool


@dataclass(frozen=True)
class Layer:
    """One call of a layer: the names of its trainable parameters; linear if ``convolution`` is ``None``."""

    weight: str
    bias: str | None
    convolution: Convolution | None


@dataclass(frozen=True)
class Use:
    """Inputs and output gradients of one call, for each example.

    Args:
        layer: Which.
        inputs: ``(examples, positions, in)``; of a convolution ``(examples, channels, height, width)``.
        deltas: The gradient of the loss by the layer's output, shaped alike.
    """

    layer: Layer
    inputs: torch.Tensor
    deltas: torch.Tensor


class Taps(TorchFunctionMode):
    """A context that records calls of linear layers and convolutions, and adds a tap to the output of each.

    Args:
        names: Of trainable parameters, by ``id`` of their tensors.
        fixed: Values of the parameters, not to be differentiated, by name.
        taps: Added to the output of each call, in order; ``None`` only records.

    Attributes:
        layers: The calls, in order.
        inputs: Of each.
        shapes: Of the output of each.
        others: Trainable parameters with other uses.
    """

    def __init__(
        self, names: Mapping[int, str], fixed: Mapping[str, torch.Tensor], taps: Sequence[torch.Tensor] | None = None
    ) -> None:
        super().__init__()
        self._names, self._fixed, self._taps = names, fixed, taps
        self.layers: list[Layer] = []
        self.inputs: list[torch.Tensor] = []
        self.shapes: list[torch.Size] = []
        self.others: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The result of a function of torch."""
        given = kwargs or {}
        layer, named = self._layer(func, args, given)
        if layer is None:
            # Reading a parameter's attribute, such as its shape, is no use of it.
            if getattr(func, "__name__", "") != "__get__":
                self.others |= {self._names[id(t)] for t in _tensors([args, given]) if id(t) in self._names}
            return func(*args, **given)
        named["weight"] = self._fixed[layer.weight]
        if layer.bias is not None:
            named["bias"] = self._fixed[layer.bias]
        made: torch.Tensor = func(**named)
        self.layers.append(layer)
        self.inputs.append(named["input"])
        self.shapes.append(made.shape)
        return made if self._taps is None else made + self._taps[len(self.layers) - 1]

    def _layer(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Layer | None, dict[str, Any]]:
        """The layer of a call, and its arguments by name."""
        known = _LINEAR if func is F.linear else _CONVOLUTION if func in (F.conv1d, F.conv2d) else ()
        named = {**dict(zip(known, args, strict=False)), **kwargs}
        weight = self._names.get(id(named.get("weight")))
        if not known or weight is None or id(named["input"]) in self._names:
            return None, named
        bias = self._names.get(id(named.get("bias")))
        if func is F.linear:
            return Layer(weight, bias, None), named
        geometry = _geometry(named)
        return (None, named) if geometry is None else (Layer(weight, bias, geometry), named)


def _geometry(named: Mapping[str, Any]) -> Convolution | None:
    """The geometry of a convolution; ``None`` for padding of another kind than equal numbers on both sides."""
    weight, padding = named["weight"], named.get("padding", 0)
    padding = 0 if padding == "valid" else padding
    if isinstance(padding, str):
        return None
    one = weight.ndim == 3
    out, channels, *kernel = weight.shape
    stride, pad, dilation = (
        _two(value, one, usual) for value, usual in ((named.get("stride", 1), 1), (padding, 0), (named.get("dilation", 1), 1))
    )
    size = (1, kernel[0]) if one else (kernel[0], kernel[1])
    return Convolution((out, channels, *size), stride, pad, dilation, int(named.get("groups", 1)), one)


def _two(value: int | Sequence[int], one: bool, usual: int) -> tuple[int, int]:
    """A value for height and width; with one dimension, given for the width."""
    numbers = (value,) if isinstance(value, int) else tuple(value)
    if one:
        return usual, numbers[0]
    return (numbers[0], numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])


def uses(layers: Sequence[Layer], inputs: Sequence[torch.Tensor], deltas: Sequence[torch.Tensor]) -> Iterator[Use]:
    """The uses of each layer, from inputs and output gradients of a batch, ``(examples, …)`` each."""
    for layer, seen, delta in zip(layers, inputs, deltas, strict=True):
        if layer.convolution is None:
            yield Use(layer, _positions(seen), _positions(delta))
            continue
        if layer.convolution.one:
            seen, delta = seen.unsqueeze(-2), delta.unsqueeze(-2)
        # An example may be a stack of pictures, or one without a stack.
        pictures = [(seen, delta)] if seen.ndim == 4 else zip(seen.unbind(1), delta.unbind(1), strict=True)
        for picture, of_picture in pictures:
            yield Use(layer, picture, of_picture)


def bias_gradients(use: Use) -> torch.Tensor:
    """Each example's gradient of the bias, ``(examples, out)``."""
    return use.deltas.sum(dim=1) if use.layer.convolution is None else use.deltas.flatten(2).sum(dim=2)


def weight_gradients(use: Use) -> torch.Tensor:
    """Each example's gradient of a layer's weight, ``(examples, …)``; a convolution's in two dimensions."""
    convolution = use.layer.convolution
    if convolution is None:
        return torch.bmm(use.deltas.mT, use.inputs)
    out, channels, high, wide = convolution.kernel
    examples, positions = len(use.inputs), use.deltas.shape[2] * use.deltas.shape[3]
    # A rule, not a timing: the bits of a sum must not depend on the machine's load.
    if convolution.groups == 1 and (channels < _FEW_CHANNELS or positions <= channels):
        found = torch.bmm(use.deltas.flatten(2), unfolded(use.inputs, convolution))
        return found.reshape(examples, out, high, wide, channels).permute(0, 1, 4, 2, 3)
    # All examples as groups of one picture in one convolution.
    pictures = use.inputs.reshape(1, -1, *use.inputs.shape[2:])
    deltas = use.deltas.reshape(1, -1, *use.deltas.shape[2:])
    many = (examples * out, channels, high, wide)
    found = _by_convolution(pictures, many, deltas, convolution, examples * convolution.groups)
    return found.reshape(examples, out, channels, high, wide)


def summed_weight_gradient(use: Use) -> torch.Tensor:
    """The gradient of a weight, summed over the examples; a convolution's in two dimensions."""
    convolution = use.layer.convolution
    if convolution is None:
        return use.deltas.flatten(0, 1).mT @ use.inputs.flatten(0, 1)
    return _by_convolution(use.inputs, convolution.kernel, use.deltas, convolution, convolution.groups)


def _by_convolution(
    inputs: torch.Tensor, shape: tuple[int, ...], deltas: torch.Tensor, how: Convolution, groups: int
) -> torch.Tensor:
    """The gradient of the weights of a convolution, shaped as they are."""
    found: torch.Tensor = conv2d_weight(inputs, shape, deltas, how.stride, how.padding, how.dilation, groups)
    return found


def unfolded(inputs: torch.Tensor, convolution: Convolution) -> torch.Tensor:
    """The patches that a convolution of one group sees, ``(examples, positions, kernel height · width · channels)``.

    In this order long runs of a patch are contiguous in memory.
    """
    _, channels, high, wide = convolution.kernel
    (down, right), (dilated_down, dilated_right) = convolution.stride, convolution.dilation
    above, left = convolution.padding
    padded = F.pad(inputs.permute(0, 2, 3, 1), (0, 0, left, left, above, above)).contiguous()
    examples, height, width, _ = padded.shape
    rows = (height - dilated_down * (high - 1) - 1) // down + 1
    columns = (width - dilated_right * (wide - 1) - 1) // right + 1
    example, row, column, one = padded.stride()
    patches = padded.as_strided(
        (examples, rows, columns, high, wide, channels),
        (example, row * down, column * right, row * dilated_down, column * dilated_right, one),
    )
    return patches.reshape(examples, rows * columns, high * wide * channels)


def _positions(seen: torch.Tensor) -> torch.Tensor:
    """``(examples, positions, numbers)``."""
    return seen.reshape(len(seen), -1, seen.shape[-1])


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested lists and tables of arguments."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
