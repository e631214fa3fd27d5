"""A module that is called with tensors other than its own, and with generators of its own."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.func import functional_call

__all__ = ["called", "own_generators"]


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
