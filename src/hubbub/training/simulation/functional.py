"""A model as one flat vector, and as a function of its parameters.

The flat vector is clipped, summed, noised and released. As a function, a module is called with other tensors in place of its
parameters, and left unchanged.

Letters: dim, the number of trainable parameters.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from hubbub.errors import ConfigError
from hubbub.training.simulation import Precision


class FlatModel:
    """A module whose trainable parameters are views of one vector, and their gradients of another.

    Writing to ``vector`` changes the model, in place. Frozen parameters stay as they are and are never released; a parameter
    that two layers share counts once.

    Args:
        module: Any module; the order of its trainable parameters is that of ``module.named_parameters()``.

    Example:
        >>> model = FlatModel(nn.Linear(2, 1))
        >>> _ = model.vector.zero_()
        >>> model.dim, model.module(torch.ones(2)).tolist()
        (3, [0.0])
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._parameters = require_trainable(module)
        first = self._parameters[0]
        if not all(bool(torch.isfinite(p).all()) for p in self._parameters):
            raise ConfigError("model: has parameters that are not finite; begin with another one")
        self.dim = sum(p.numel() for p in self._parameters)
        self.vector = torch.empty(self.dim, dtype=first.dtype, device=first.device)
        self.gradient = torch.zeros_like(self.vector)
        start = 0
        with torch.no_grad():
            for parameter in self._parameters:
                part = slice(start, start + parameter.numel())
                self.vector[part] = parameter.reshape(-1)
                parameter.data = self.vector[part].view(parameter.shape)
                parameter.grad = self.gradient[part].view(parameter.shape)
                start = part.stop

    def require_views(self) -> None:
        """Refuse a model whose trainable parameters are no longer those that were views of the vector."""
        start, trained = self.vector.data_ptr(), [p for p in self.module.parameters() if p.requires_grad]
        same = [*map(id, trained)] == [*map(id, self._parameters)]
        for parameter in self._parameters:
            own = parameter.data_ptr() == start and parameter.dtype == self.vector.dtype
            same, start = same and (own or not parameter.numel()), start + parameter.numel() * parameter.element_size()
        if not same:
            raise ConfigError(
                "model: its parameters were replaced during the run (by .to(), .half(), a new layer, requires_grad or the "
                "like); convert a copy instead"
            )


def require_trainable(module: nn.Module, loss: object = None) -> list[nn.Parameter]:
    """The trainable parameters of a module; one, or a loss, that cannot be trained privately is refused."""
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise ConfigError("loss: has trainable parameters, whose gradients no noise hides; put them in the model, or freeze it")
    # Statistics of clients' data in buffers would be released without clipping or noise.
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats:
            where = f"its layer {name!r}" if name else "it"
            raise ConfigError(
                f"model: {where} is a {type(layer).__name__}, whose running statistics come from clients' data and cannot be "
                "hidden; use GroupNorm, LayerNorm or InstanceNorm without running statistics"
            )
    kept = set(module.state_dict())
    for name, _ in module.named_buffers():
        if name in kept:
            raise ConfigError(
                f"model: has the buffer {name!r}, which is neither clipped nor noised; register a constant with "
                "persistent=False, or make it a parameter"
            )
    if any(hasattr(p, "full_tensor") for p in module.parameters()):
        raise ConfigError(
            "model: has sharded parameters (DTensor, as of FSDP2): a release is of one flat vector, and each pass through a "
            "frozen one waits for all ranks, which compute different units; leave the model whole, or train what stands around "
            "a frozen base in a loop of your own (examples/sharded_base.py)"
        )
    if any(is_lazy(p) or p.is_meta for p in module.parameters()):
        raise ConfigError("model: has parameters without values (lazy layers, device 'meta'); call it on an example or load it")
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not any(p.numel() for p in parameters):
        raise ConfigError("model: has no trainable parameter; set requires_grad on those to be trained")
    _require_plain(parameters)
    return parameters


def _require_plain(parameters: list[nn.Parameter]) -> None:
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters):
        raise ConfigError("model: has hooks on parameters, which the gradients of single units would not call; remove them")
    kinds = {p.dtype for p in parameters}
    if len(kinds) > 1 or not parameters[0].is_floating_point():
        raise ConfigError(f"model: trainable parameters of dtypes {kinds}; they must share one floating dtype")


