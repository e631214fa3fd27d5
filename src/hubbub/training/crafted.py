"""A client whose update somebody chooses, for audits and attacks: everything after the choice is the real path.

A population with a method ``craft(client, crafted)`` lets such a client take part as any other does: cohorts are drawn without
asking who it is, and its update is clipped, rounded, summed, encrypted or sent as everybody's is.
"""

from collections.abc import Callable

import torch
from torch import nn

from hubbub.errors import ConfigError
from hubbub.training.local import trainable

__all__ = ["Crafted", "crafted_update"]

# From the global model and the round's index, from 0, to what the client sends before it is clipped, ``(dim,)`` of any floating
# dtype; ``None`` where it does not answer, so that it adds nothing at all.
Crafted = Callable[[nn.Module, int], torch.Tensor | None]


def crafted_update(crafted: Crafted, model: nn.Module, round_index: int) -> torch.Tensor | None:
    """What a crafted client sends in a round, ``(dim,)``; numbers that are not finite are its own affair.

    Args:
        crafted: Makes it.
        model: The global model; it must stay as it is.
        round_index: From 0.

    Raises:
        ConfigError: It makes something else than a floating vector as long as the model.
    """
    with torch.no_grad():
        update = crafted(model, round_index)
    if update is None:
        return None
    dim = sum(p.numel() for p in trainable(model).values())
    if not isinstance(update, torch.Tensor) or not update.is_floating_point() or update.shape != (dim,):
        found = (
            f"a tensor {tuple(update.shape)} of {update.dtype}" if isinstance(update, torch.Tensor) else type(update).__name__
        )
        raise ConfigError(f"crafted: made {found} in round {round_index}; make a floating vector of {dim} numbers, or None")
    return update.detach()
