"""The compiled kernel for training (lanes.c): convolutions and poolings of many clients, each client a lane of the vector unit.

So no padding of channels is computed, as there is where clients are groups of channels, and no client's numbers meet another's.
``hubbub kernel training`` builds it, on any Linux; processors with AVX-512 take 16 clients at once, others 8.

Letters: K, clients, last in every array: images ``(B, C, H, W, K)``, weights ``(O, I, KH, KW, K)``, biases ``(O, K)``; float32.
"""

import ctypes
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.compiled import Gain, Kernel, least_microseconds
from hubbub.errors import ConfigError

__all__ = ["KERNEL", "WIDEST", "Lanes", "measured", "widths"]

# Columns of a convolution's weights.
WIDEST = 7
# Arrays and sizes of each function.
_FUNCTIONS = {"outputs": (4, 7), "weights": (4, 7), "inputs": (3, 7), "largest": (3, 5), "spread": (3, 5)}
# Examples, inputs, height, width, outputs, and the weights' height and width: a network's, and those at the edges of tiles.
_SHAPES = (
    (2, 1, 28, 28, 10, 5, 5),
    (1, 3, 11, 9, 7, 3, 2),
    (2, 5, 6, 7, 4, 1, 7),
    (1, 2, 7, 5, 3, 5, 4),
    (3, 4, 9, 8, 8, 3, 3),
    (1, 2, 6, 13, 5, 2, 6),
    (1, 3, 4, 5, 2, 1, 1),
)
_AGREEMENT = 1e-5


