"""A model as one flat vector: what is clipped, summed, noised and released.

Letters: dim, the number of trainable parameters.
"""

import torch
from torch import nn

from hubbub.errors import ConfigError

__all__ = ["FlatModel", "difference", "refuse_buffers", "require_trainable"]


class FlatModel:
    """A module whose trainable parameters are views of one vector, and their gradients of another.

    Writing to ``vector`` changes the model, in place. Parameters that do not require a gradient stay as they are and are
    never released; a parameter that two layers share counts once.

    Args:
        module: Any module; the order of its trainable parameters is that of ``module.named_parameters()``.

    Raises:
        ConfigError: No trainable parameter, parameters of several dtypes or of a dtype that is not floating, or a buffer.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._parameters = require_trainable(module)
        first = self._parameters[0]
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
        """Refuse a model whose parameters were replaced, so that the vector would change nothing any more.

        Raises:
            ConfigError: A parameter is no view of the vector.
        """
        start = self.vector.data_ptr()
        for parameter in self._parameters:
            if parameter.data_ptr() != start or parameter.dtype != self.vector.dtype:
                raise ConfigError(
                    "model: its parameters were replaced during the run (by .to(), .half() or the like); convert a copy instead"
                )
            start += parameter.numel() * parameter.element_size()


def require_trainable(module: nn.Module) -> list[nn.Parameter]:
    """The trainable parameters of a module that can be trained privately.

    Raises:
        ConfigError: None, or of several dtypes or of a dtype that is not floating, or a buffer.
    """
    refuse_buffers(module)
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise ConfigError("model: has no trainable parameter; set requires_grad on those to be trained")
    kinds = {p.dtype for p in parameters}
    if len(kinds) > 1 or not parameters[0].is_floating_point():
        raise ConfigError(f"model: trainable parameters of dtypes {kinds}; they must share one floating dtype")
    return parameters


def difference(after: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """after − before, in their dtype where both share one of 32 bits or more, else in float64."""
    if after.dtype == before.dtype and after.dtype in (torch.float32, torch.float64):
        return after - before
    return after.to(torch.float64) - before.to(torch.float64)


def refuse_buffers(module: nn.Module) -> None:
    """Statistics that layers gather from clients' data would be released without clip or noise."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats:
            raise ConfigError(
                f"model: {name or 'the model'} is {type(layer).__name__}, whose running statistics come from clients' data "
                "and cannot be hidden; use GroupNorm, LayerNorm or InstanceNorm without running statistics"
            )
    kept = set(module.state_dict())
    for name, _ in module.named_buffers():
        if name in kept:
            raise ConfigError(
                f"model: has the buffer {name!r}, which is neither clipped nor noised; register a constant with "
                "persistent=False, or make it a parameter"
            )
