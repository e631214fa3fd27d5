"""Layers of many clients at once by the compiled kernel, with a way to differentiate them; for :mod:`hubbub.training.stacking`.

Letters: as in :mod:`hubbub.training.lanes`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.training.lanes import KERNEL, WIDEST, Lanes

__all__ = ["borders", "convolution", "largest", "last", "lies_last", "linear", "plain", "window"]


def last(given: Sequence[torch.Tensor], dims: Sequence[int | None], clients: int) -> list[torch.Tensor]:
    """The same with the clients last, in memory too: ``(*shape, K)``; what all clients share is repeated."""
    moved = [
        x.unsqueeze(-1).expand(*x.shape, clients) if dim is None else x.movedim(dim, -1)
        for x, dim in zip(given, dims, strict=True)
    ]
    return [x.contiguous() for x in moved]


def lies_last(x: torch.Tensor, dim: int | None) -> bool:
    """Whether in memory the clients are last already."""
    return dim is not None and x.movedim(dim, -1).is_contiguous()


def plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether these are float32 and fit one another as they are; what torch widens, narrows or refuses is left to torch."""
    fits = x.shape[1] == weight.shape[1] and (bias is None or tuple(bias.shape) == (len(weight),))
    numbers = all(one is None or one.dtype == torch.float32 for one in (x, weight, bias))
    return fits and numbers and not torch.is_autocast_enabled(x.device.type)


def borders(
    x: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> tuple[int, int] | None:
    """Rows and columns of zeros that go around a client's images, where the kernel has this convolution, else ``None``."""
    rows, columns = weight.shape[2:]
    if padding == "same":
        padding = (rows - 1) // 2, (columns - 1) // 2
        even = rows % 2 == 0 or columns % 2 == 0
    else:
        padding, even = _pair(0 if padding == "valid" else padding), False
    fits = x.shape[2] + 2 * padding[0] >= rows and x.shape[3] + 2 * padding[1] >= columns
    simple = _pair(stride) == _pair(dilation) == (1, 1) and groups == 1 and not even and min(padding) >= 0
    return padding if simple and fits and columns <= WIDEST else None


def window(
    x: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[int, int] | None:
    """Rows and columns of a client's windows, where the kernel has this pooling, else ``None``."""
    sizes = _pair(kernel_size)
    side_by_side = not stride or _pair(stride) == sizes
    simple = _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not ceil_mode
    fits = sizes[0] <= x.shape[2] and sizes[1] <= x.shape[3]
    return sizes if side_by_side and simple and fits and x.dtype == torch.float32 else None


def _pair(given: Any) -> tuple[int, int]:
    """An option that is one number for both, or one of each."""
    both = [*given] * (2 // len(given)) if isinstance(given, tuple | list) else [given] * 2
    return int(both[0]), int(both[1])


def convolution(
    padding: tuple[int, int], x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Each client's 2-D convolution of stride 1, ``(B, O, H', W', K)``.

    Args:
        padding: Rows and columns of zeros on each side.
        x: ``(B, I, H, W, K)`` float32.
        weight: ``(O, I, KH, KW, K)``.
        bias: ``(O, K)``, or none.
    """
    rows, columns = padding
    bordered = F.pad(x, (0, 0, columns, columns, rows, rows)).contiguous() if rows or columns else x
    shift = weight.new_zeros(weight.shape[0], weight.shape[-1]) if bias is None else bias
    out: torch.Tensor = _Convolution.apply(bordered, weight, shift)  # type: ignore[no-untyped-call] # torch leaves it without types
    return out


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Each client's rows times its weights: a convolution by one number of an image that is one row of the batch.

    Args:
        x: ``(B, in, K)`` float32.
        weight: ``(out, in, K)``.
        bias: ``(out, K)``, or none.
    """
    (batch, inputs, clients), outputs = x.shape, len(weight)
    image = x.transpose(0, 1).contiguous().view(1, inputs, 1, batch, clients)
    own = weight.view(outputs, inputs, 1, 1, clients)
    return convolution((0, 0), image, own, bias).view(outputs, batch, clients).transpose(0, 1)


def largest(x: torch.Tensor, window: tuple[int, int]) -> torch.Tensor:
    """The largest number of each window, windows side by side: ``(B, C, H, W, K)`` to ``(B, C, H // KH, W // KW, K)``."""
    out: torch.Tensor = _Largest.apply(x, *window)[0]  # type: ignore[no-untyped-call] # torch leaves it without types
    return out


class _Convolution(torch.autograd.Function):
    """By operations of our own, which a recorded step can follow."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """All three with the clients last."""
        ctx.save_for_backward(x, weight)
        out: torch.Tensor = torch.ops.hubbub.lane_outputs(x, weight, bias)
        return out

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of those that need one."""
        x, weight = ctx.saved_tensors
        of_x, *of_parameters = ctx.needs_input_grad
        slope = slope.contiguous()
        dx = torch.ops.hubbub.lane_inputs(slope, weight, *x.shape[2:4]) if of_x else None
        pair = torch.ops.hubbub.lane_weights(x, slope, *weight.shape[2:4]) if any(of_parameters) else (None, None)
        return dx, *pair


class _Largest(torch.autograd.Function):
    """By operations of our own; the second output tells where in each window the largest number is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of windows of so many rows and columns."""
        out, which = torch.ops.hubbub.lane_largest(x, height, width)
        ctx.save_for_backward(which)
        ctx.mark_non_differentiable(which)
        ctx.sizes = *x.shape[2:4], height, width
        return out, which

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient of the input."""
        (which,) = ctx.saved_tensors
        return torch.ops.hubbub.lane_spread(slope.contiguous(), which, *ctx.sizes), None, None


def _by_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: function(Lanes(KERNEL.in_use()), *arguments)


# As operations, so that whoever writes down what a step does sees them.
_OPERATIONS = torch.library.Library("hubbub", "DEF")
for _schema, _function in (
    ("lane_outputs(Tensor x, Tensor weight, Tensor bias) -> Tensor", Lanes.outputs),
    ("lane_weights(Tensor x, Tensor slope, int kh, int kw) -> (Tensor, Tensor)", Lanes.weights),
    ("lane_inputs(Tensor slope, Tensor weight, int h, int w) -> Tensor", Lanes.inputs),
    ("lane_largest(Tensor x, int height, int width) -> (Tensor, Tensor)", Lanes.largest),
    ("lane_spread(Tensor slope, Tensor which, int h, int w, int height, int width) -> Tensor", Lanes.spread),
):
    _OPERATIONS.define(_schema)
    _OPERATIONS.impl(_schema.partition("(")[0], _by_kernel(_function), "CPU")
