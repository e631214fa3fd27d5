"""Tensors from the bytes of a safetensors file, with one reading of its header."""

from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from hubbub import strict_json

__all__ = ["metadata", "parse"]


def parse(content: bytes) -> dict[str, torch.Tensor]:
    """The tensors by name.

    Raises:
        ValueError: Not a safetensors file: cut, overlapping, of another size than its header says, or with a name twice.
    """
    _header(content)
    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        # Names in the file may be anything, and messages are read on terminals.
        raise ValueError(f"it is no file of tensors: {str(error).encode('unicode_escape').decode()}") from error


def metadata(content: bytes) -> dict[str, Any]:
    """What the file says beside its tensors.

    Raises:
        ValueError: The header cannot be read.
    """
    found = _header(content).get("__metadata__", {})
    if not isinstance(found, dict):
        raise ValueError("its metadata are no table")
    return found


def _header(content: bytes) -> dict[str, Any]:
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > len(content) - 8:
        raise ValueError(f"its header claims {length} of {len(content)} bytes")
    header = strict_json.loads(content[8 : 8 + length])
    if not isinstance(header, dict):
        raise ValueError("its header is no table")
    return header
