"""Made-up examples and weights, on which ways to compute are tried: whatever is found out must not hang on anybody's data.

They have the form of what they stand for and nothing else of it. They are random, since zeros and copies, which data and fresh
models are full of, give the same last bits by kernels that else do not.
"""

from collections.abc import Mapping

import torch
from torch import nn

__all__ = ["shaken", "stand_ins"]


def stand_ins(
    inputs: torch.Tensor, targets: torch.Tensor, module: nn.Module, examples: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """So many inputs and targets of a form, the same whatever the given ones hold.

    Args:
        inputs: ``(any, *shape)``.
        targets: ``(any, *shape)``.
        module: That takes them: whole numbers are rows of its tables, where it has some. Of targets they are all 0.
        examples: How many.
    """
    drawn = torch.Generator().manual_seed(0)
    made = [torch.zeros(examples, *given.shape[1:], dtype=given.dtype) for given in (inputs, targets)]
    if inputs.is_floating_point():
        made[0].copy_(torch.rand(made[0].shape, generator=drawn))
    else:
        tables = [layer.num_embeddings for layer in module.modules() if isinstance(layer, nn.Embedding)]
        made[0].copy_(torch.randint(min([*tables, 256 if tables else 2]), made[0].shape, generator=drawn))
    if targets.is_floating_point():
        made[1].copy_(torch.rand(made[1].shape, generator=drawn))
    return made[0].to(inputs.device), made[1].to(targets.device)


def shaken(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Parameters with some noise, detached: none is zero, and all are about as large as those of a fresh layer."""
    drawn = torch.Generator().manual_seed(1)
    found = {}
    for name, p in parameters.items():
        stddev = max(1, p[0].numel()) ** -0.5 if p.ndim > 1 else 0.1
        noise = torch.randn(p.shape, generator=drawn) * stddev
        found[name] = p.detach() + noise.to(p.device, p.dtype)
    return found