def difference(after: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """after − before, in their dtype if they share one of 32 bits or more, else in float64."""
    if after.dtype == before.dtype and after.dtype in (torch.float32, torch.float64):
        return after - before
    return after.to(torch.float64) - before.to(torch.float64)


# Functions of indices into rows or classes: their first arguments, and the name of the indices.
_LOSS = ("input", "target", "weight", "size_average", "ignore_index")
_INDEXED: dict[Callable[..., Any], tuple[tuple[str, ...], str]] = {
    F.embedding: (("input", "weight"), "input"),
    torch.embedding: (("weight", "indices"), "indices"),
    F.cross_entropy: (_LOSS, "target"),
    F.nll_loss: (_LOSS, "target"),
}


def places(module: nn.Module) -> dict[str, str]:
    """The names of all parameters and buffers, each with the first name of its tensor."""
    first = {id(own): name for name, own in [*module.named_parameters(), *module.named_buffers()]}
    return {
        f"{prefix}.{name}" if prefix else name: first[id(own)]
        for prefix, part in module.named_modules()
        for own_names in (part.named_parameters, part.named_buffers)
        for name, own in own_names(recurse=False, remove_duplicate=False)
    }


def called(module: nn.Module, given: Mapping[str, torch.Tensor], inputs: Any, names: Mapping[str, str] | None = None) -> Any:
    """The module's output with other tensors in place of its own, each by the first of its names; the others stay.

    ``names`` are the module's :func:`places`, if it is called often. ``functional_call`` can tie the other names by itself, but
    then misses a module that is registered twice.
    """
    placed = {name: given[first] for name, first in (names or places(module)).items() if first in given}
    return functional_call(module, placed, (inputs,), tie_weights=False)


def own_generators(device: torch.device) -> AbstractContextManager[None]:
    """A context after which torch's global generators are as before."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def seed_generators(seed: int, device: torch.device) -> None:
    """As ``torch.manual_seed``, which takes longer for absent devices than a small model for its gradient."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def in_range(device: torch.device) -> AbstractContextManager[object]:
    """A context in which, on a GPU, an index out of range gives NaN.

    A CPU raises an error, but a GPU would fail for the whole process, so that one unit's data would stop the run.
    """
    return _InRange() if device.type == "cuda" else nullcontext()


def repeatable(device: torch.device) -> AbstractContextManager[object]:
    """A context in which a GPU convolves in all bits of float32, by kernels that give the same bits each time.

    By default it rounds to TensorFloat-32 and takes whichever kernel is fast, which depends on how many are computed at once.
    """
    if device.type != "cuda":
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """A context in which layers compute in ``precision``; the backward pass follows."""
    # Within another autocast a cache would keep the weights of the first step.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False) if precision == "bfloat16" else nullcontext()


# What torch keeps of every module, and values that may change where they are.
_OF_EVERY_MODULE, _CHANGING = frozenset(vars(nn.Module())), (list, dict, set, tuple, deque, torch.Tensor, np.ndarray)


def _plain(value: object) -> bool:
    """Whether a value is made of numbers, words and arrays alone, so that a copy does as well."""
    if isinstance(value, dict):
        return all(map(_plain, [*value, *value.values()]))
    if isinstance(value, list | tuple | set | frozenset | deque):
        return all(map(_plain, value))
    if isinstance(value, torch.Tensor):
        return type(value) is torch.Tensor and not value.requires_grad
    return value is None or isinstance(value, bool | int | float | complex | str | bytes | np.ndarray | np.generic)


# Whether attributes are left as they are, so that a probe sees what a module keeps in them.
_LEFT = ContextVar("left", default=False)


@contextmanager
def attributes_left() -> Iterator[None]:
    """A context in which :class:`Attributes` are not put back."""
    token = _LEFT.set(True)
    try:
        yield
    finally:
        _LEFT.reset(token)


def wholes(*given: object) -> list[nn.Module]:
    """The modules among what is given, and those of which it has a method."""
    return [whole for whole in (getattr(one, "__self__", one) for one in given) if isinstance(whole, nn.Module)]


class Attributes:
    """What modules keep in attributes of Python's."""

    def __init__(self, *given: object) -> None:
        self._tables = list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]()
        for part in (part for whole in wholes(*given) for part in whole.modules()):
            own = {name: value for name, value in vars(part).items() if name not in _OF_EVERY_MODULE}
            changing = {name: value for name, value in own.items() if isinstance(value, _CHANGING) and _plain(value)}
            self._tables.append((vars(part), own, deepcopy(changing)))

    def restore(self) -> None:
        """Put them back: nothing of one unit may reach the next one through them."""
        if _LEFT.get():
            return
        for table, own, changing in self._tables:
            for name in set(table) - set(own) - _OF_EVERY_MODULE:
                del table[name]
            table.update(own, **deepcopy(changing))


class Constants:
    """A copy of frozen parameters and buffers, which are neither trained nor released, and the :class:`Attributes`.

    Those of a module, and of a loss that is one or a method of one.
    """

    def __init__(self, *given: object) -> None:
        self._attributes, modules = Attributes(*given), wholes(*given)
        parts = [part for module in modules for part in module.modules()]
        tables: list[dict[str, Any]] = [table for part in parts for table in (part._parameters, part._buffers)]
        self._tables = [(table, dict(table)) for table in tables]
        fixed: list[torch.Tensor] = [p for module in modules for p in module.parameters() if not p.requires_grad]
        fixed += [buffer for module in modules for buffer in module.buffers()]
        self._values = [(tensor, tensor.detach().clone()) for tensor in fixed]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore them: nothing of one client's training may reach the next client through the module."""
        self._attributes.restore()
        for table, own in self._tables:
            # A forward with self.mean = 0.9 * self.mean replaces the module's own tensor.
            table.clear()
            table.update(own)
        for tensor, original in self._values:
            if tensor.shape == original.shape and tensor.dtype == original.dtype:
                tensor.copy_(original)
            else:
                tensor.data = original.clone()


class _InRange(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The function's result; NaN, with a gradient of NaN, for indices out of range."""
        names, place = _INDEXED.get(func, ((), ""))
        named = dict(zip(names, args, strict=False)) | (kwargs or {})
        if not names or named[place].is_floating_point():
            return func(*args, **(kwargs or {}))
        index, of_loss = named[place], names is _LOSS
        if of_loss:
            scores, ignored = named["input"], named.get("ignore_index", -100)
            missing = ((index < 0) | (index >= scores.shape[min(1, scores.ndim - 1)])) & (index != ignored)
        else:
            missing = (index < 0) | (index >= len(named["weight"]))
        named[place] = index.masked_fill(missing, 0)
        found = func(*(named.pop(name) for name in names[: len(args)]), *args[len(names) :], **named)
        if not of_loss:
            missing = missing.unsqueeze(-1)
        elif found.shape != missing.shape:
            missing = missing.any()
        # A factor of 1 changes no bit.
        return found * torch.where(missing, torch.nan, 1.0).to(found.dtype)
