"""What a module has that is neither trained nor released: frozen parameters and buffers, which come back after each client."""

from typing import Any

import torch
from torch import nn

__all__ = ["Constants"]


class Constants:
    """A module's frozen parameters and buffers, as they are now.

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
