"""A module as a function of tensors: called with other tensors than its own, and left as it was."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know
from torch.overrides import TorchFunctionMode

from hubbub.training.execution import Precision

__all__ = ["Constants", "called", "computing", "in_range", "own_generators"]

# What looks numbers up, and the names of its first arguments.
_TABLES = {F.embedding: ("input", "weight"), torch.embedding: ("weight", "indices")}
_LOSSES = {
    F.cross_entropy: ("input", "target", "weight", "size_average", "ignore_index"),
    F.nll_loss: ("input", "target", "weight", "size_average", "ignore_index"),
}


def called(module: nn.Module, given: Mapping[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """The module's output with other tensors in place of its own, each by the first of its names; the rest stay.

    ``functional_call`` would tie a tensor's other names by itself, but leaves its tensors in a module that is there twice.
    """
    first = {id(own): name for name, own in [*module.named_parameters(), *module.named_buffers()]}
    placed = {
        f"{prefix}.{name}" if prefix else name: given[first[id(own)]]
        for prefix, part in module.named_modules()
        for own_names in (part.named_parameters, part.named_buffers)
        for name, own in own_names(recurse=False, remove_duplicate=False)
        if first[id(own)] in given
    }
    output: torch.Tensor = functional_call(module, placed, (inputs,), tie_weights=False)
    return output


def own_generators(device: torch.device) -> AbstractContextManager[None]:
    """Inside, torch's global generators may be seeded; outside, they are as before."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def in_range(device: torch.device) -> AbstractContextManager[object]:
    """Inside, a GPU is never asked for a row or a class that is not there: what it would read is no number instead.

    A processor raises then, and a GPU ends all that the process does with it, so that one unit's data would stop the run.
    """
    return _InRange() if device.type == "cuda" else nullcontext()


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Inside, layers compute in ``precision``: forward only, torch does the same backward."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bfloat16" else nullcontext()


class Constants:
    """A module's frozen parameters and buffers, as they are now: they are neither trained nor released.

    Args:
        module: Its trainable parameters keep their values, but not what a module may put in their place.
    """

    def __init__(self, module: nn.Module) -> None:
        tables: list[dict[str, Any]] = [table for part in module.modules() for table in (part._parameters, part._buffers)]
        self._tables = [(table, dict(table)) for table in tables]
        fixed = [p for p in module.parameters() if not p.requires_grad] + list(module.buffers())
        self._values = [(tensor, tensor.detach().clone()) for tensor in fixed]

    @torch.no_grad()
    def restore(self) -> None:
        """Put them back: nothing that one client's training left in the module may reach the next client."""
        for table, own in self._tables:
            # A forward that says self.mean = 0.9 * self.mean puts another tensor where the module's own was.
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
        """What the function makes of indices that are there; of others, what is no number, and has no slope that is."""
        names = _TABLES.get(func) or _LOSSES.get(func)
        if names is None:
            return func(*args, **(kwargs or {}))
        named = dict(zip(names, args, strict=False)) | (kwargs or {})
        rest = args[len(names) :]
        place = "target" if func in _LOSSES else "input" if func is F.embedding else "indices"
        index = named[place]
        if index.is_floating_point():
            return func(*args, **(kwargs or {}))
        if func in _LOSSES:
            scores, ignored = named["input"], named.get("ignore_index", -100)
            missing = ((index < 0) | (index >= scores.shape[min(1, scores.ndim - 1)])) & (index != ignored)
        else:
            missing = (index < 0) | (index >= len(named["weight"]))
        named[place] = index.masked_fill(missing, 0)
        found = func(*(named.pop(name) for name in names[: len(args)]), *rest, **named)
        if func in _TABLES:
            missing = missing.unsqueeze(-1)
        elif found.shape != missing.shape:
            missing = missing.any()
        # Times one changes no bit.
        return found * torch.where(missing, torch.nan, 1.0).to(found.dtype)
