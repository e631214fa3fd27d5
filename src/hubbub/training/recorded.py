"""A step of training as the list of torch's operations that it consists of: written down once, then followed.

``vmap``, autograd and a module's own ``forward`` find out anew in each step what to do; for small networks that takes as long
as to do it. What they do is one list of operations, unless it hangs on numbers, on chance, or on what the module remembers:
then every step goes the whole way. The operations are the same either way, and so is every bit.
"""

import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from hubbub.training.graphs import Graph, graphed
from hubbub.training.programs import Operation, Outputs, Program, Slot, mapped
from hubbub.training.remembered import remembered

__all__ = ["Recorded"]

_ATEN = torch.ops.aten
_PACKED = _ATEN._pack_padded_sequence.default
# What such operations do hangs on numbers or on chance, or they change the form of a tensor that others see.
_UNSTEADY = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
    torch.Tag.nondeterministic_seeded,
}
# Where these leave a tensor's form as it was, they give it back as it is.
_VIEWS = {_ATEN.detach.default, _ATEN.permute.default, _ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.expand.default}
# What reads or writes a tensor's numbers past all operations.
_UNSEEN = {
    torch.Tensor.numpy,
    torch.Tensor.tolist,
    torch.Tensor.__array__,
    torch.Tensor.__dlpack__,
    torch.Tensor.__deepcopy__,
    torch.Tensor.__reduce_ex__,
    torch.Tensor.__repr__,
    torch.Tensor.__format__,
    torch.Tensor.data_ptr,
    torch.Tensor.storage,
    torch.Tensor._typed_storage,
    torch.Tensor.untyped_storage,
    torch.Tensor.apply_,
    torch.Tensor.map_,
    torch.Tensor.map2_,
    torch.Tensor.data.__set__,  # type: ignore[attr-defined] # so it is named to those who watch
    torch.Tensor.__cuda_array_interface__.__get__,
}
# Forms of a step of which there are lists, and how often a step of one is written down before it goes the whole way for good.
_FORMS = 8
_ATTEMPTS = 4


class Recorded:
    """Runs steps of a module: the first of each form as they are, later ones from the list of what those did.

    A list is written down after the step itself, from a second pass that changes nothing. It is followed once two steps have
    given the same one, and its outputs were those of the step itself to the last bit: what hangs on numbers, on chance, on the
    time or on what others did would not have been the same twice.

    Args:
        module: Whose parameters and buffers a step uses beside its arguments.
        others: What else it calls, such as a loss.
    """

    def __init__(self, module: nn.Module, *others: object) -> None:
        self._module, self._called = module, (module, *others)
        self._memory: object = None
        self._programs: dict[Hashable, Program] = {}
        self._written: dict[Hashable, int] = {}
        # On a GPU, of programs that are confirmed.
        self._graphs: dict[Hashable, Graph] = {}
        self._pool: Any = None

    def look(self) -> None:
        """Throw the lists away if the module or the others were changed since; to be called before steps."""
        memory = remembered(*self._called)
        if memory != self._memory:
            self._forget()
        self._memory = memory

    def __call__(self, step: Callable[..., Outputs], form: Hashable, *tensors: torch.Tensor) -> Outputs:
        """What a step makes of tensors, without a way to differentiate it.

        Args:
            step: A function of these tensors, of the module and of the others.
            form: All else that it hangs on.
            tensors: Its arguments.
        """
        key = (form, *((tuple(t.shape), t.stride(), t.dtype) for t in tensors))
        program = self._programs.get(key)
        if program is not None and program.confirmed:
            return self._graphs.get(key, program)(tensors)
        written = self._written.get(key, 0)
        if written == _ATTEMPTS or (not written and len(self._written) >= _FORMS):
            return step(*tensors)
        self._written[key] = written + 1
        before = self._state()
        found = step(*tensors)
        if self._state() != before:
            # Then lists may hang on what it has changed.
            self._forget()
            return found
        program = self._write(step, tensors)
        if program is None or not program.made(found):
            self._written[key] = _ATTEMPTS
            return found
        known = self._programs.get(key)
        program.confirmed = known is not None and known.same(program)
        self._programs[key] = program
        if program.confirmed and tensors[0].is_cuda:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            if graph := graphed(program, tensors, found, self._pool):
                self._graphs[key] = graph
        return found

    def _write(self, step: Callable[..., Outputs], tensors: Sequence[torch.Tensor]) -> Program | None:
        """The list, from a pass that leaves everything as it was."""
        attributes, chances = _attributes(self._called), (random.getstate(), np.random.get_state())  # noqa: NPY002 # a module may
        recorder = _Recorder(self._module, tensors)
        try:
            with recorder, _Watching(recorder):
                return recorder.program(step(*tensors))
        except (_UnsteadyError, Exception):  # noqa: BLE001 # the step itself has tested whether something is wrong
            return None
        finally:
            random.setstate(chances[0])
            np.random.set_state(chances[1])  # noqa: NPY002
            _put_back(attributes)

    def _forget(self) -> None:
        self._programs.clear()
        self._graphs.clear()

    def _state(self) -> object:
        _, numbers, *place = np.random.get_state()  # noqa: NPY002 # a module may draw from it
        return remembered(*self._called), random.getstate(), np.asarray(numbers).tobytes(), place


