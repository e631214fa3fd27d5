"""Faults of one unit's own computation: the unit counts as zero and the round continues, as when a remote client fails.

A round that stopped would reveal the unit. A model that fails for every unit is refused before the first round, on a probe
batch. Lack of memory, or another fault of the machine, stops the run: which other units fail with it would depend on all data,
and leaving those out is no function of each unit's own data.

A probe batch is synthetic, so that no result on it depends on data. It has the form of the data and is random: on zeros and
copies even kernels that depend on positions give equal bits.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import nn

from hubbub.errors import ConfigError
from hubbub.training.simulation.functional import attributes_left

_LOG = logging.getLogger("hubbub")
_LONGEST = 200
# Newer versions of torch: a GPU that computes nothing any more.
_MACHINE: tuple[type[BaseException], ...] = (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()

# Of made-up numbers, how many are padding, if there is any.
_PADDING = 0.3

Unit = TypeVar("Unit")
Made = TypeVar("Made")


class UnsteadyError(ConfigError):
    """What a model makes of one unit depends on others."""


def require_own(error: Exception) -> None:
    """Raise an error again if it is no unit's own: a fault of the machine, or of the settings."""
    of_machine = lacks_memory(error) or reason(error).startswith("RuntimeError: CUDA error")
    if of_machine or isinstance(error, (ConfigError, *_MACHINE)):
        raise error


def lacks_memory(error: Exception) -> bool:
    """Whether memory was lacking; of a processor's torch says so in a plain ``RuntimeError``."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator: " in reason(error)


def reason(error: Exception) -> str:
    """An error in one printable line."""
    try:
        why = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 # somebody's error that cannot even be shown
        why = type(error).__name__
    return why.encode("ascii", "backslashreplace").decode()[:_LONGEST]


def isolated(
    compute: Callable[[Sequence[Unit]], Made], units: Sequence[Unit], nothing: Callable[[Unit, Exception], Made]
) -> Iterator[Made]:
    """The results of units computed together; if that fails, of each half of them, down to one, which counts as ``nothing``.

    One unit's part of the result must not depend on the others.

    Example:
        >>> list(isolated(lambda units: [1 / unit for unit in units], [1, 0, 2], lambda unit, error: [0.0]))
        [[1.0], [0.0], [0.5]]
    """
    try:
        found = compute(units)
    except Exception as error:  # noqa: BLE001 # whatever a unit's data or code raises, the round must not depend on it
        require_own(error)
        if len(units) == 1:
            found = nothing(units[0], error)
        else:
            half = len(units) // 2
            for part in (units[:half], units[half:]):
                yield from isolated(compute, part, nothing)
            return
    yield found


def note(unit: str, why: str) -> None:
    """Log a fault for the operator by the logger ``hubbub``, silent by default: it may reveal a unit's data."""
    _LOG.info("counted as nothing: %s: %r", unit, why)


def probe_batch(
    inputs: torch.Tensor, targets: torch.Tensor, module: nn.Module, examples: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Synthetic inputs and targets of the form of given ones, ``(any, *shape)``, independent of their values.

    Integer inputs are rows of the module's embeddings, if it has any, those of padding among them. Integer targets are 0 and 1
    in turn, as a loss may ignore one of them.
    """
    drawn = torch.Generator().manual_seed(seed)
    made = [torch.zeros(examples, *given.shape[1:], dtype=given.dtype, device="cpu") for given in (inputs, targets)]
    if not inputs.is_floating_point():
        tables = [layer for layer in module.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
        rows = min([layer.num_embeddings for layer in tables], default=2)
        made[0].copy_(torch.randint(rows, made[0].shape, generator=drawn, device="cpu"))
        for padding in sorted({layer.padding_idx for layer in tables if layer.padding_idx is not None}):
            if made[0].ndim > 1 and padding < rows:
                made[0][torch.rand(made[0].shape, generator=drawn, device="cpu") < _PADDING] = padding
    if not (targets.is_floating_point() or targets.is_complex()):
        made[1][1::2] = 1
    for part in made:
        if part.is_floating_point():
            part.copy_(torch.rand(part.shape, generator=drawn, device="cpu"))
    return made[0].to(inputs.device), made[1].to(targets.device)


def opposite(inputs: torch.Tensor, first: int) -> None:
    """Turn the sign of made-up inputs from the one of that number on, in place, if they have one: some state is a sign."""
    if inputs.is_floating_point():
        inputs[first:].neg_()


def shaken(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Parameters plus noise of the size of a fresh layer's, detached: none is zero."""
    drawn = torch.Generator().manual_seed(1)
    found = {}
    for name, p in parameters.items():
        stddev = max(1, p[0].numel()) ** -0.5 if p.ndim > 1 else 0.1
        noise = torch.randn(p.shape, generator=drawn, device="cpu") * stddev
        found[name] = p.detach() + noise.to(p.device, p.dtype)
    return found


def agree(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    """Whether two updates are equal up to rounding, or both not finite and so count as zero."""
    if not bool(torch.isfinite(expected).all()):
        return not bool(torch.isfinite(found).all())
    return float((found - expected).norm()) <= tolerance * float(expected.norm())


def require_steady(compute: Callable[[int], torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Refuse, on a probe batch of this form, a model that fails for every unit, or whose updates depend on earlier units.

    ``compute`` gives the update of a unit, by its number, ``(dim,)``.
    """
    try:
        with attributes_left():
            found = [compute(number) for number in (0, 1, 1, 0)]
    except Exception as error:
        require_own(error)
        form = f"inputs {tuple(inputs.shape[1:])} {inputs.dtype} and targets {tuple(targets.shape[1:])} {targets.dtype}"
        raise ConfigError(
            f"model: model and loss do not train on random examples of the form of the data, {form} ({type(error).__name__}: "
            f"{error}); no privacy cost was spent; make them take any example of that form, since one that fails adds nothing "
            "to a sum"
        ) from error
    if not any(bool(torch.isfinite(one).all()) for one in found):
        raise ConfigError(
            "model: model and loss give no finite update on random examples of the form of the data, so that nothing shows "
            "whether one client's data would move what others add; make them finite on any example of that form"
        )
    if not (agree(found[3], found[0]) and agree(found[2], found[1])):
        raise UnsteadyError(
            "model: what model and loss make of one example depends on what they saw before, so that one client's data would "
            "move what others add, which no clip bounds; keep nothing from one call to the next in attributes of the model or "
            "the loss, and draw random numbers from torch alone"
        )