class Lanes:
    """The functions of a library, for tensors that lie in memory without gaps.

    Args:
        library: The kernel's, declared.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def outputs(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """A convolution of stride 1, without borders."""
        (n, i, h, w, k), (o, _, kh, kw, _) = x.shape, weight.shape
        _require_shape("weight", weight, (o, i, kh, kw, k))
        _require_shape("bias", bias, (o, k))
        out = x.new_empty(n, o, h - kh + 1, w - kw + 1, k)
        self._call("outputs", (x, weight, bias, out), n, i, h, w, o, kh, kw)
        return out

    def weights(self, x: torch.Tensor, slope: torch.Tensor, kh: int, kw: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradients of weights and biases from that of the outputs."""
        (n, i, h, w, k), o = x.shape, slope.shape[1]
        _require_shape("slope", slope, (n, o, h - kh + 1, w - kw + 1, k))
        weights, biases = x.new_empty(o, i, kh, kw, k), x.new_empty(o, k)
        self._call("weights", (x, slope, weights, biases), n, i, h, w, o, kh, kw)
        return weights, biases

    def inputs(self, slope: torch.Tensor, weight: torch.Tensor, h: int, w: int) -> torch.Tensor:
        """The gradient of inputs of height h and width w.

        Raises:
            ValueError: The weights have more columns than :data:`WIDEST`.
        """
        n, (o, i, kh, kw, k) = slope.shape[0], weight.shape
        _require_shape("slope", slope, (n, o, h - kh + 1, w - kw + 1, k))
        if kw > WIDEST:
            raise ValueError(f"weight has {kw} columns: the kernel takes at most {WIDEST}")
        found = slope.new_empty(n, i, h, w, k)
        self._call("inputs", (slope, weight, found), n, i, h, w, o, kh, kw)
        return found

    def largest(self, x: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest number of each window, windows side by side, and its place in the window."""
        n, c, h, w, k = x.shape
        out = x.new_empty(n, c, h // height, w // width, k)
        which = torch.empty_like(out, dtype=torch.int32)
        self._call("largest", (x, out, which), n * c, h, w, height, width)
        return out, which

    def spread(self, slope: torch.Tensor, which: torch.Tensor, h: int, w: int, height: int, width: int) -> torch.Tensor:
        """The gradient of what windows of height h by width w were taken from."""
        n, c, *_, k = slope.shape
        for name, one in (("slope", slope), ("which", which)):
            _require_shape(name, one, (n, c, h // height, w // width, k))
        found = slope.new_empty(n, c, h, w, k)
        self._call("spread", (slope, which, found), n * c, h, w, height, width)
        return found

    def _call(self, name: str, tensors: tuple[torch.Tensor, ...], *sizes: int) -> None:
        function = getattr(self._library, f"hubbub_{name}_{tensors[0].shape[-1]}")
        # Where a step is written down, to ask for an address would count as reading a tensor's numbers past all operations.
        with torch._C.DisableTorchFunction():
            if not all(one.is_contiguous() for one in tensors):
                raise ValueError(f"{name}: takes tensors that lie in memory without gaps")
            function(*(one.data_ptr() for one in tensors), *sizes)


def _require_shape(name: str, x: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} has the shape {tuple(x.shape)}: must be {shape}")


def _declare(library: ctypes.CDLL) -> None:
    library.hubbub_lanes.argtypes, library.hubbub_lanes.restype = [], ctypes.c_int
    for width in _widths(library):
        for name, (arrays, sizes) in _FUNCTIONS.items():
            function = getattr(library, f"hubbub_{name}_{width}")
            function.argtypes = [ctypes.c_void_p] * arrays + [ctypes.c_long] * sizes
            function.restype = None


def _widths(library: ctypes.CDLL) -> tuple[int, ...]:
    widest: int = library.hubbub_lanes()
    return tuple(width for width in (8, 16) if width <= widest)


def _require_right(library: ctypes.CDLL) -> None:
    """Refuse a library that does not answer like torch.

    Raises:
        ConfigError: It does not.
    """
    generator = torch.Generator().manual_seed(0)
    for width in _widths(library):
        for shape in _SHAPES:
            _compare(Lanes(library), width, shape, generator)


def _compare(lanes: Lanes, k: int, shape: tuple[int, ...], generator: torch.Generator) -> None:
    n, i, h, w, o, kh, kw = shape
    x, weight, bias = (torch.randn(*form, k, generator=generator) for form in ((n, i, h, w), (o, i, kh, kw), (o,)))
    slope = torch.randn(n, o, h - kh + 1, w - kw + 1, k, generator=generator)
    window = min(2, slope.shape[2]), min(3, slope.shape[3])
    # Some of the largest are equal, and some are no number.
    values = slope.mul(2).round().where(slope < 2, torch.nan)
    most, which = lanes.largest(values, *window)
    found = [
        lanes.outputs(x, weight, bias),
        *lanes.weights(x, slope, kh, kw),
        lanes.inputs(slope, weight, h, w),
        most,
        lanes.spread(most, which, values.shape[2], values.shape[3], window[0], window[1]),
    ]
    for client in range(k):
        own = [one[..., client].clone().double().requires_grad_() for one in (x, weight, bias, values)]
        with torch.enable_grad():
            out, pooled = F.conv2d(own[0], own[1], own[2]), F.max_pool2d(own[3], window)
            gradients = torch.autograd.grad((out, pooled), own, (slope[..., client].double(), pooled.detach()))
        expected = [out, gradients[1], gradients[2], gradients[0], pooled, gradients[3]]
        for one, right in zip(found, expected, strict=True):
            scale = float(right.detach().nan_to_num().abs().max())
            if not torch.allclose(one[..., client].double(), right.detach(), rtol=0, atol=_AGREEMENT * scale, equal_nan=True):
                raise ConfigError(f"the kernel computes wrongly for {k} clients and the sizes {shape}: it is not used")


KERNEL = Kernel(
    "training",
    Path(__file__).with_name("lanes.c"),
    _declare,
    _require_right,
    flags=("-ffp-contract=fast",),
    native=True,
    machines=("x86_64", "aarch64"),
)


def widths() -> tuple[int, ...]:
    """For how many clients at once the kernel in use is, fewer first; empty where there is none."""
    library = KERNEL.library()
    return () if library is None else _widths(library)


def measured() -> list[Gain]:
    """The convolution that costs most of a small CNN, with its gradients, for ten images of each client.

    Raises:
        ConfigError: The kernel is not in use.
    """
    lanes, k = Lanes(KERNEL.in_use()), widths()[-1]
    x, weight, bias, slope = (torch.randn(*form, k) for form in ((10, 10, 12, 12), (20, 10, 5, 5), (20,), (10, 20, 8, 8)))
    grouped = [_grouped(one, channels) for one, channels in ((x, 1), (weight, 0), (slope, 1))]

    def kernel() -> None:
        lanes.outputs(x, weight, bias)
        lanes.weights(x, slope, 5, 5)
        lanes.inputs(slope, weight, 12, 12)

    def without() -> None:
        values, own, back = grouped
        options = [1, 1], [0, 0], [1, 1], False, [0, 0], k
        torch.ops.aten.convolution(values, own, bias.t().flatten(), *options)
        torch.ops.aten.convolution_backward(back, values, own, [20 * k], *options, [True] * 3)

    repeats = 10
    with torch.no_grad():
        costs = (least_microseconds(kernel, repeats=repeats), least_microseconds(without, repeats=repeats))
    return [Gain(f"a convolution of {k} clients, with its gradients", *costs)]


def _grouped(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The same with the clients as groups of channels, channels last."""
    return x.movedim(-1, dim).flatten(dim, dim + 1).contiguous(memory_format=torch.channels_last)