class _UnsteadyError(BaseException):
    """A step about which there can be no list; not to be caught by a module that tries things out."""


class _Recorder(TorchDispatchMode):
    """Inside, operations are written down as they are done; one that a list cannot have, or that leaves traces, is not done."""

    def __init__(self, module: nn.Module, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it without types
        # Of a tensor that is gone nothing is left here: another one may have its address.
        self._slots = WeakTensorKeyDictionary()
        self._number = 0
        self._operations: list[Operation] = []
        self._constants: dict[int, torch.Tensor] = {}
        own = [*module.parameters(), *module.buffers()]
        self._own = WeakTensorKeyDictionary(dict.fromkeys(own))
        self._kept = {_storage(tensor) for tensor in (*own, *tensors)}
        self._steady = True
        for tensor in tensors:
            self._new(tensor)

    def __torch_dispatch__(
        self, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """What the operation does, and one more line in the list."""
        named = kwargs or {}
        # What others' operations do nobody here knows; and of lengths a form is made, though no tag says so.
        known = isinstance(function, OpOverload) and function.namespace in ("aten", "hubbub") and function is not _PACKED
        if not (known and self._steady and _UNSTEADY.isdisjoint(function.tags)) or self._leaves_traces(function, args, named):
            self.refuse()
        if function is _ATEN.lift_fresh.default:
            # A number in Python became a tensor, which later steps find as it was.
            self._constants[self._new(args[0]).number] = args[0].clone()
            function = _ATEN.clone.default
        slots = self._filled(args), {name: self._filled(value) for name, value in named.items()}
        found = function(*args, **named)
        if function in _VIEWS and _alike(found, args[0]):
            self._slots[found] = slots[0][0].number
        else:
            outputs = mapped(found, self._new) if isinstance(found, torch.Tensor | tuple | list) else None
            self._operations.append(Operation(function, *slots, outputs))
        return found

    def refuse(self) -> NoReturn:
        """There is no list, and the step ends here."""
        self._steady = False
        raise _UnsteadyError

    def program(self, outputs: Outputs) -> Program | None:
        """What was written down, if later steps may follow it."""
        if not self._steady:
            return None
        return Program(self._operations, self._constants, self._number, self._filled(list(outputs)), outputs)

    def _leaves_traces(self, function: OpOverload, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Whether it writes to an argument of the step or to the module."""
        if not function._schema.is_mutable:
            return False
        given = dict(zip((one.name for one in function._schema.arguments), args, strict=False)) | dict(named)
        changed = [given.get(one.name) for one in function._schema.arguments if one.alias_info and one.alias_info.is_write]
        tensors = [part for one in changed for part in (one if isinstance(one, tuple | list) else [one])]
        return any(isinstance(part, torch.Tensor) and _storage(part) in self._kept for part in tensors)

    def _new(self, tensor: torch.Tensor) -> Slot:
        slot = self._slots.get(tensor)
        if slot is None:
            slot = self._slots[tensor] = self._number
            self._number += 1
        return Slot(slot)

    def _filled(self, part: Any) -> Any:
        return mapped(part, self._known)

    def _known(self, tensor: torch.Tensor) -> Slot:
        if tensor not in self._slots:
            if tensor not in self._own:
                # Of any other tensor it is not known where it comes from.
                self.refuse()
            self._constants[self._number] = tensor
        return self._new(tensor)


class _Watching(TorchFunctionMode):
    """Inside, a recorder hears of numbers that leave their tensors, or come into them, by no operation."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """What the function does."""
        if func in _UNSEEN:
            self._recorder.refuse()
        return func(*args, **(kwargs or {}))


def _alike(found: torch.Tensor, given: torch.Tensor) -> bool:
    return found.shape == given.shape and found.stride() == given.stride()


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _storage(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata)


def _attributes(called: Sequence[object]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The attributes of modules and others, each table with a copy."""
    parts = [part for one in called for part in (one.modules() if isinstance(one, nn.Module) else [one])]
    tables = [getattr(part, "__dict__", None) for part in parts]
    tables += [getattr(part, name) for part in parts if isinstance(part, nn.Module) for name in ("_parameters", "_buffers")]
    return [(table, table.copy()) for table in tables if isinstance(table, dict)]


def _put_back(attributes: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    for table, before in attributes:
        if table.keys() != before.keys() or any(table[name] is not value for name, value in before.items()):
            table.clear()
            table.update(before)
