"""What modules and losses could remember in Python, beside their tensors: attributes, closures, the globals that they name.

A step that is done from a list must not hang on it, or the list would repeat what was true once.
"""

import io
import pickle
import sys
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["remembered"]

# Their functions and classes hold nothing of a user's.
_OTHERS = {"torch", "numpy", "builtins", *sys.stdlib_module_names}
_FUNCTIONS = FunctionType, staticmethod, classmethod, property
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, list, tuple, dict, set, OrderedDict))
_DATA = bool, int, float, complex, str, bytes, list, tuple, dict, set, np.ndarray, torch.Tensor


@dataclass(frozen=True)
class _Seen:
    """Equal where the bytes are; what they name by its place in memory is kept alive, so that nothing else takes that place."""

    content: bytes
    kept: list[object] = field(compare=False, repr=False)


def remembered(*things: object) -> object:
    """Equal for two moments only if nothing that things show to Python differs; equal to nothing where it cannot be seen."""
    buffer = io.BytesIO()
    seen = _Pickler(buffer)
    try:
        seen.dump(things)
        for part in seen.parts:
            seen.dump(_contents(part))
    except Exception:  # noqa: BLE001 # whatever somebody's object says to being looked at
        return object()
    return _Seen(buffer.getvalue(), seen.parts + seen.kept)


class _Pickler(pickle.Pickler):
    """Writes down plain values; never to be read again."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        # Modules and classes, whose contents are still to be written down; tensors and the like.
        self.parts: list[Any] = []
        self.kept: list[object] = []
        self._known: set[int] = set()

    def persistent_id(self, thing: Any) -> object:
        """What names by its place a thing that pickle would look into, or would refuse."""
        if type(thing) in _PLAIN:
            return None
        match thing:
            case torch.Tensor():
                self.kept.append(thing)
                return id(thing), thing.data_ptr(), tuple(thing.shape), thing.stride(), thing.dtype, thing.requires_grad
            case nn.Module() | type():
                if id(thing) not in self._known:
                    self._known.add(id(thing))
                    self.parts.append(thing)
                return id(thing)
            case ModuleType() | BuiltinFunctionType() | weakref.ref():
                self.kept.append(thing)
                return id(thing)
            case FunctionType() if _is_others(thing):
                self.kept.append(thing)
                return id(thing)
        return None

    def reducer_override(self, thing: Any) -> Any:
        """A function is what it holds, and the globals that it names."""
        if isinstance(thing, FunctionType):
            self.kept.append(thing)
            cells = [cell.cell_contents for cell in thing.__closure__ or ()]
            named = {name: thing.__globals__[name] for name in _names(thing.__code__) if name in thing.__globals__}
            return list, ((id(thing),),), (cells, thing.__defaults__, thing.__kwdefaults__, named)
        if isinstance(thing, property):
            return list, ((id(thing),),), thing.fget
        if isinstance(thing, staticmethod | classmethod):
            return list, ((id(thing),),), thing.__func__
        return NotImplemented


def _contents(part: Any) -> object:
    if isinstance(part, nn.Module):
        # Of each module a dozen tables of hooks are empty.
        return type(part), {name: value for name, value in vars(part).items() if value or type(value) is not OrderedDict}
    if _is_others(part):
        return None
    held = {name: value for name, value in vars(part).items() if isinstance(value, _FUNCTIONS)}
    data = {name: value for name, value in vars(part).items() if isinstance(value, _DATA) and not name.startswith("__")}
    return part.__bases__, held, data


def _is_others(thing: Any) -> bool:
    return str(thing.__module__).partition(".")[0] in _OTHERS


def _names(code: CodeType) -> list[str]:
    """Of globals, and of attributes, which nobody tells apart here."""
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part)]
    return [*code.co_names, *inner]
