"""In which numbers a client's layers compute: a matter of speed. Parameters, updates, clip and noise keep all their bits."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

__all__ = ["Precision", "computing"]

Precision = Literal["float32", "bfloat16"]


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Where layers compute in ``precision``: forward only, torch does the same backward."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bfloat16" else nullcontext()
