"""Clients in one process, one by one or in stacks, and the settings of their execution, checked without torch."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from hubbub._util.checks import one_of, shown
from hubbub.errors import ConfigError

__all__ = ["AUTO", "MOST_AT_ONCE", "Execution", "Precision", "clients_at_once", "plan_for"]

Device = Literal["cpu", "cuda"]
Precision = Literal["float32", "bfloat16"]
AUTO = "auto"
MOST_AT_ONCE = 1024
_FORM = re.compile(r"one-by-one|batched-([1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Execution:
    """How a population computes. It changes no guarantee, and of an update only the last bits.

    Args:
        plan: ``"one-by-one"``, ``"batched-16"`` for 16 clients at a time, or ``"auto"``: the faster one for this model on this
            machine, timed on a synthetic probe batch in a second or two.
        device: Where clients train.
        precision: Of the computation in layers; parameters, updates, clip and noise keep all their bits.

    Raises:
        ConfigError: No such plan, or a device that is not there.
        ValueError: A number out of range.

    Example:
        >>> Execution("batched-16", precision="bfloat16").plan
        'batched-16'
    """

    plan: str = AUTO
    device: Device = "cpu"
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        clients_at_once(self.plan)
        one_of("device", self.device, get_args(Device))
        one_of("precision", self.precision, get_args(Precision))
        if self.device == "cuda":
            import torch

            if not torch.cuda.is_available():
                raise ConfigError(
                    "device = 'cuda': torch finds no GPU here; install a CUDA build of torch, or say device = 'cpu'"
                )


def clients_at_once(plan: str) -> int | None:
    """The number of clients that a plan trains at a time; ``None`` for ``"auto"``.

    Example:
        >>> clients_at_once("batched-16"), clients_at_once("one-by-one"), clients_at_once("auto")
        (16, 1, None)
    """
    if plan == AUTO:
        return None
    found = _FORM.fullmatch(plan) if isinstance(plan, str) else None
    clients = int(found[1] or 1) if found else 0
    if not found or (found[1] and not 2 <= clients <= MOST_AT_ONCE):
        raise ConfigError(
            f"plan = {shown(plan)}: must be 'auto', 'one-by-one' or 'batched-K' for K clients at a time, K from 2 to "
            f"{MOST_AT_ONCE}"
        )
    return clients


def plan_for(clients: int) -> str:
    """The plan that trains that many clients at a time."""
    return f"batched-{clients}" if clients > 1 else "one-by-one"
