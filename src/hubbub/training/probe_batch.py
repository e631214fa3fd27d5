"""Synthetic examples and weights, on which ways to compute are tried: what is found must not depend on anybody's data.

They have the form of what they stand for and nothing else of it. They are random, since zeros and copies, which data and fresh
models are full of, give the same last bits by kernels that else do not.
"""

from collections.abc import Mapping

import torch
from torch import nn

from hubbub.errors import ConfigError

__all__ = ["agree", "does_not_run", "probe_batch", "remembers", "shaken"]

_AGREEMENT = 1e-5


def probe_batch(
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


def agree(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two updates are the same up to rounding; of what is not a number each counts as nothing."""
    if not bool(torch.isfinite(expected).all()):
        return not bool(torch.isfinite(found).all())
    return float((found - expected).norm()) <= _AGREEMENT * float(expected.norm())


def does_not_run(inputs: torch.Tensor, targets: torch.Tensor, error: Exception) -> ConfigError:
    """What to raise where model and loss fail on synthetic examples of this form."""
    form = f"inputs {tuple(inputs.shape[1:])} {inputs.dtype} and targets {tuple(targets.shape[1:])} {targets.dtype}"
    return ConfigError(
        f"model: model and loss do not train on random examples of the form of the data, {form} ({type(error).__name__}: "
        f"{error}); nothing was charged; make them take any example of that form, since one that fails adds nothing to a sum"
    )


def remembers() -> ConfigError:
    """What to raise where what one unit adds depends on what was computed before."""
    return ConfigError(
        "model: what model and loss make of one example hangs on what they saw before, so that one client's data would move "
        "what others add, which no clip bounds; keep nothing from one call to the next in attributes of the model or the loss, "
        "and draw random numbers from torch alone"
    )
