"""A graphics processor that is pretended: tensors that say ``cuda:0`` and are computed on the processor.

What it refuses is what a real one refuses: tensors of two devices in one operation, a generator of another device, a tensor
made into an array. So code that forgets to move something fails here as it would there. What it computes is what a processor
does: nothing is learnt about a real one's speed or roundings. Where there is a real one, tests use that.
"""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["library", "pretended_gpu"]

_SOURCE = Path(__file__).with_suffix(".cpp")
_GPU = torch.device("cuda:0")
_ATEN = torch.ops.aten
# What takes tensors of two devices: copies, and an index that a real one moves by itself.
_ACROSS = {
    _ATEN.copy_.default,
    _ATEN._to_copy.default,
    _ATEN.index.Tensor,
    _ATEN.index_put.default,
    _ATEN.index_put_.default,
    _ATEN._index_put_impl_.default,
}


def library(folder: Path) -> Path | None:
    """What lets torch, built for a processor alone, believe that a GPU can be there: to be loaded before torch is.

    ``None`` where there is no compiler for it.
    """
    compiler, home = shutil.which("c++"), Path(torch.__file__).parent
    if compiler is None:
        return None
    found, libraries = folder / "pretended_gpu.so", home / "lib"
    flags = ["-std=c++20", "-shared", "-fPIC", f"-I{home / 'include'}"]
    linked = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lc10", "-ltorch_cpu"]
    subprocess.run([compiler, *flags, str(_SOURCE), "-o", str(found), *linked], check=True)
    return found


class _OnGpu(torch.Tensor):
    """A tensor that says it is on the GPU, and holds its numbers elsewhere."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __new__(cls, held: torch.Tensor) -> "_OnGpu":
        made: _OnGpu = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=_GPU,
            requires_grad=held.requires_grad,
        )
        made.held = held
        return made

    held: torch.Tensor

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        """The same tensor without its history."""
        return self.detach()

    @data.setter
    def data(self, other: "_OnGpu") -> None:
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.held = other.held

    def data_ptr(self) -> int:
        """Where its numbers are."""
        return self.held.data_ptr()

    def tolist(self) -> Any:
        """As a real one's, which torch does not let a subclass have."""
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refused, as a real one's."""
        if force:
            return self.held.numpy(force=True)
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.held!r} on {_GPU}"

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            copy: torch.Tensor = _OnGpu(self.held.detach().clone())
            if isinstance(self, torch.nn.Parameter):
                copy = torch.nn.Parameter(copy, self.requires_grad)
            memo[id(self)] = copy
        copied: torch.Tensor = memo[id(self)]
        return copied

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _computed(func, args, dict(kwargs or {}))


class _Generator(torch.Generator):
    """A generator that says on which device it is."""

    def __new__(cls, device: torch.device | str = "cpu") -> "_Generator":
        made = super().__new__(cls, "cpu")
        made.of = torch.device(device)
        return made

    of: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it draws."""
        return self.of


# What draws without a generator of its own draws from here.
_CHANCE = torch.Generator().manual_seed(0)


class _Gpu(TorchDispatchMode):
    """Sees also what is made without a tensor that is there."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if _is_gpu(named.get("device")) or any(isinstance(leaf, _OnGpu) for leaf in tree_leaves((args, named))):
            return _computed(func, args, named)
        return func(*args, **named)


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _lstm_cell(
    of_input: torch.Tensor,
    of_hidden: torch.Tensor,
    cell: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a GPU has in one operation and a processor has not: the next hidden and cell states, and what the way back needs."""
    gates = of_input + of_hidden
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    let_in, forget, new, out = gates.chunk(4, dim=1)
    kept = torch.cat([let_in.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()], dim=1)
    let_in, forget, new, out = kept.chunk(4, dim=1)
    after = forget * cell + let_in * new
    return out * after.tanh(), after, kept


def _lstm_cell_slopes(
    of_hidden: torch.Tensor | None,
    of_cell: torch.Tensor | None,
    cell: torch.Tensor,
    after: torch.Tensor,
    kept: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of the gates, of the cell before, and of the biases."""
    let_in, forget, new, out = kept.chunk(4, dim=1)
    hidden = torch.zeros_like(after) if of_hidden is None else of_hidden
    inner = hidden * out * (1 - after.tanh() ** 2) + (0 if of_cell is None else of_cell)
    slopes = [
        inner * new * let_in * (1 - let_in),
        inner * cell * forget * (1 - forget),
        inner * let_in * (1 - new**2),
        hidden * after.tanh() * out * (1 - out),
    ]
    gates = torch.cat(slopes, dim=1)
    return gates, inner * forget, gates.sum(dim=0) if has_bias else None


_ELSEWHERE = {
    _ATEN._thnn_fused_lstm_cell.default: _lstm_cell,
    _ATEN._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_slopes,
}


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves = tree_leaves((args, kwargs))
    generators = [leaf for leaf in leaves if isinstance(leaf, torch.Generator)]
    here = any(isinstance(leaf, _OnGpu) for leaf in leaves)
    elsewhere = any(isinstance(leaf, torch.Tensor) and not isinstance(leaf, _OnGpu) and leaf.ndim > 0 for leaf in leaves)
    if here and elsewhere and func not in _ACROSS:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu: {func}")
    if any(not _is_gpu(generator.device) for generator in generators):
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu': {func}")
    inside = kwargs | ({"device": torch.device("cpu")} if "device" in kwargs else {})
    if inside.get("pin_memory"):
        inside["pin_memory"] = False
    held = tree_map(lambda leaf: leaf.held if isinstance(leaf, _OnGpu) else leaf, (args, inside))
    leaves_here = kwargs.get("device") is not None and not _is_gpu(kwargs["device"])
    drawn = torch.Tag.nondeterministic_seeded in func.tags and not generators
    found = _drawn(func, *held) if drawn else _ELSEWHERE.get(func, func)(*held[0], **held[1])
    # A copy says where it goes; all else stays where it is.
    if func is _ATEN.copy_.default and not isinstance(args[0], _OnGpu):
        return args[0]
    if leaves_here:
        return found
    wrapped = tree_map(lambda leaf: _OnGpu(leaf) if isinstance(leaf, torch.Tensor) else leaf, found)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _drawn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same, drawn from the GPU's own generator."""
    other = torch.default_generator.get_state()
    torch.default_generator.set_state(_CHANCE.get_state())
    try:
        return func(*args, **kwargs)
    finally:
        _CHANCE.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(other)


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Inside, torch finds one GPU, and ``device = "cuda"`` works."""
    cuda = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda *_: None,
        "manual_seed": _CHANCE.manual_seed,
        "get_rng_state": lambda *_: _CHANCE.get_state(),
        "set_rng_state": lambda state, *_: _CHANCE.set_state(state),
        "is_bf16_supported": lambda *_: True,
        "get_device_name": lambda *_: "a pretended GPU",
        "get_device_properties": lambda *_: SimpleNamespace(total_memory=2**34),
    }
    swapped = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    # Then a tensor of Python's numbers is made here and moved, so that all is seen.
    torch._C._set_only_lift_cpu_tensors(True)  # type: ignore[attr-defined]
    try:
        with (
            mock.patch.multiple(torch.cuda, **cuda),
            mock.patch("torch.backends.cudnn.is_acceptable", return_value=False),
            mock.patch("torch.Generator", _Generator),
            _Gpu(),
        ):
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swapped)
        torch._C._set_only_lift_cpu_tensors(False)  # type: ignore[attr-defined]
