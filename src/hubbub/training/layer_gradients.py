"""What the use of a linear layer or a convolution makes of the gradients of its weight and bias.

Source: Goodfellow 2015, https://arxiv.org/abs/1510.01799; Rochette et al. 2019, "Efficient Per-Example Gradient Computations in
Convolutional Neural Networks", https://arxiv.org/abs/1912.06015 (one convolution with the examples as groups).
"""

import torch
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know
from torch.nn.grad import conv2d_weight

from hubbub.training.layer_uses import Convolution, Use

__all__ = ["bias_gradients", "summed_weight_gradient", "unfolded", "weight_gradients"]

# With fewer channels the products of a convolution in groups are too small.
_FEW_CHANNELS = 8


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
    # A rule, not a timing: the bits of a sum must not hang on what else the machine does.
    if convolution.groups == 1 and (channels < _FEW_CHANNELS or positions <= channels):
        found = torch.bmm(use.deltas.flatten(2), unfolded(use.inputs, convolution))
        return found.reshape(examples, out, high, wide, channels).permute(0, 1, 4, 2, 3)
    # All examples as groups of one picture: a convolution that takes the groups apart by itself.
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
    found: torch.Tensor = conv2d_weight(inputs, shape, deltas, how.stride, how.padding, how.dilation, groups)
    return found


def unfolded(inputs: torch.Tensor, convolution: Convolution) -> torch.Tensor:
    """The patches that a convolution of one group sees, ``(examples, positions, kernel height · width · channels)``.

    The numbers of a patch are in that order, so that long runs of them lie side by side where they come from.
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
