"""Whether what a stream remembers fits in the memory that this process may have: known before the first round."""

import contextlib
import os
import resource
from pathlib import Path

import torch

from hubbub.errors import ConfigError

__all__ = ["most_memory", "require_memory"]

_CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")


def require_memory(rows: int, width: int, like: torch.Tensor) -> None:
    """Refuse a stream that remembers ``rows`` rows of ``width`` numbers like ``like`` where these alone are too many.

    Raises:
        ConfigError: They are; the message says how much is needed and what needs less.
    """
    needed, most = rows * width * like.element_size(), most_memory(like.device)
    if needed > most:
        raise ConfigError(
            f"the noise remembers {rows:,} rows of {width:,} numbers, {needed / 2**30:,.1f} GiB, and {most / 2**30:,.1f} GiB "
            "is all the memory there is; take a strategy that remembers fewer rows (fewer bands, banded-inverse, or blt with "
            "its few buffers), or a smaller model"
        )


def most_memory(device: torch.device) -> int:
    """Bytes that a device has, or less where this process or its control group is limited."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    with contextlib.suppress(OSError, ValueError):
        # Where it holds the word "max", there is no limit.
        limits.append(int(_CONTROL_GROUP.read_text()))
    return min(limits)
