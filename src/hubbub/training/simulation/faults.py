"""What goes wrong in one unit's own computation: it adds nothing, and the round continues, as where a client far away fails.

That a round stops would reveal that the unit is there. What fails for every unit is found before the first round, on a
probe batch. What the machine has not enough of, memory above all, stops the run whoever asked for it: who else then failed
would depend on what others hold, and to leave those out is no function of each one's own data.

A probe batch is synthetic: what is found on it must not depend on anybody's data. It has the form of what it stands for and is
random, since zeros and copies, which data and fresh models are full of, give the same last bits by kernels that else do not.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import nn

from hubbub.errors import ConfigError

__all__ = ["agree", "isolated", "note", "probe_batch", "reason", "require_own", "require_steady", "shaken"]

_LOG = logging.getLogger("hubbub")
_LONGEST = 200
_MACHINE: tuple[type[BaseException], ...] = (
    MemoryError,
    torch.OutOfMemoryError,
    # Newer versions of torch: a GPU that computes nothing any more.
    *([torch.AcceleratorError] if hasattr(torch, "AcceleratorError") else []),
)

Unit = TypeVar("Unit")
Made = TypeVar("Made")


def require_own(error: Exception) -> None:
    """Raise again what is no unit's own fault: the machine's, and settings that nobody can train by."""
    if isinstance(error, (ConfigError, *_MACHINE)) or reason(error).startswith("RuntimeError: CUDA error"):
        raise error


def reason(error: Exception) -> str:
    """What was raised, in one line; an error is kept by no more than this, since others are not to be copied or shown."""
    try:
        why = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 # somebody's error that cannot even be shown
        why = type(error).__name__
    return why.encode("ascii", "backslashreplace").decode()[:_LONGEST]


def isolated(
    compute: Callable[[Sequence[Unit]], Made], units: Sequence[Unit], nothing: Callable[[Unit, Exception], Made]
) -> Iterator[Made]:
    """What is computed of units together; where that fails, of each half of them, down to whoever fails alone.

    Args:
        compute: Of some units; what one of them adds must not depend on the others.
        units: At least one.
        nothing: What stands for a unit that fails alone.

    Example:
        >>> list(isolated(lambda units: [1 / unit for unit in units], [1, 0, 2], lambda unit, error: [0.0]))
        [[1.0], [0.0], [0.5]]
    """
    try:
        found = compute(units)
    except Exception as error:  # noqa: BLE001 # whatever one unit's data or code raises, the round must not depend on it
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
    """Inform the operator, by the logger ``hubbub``, which is silent unless somebody listens: it may reveal a unit's data."""
    _LOG.info("counted as nothing: %s: %r", unit, why)


_AGREEMENT = 1e-5


def probe_batch(
    inputs: torch.Tensor, targets: torch.Tensor, module: nn.Module, examples: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A number of inputs and targets of a form, the same whatever the given ones hold.

    Args:
        inputs: ``(any, *shape)``.
        targets: ``(any, *shape)``.
        module: That takes them: whole numbers are rows of its tables, where it has some. Of targets they are all 0.
        examples: How many.
    """
    drawn = torch.Generator().manual_seed(0)
    made = [torch.zeros(examples, *given.shape[1:], dtype=given.dtype) for given in (inputs, targets)]
    if not inputs.is_floating_point():
        tables = [layer.num_embeddings for layer in module.modules() if isinstance(layer, nn.Embedding)]
        made[0].copy_(torch.randint(min([*tables, 256 if tables else 2]), made[0].shape, generator=drawn))
    for part in made:
        if part.is_floating_point():
            part.copy_(torch.rand(part.shape, generator=drawn))
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


def require_steady(compute: Callable[[int], torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Refuse, on a probe batch, what would fail for every unit, or would depend on earlier ones.

    Args:
        compute: What a unit of a number adds, ``(dim,)``.
        inputs: Of whose form the probe batch is.
        targets: Likewise.

    Raises:
        ConfigError: Model and loss fail, or keep something from one unit to the next.
    """
    try:
        first, _, again = (compute(number) for number in (0, 1, 0))
    except Exception as error:
        require_own(error)
        form = f"inputs {tuple(inputs.shape[1:])} {inputs.dtype} and targets {tuple(targets.shape[1:])} {targets.dtype}"
        raise ConfigError(
            f"model: model and loss do not train on random examples of the form of the data, {form} ({type(error).__name__}: "
            f"{error}); no privacy cost was spent; make them take any example of that form, since one that fails adds nothing "
            "to a sum"
        ) from error
    if not agree(again, first):
        raise ConfigError(
            "model: what model and loss make of one example depends on what they saw before, so that one client's data would "
            "move what others add, which no clip bounds; keep nothing from one call to the next in attributes of the model or "
            "the loss, and draw random numbers from torch alone"
        )
