"""A list of torch's operations, with slots where there were tensors, that can be followed with others of the same form."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Operation", "Outputs", "Program", "Slot", "copied", "mapped", "same_bits"]

# Of tensors, pairs of them and None.
Outputs = Sequence[Any]


@dataclass(frozen=True)
class Slot:
    """A place for a tensor."""

    number: int


@dataclass(frozen=True, eq=False)
class Operation:
    """One call: arguments, named arguments and outputs have slots where there were tensors."""

    function: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    outputs: Any


class Program:
    """A list of operations, without those whose outputs nobody reads."""

    def __init__(
        self,
        operations: Sequence[Operation],
        constants: dict[int, torch.Tensor],
        slots: int,
        outputs: Any,
        found: Outputs,
    ) -> None:
        self._outputs, self._slots = outputs, [constants.get(i) for i in range(slots)]
        self._found: Outputs = found
        self._text = repr([(str(one.function), one.arguments, one.named, one.outputs) for one in operations] + [outputs])
        self.confirmed = False
        self._lines: list[_Line] = []
        read = {*constants, *_numbers(outputs)}
        for operation in reversed(operations):
            made = set(_numbers(operation.outputs))
            if made and read.isdisjoint(made) and not operation.function._schema.is_mutable:
                continue
            # What no later operation reads is given back at once, while its memory is warm.
            used = {*_numbers(operation.arguments), *_numbers(operation.named), *made}
            self._lines.append(_Line(operation, sorted(used - read)))
            read |= used
        self._lines.reverse()

    @torch.no_grad()
    def __call__(self, tensors: Sequence[torch.Tensor]) -> Outputs:
        """The outputs for other arguments of the same form."""
        slots = self._slots.copy()
        slots[: len(tensors)] = tensors
        # In the list numbers are already as narrow as they were made.
        with torch.autocast(tensors[0].device.type, enabled=False):
            for line in self._lines:
                line.follow(slots)
        outputs: Outputs = _placed(self._outputs, slots)
        return outputs

    def constants(self) -> list[torch.Tensor]:
        """What it reads beside its arguments."""
        return [tensor for tensor in self._slots if tensor is not None]

    def made(self, expected: Outputs) -> bool:
        """Whether the pass in which it was written down made these very bits; asked once."""
        found, self._found = self._found, ()
        return all(map(same_bits, found, expected))

    def same(self, other: "Program") -> bool:
        """Whether another list does the same, with the same numbers from Python."""
        pairs = zip(self._slots, other._slots, strict=False)
        return self._text == other._text and all(same_bits(a, b) for a, b in pairs)


class _Line:
    """An operation, and the slots of which nothing is needed after it."""

    def __init__(self, operation: Operation, done: Sequence[int]) -> None:
        self._function, self._arguments, self._named = operation.function, list(operation.arguments), operation.named
        self._outputs, self._done = operation.outputs, done
        # Most arguments are tensors or numbers: they cost nothing to look through.
        self._tensors = [(i, part.number) for i, part in enumerate(self._arguments) if isinstance(part, Slot)]
        self._lists = [i for i, part in enumerate(self._arguments) if isinstance(part, tuple | list) and list(_numbers(part))]
        self._by_name = [name for name, part in self._named.items() if list(_numbers(part))]

    def follow(self, slots: list[torch.Tensor | None]) -> None:
        """Do it."""
        arguments = self._arguments.copy()
        for i, number in self._tensors:
            arguments[i] = slots[number]
        for i in self._lists:
            arguments[i] = _placed(arguments[i], slots)
        named = self._named
        if self._by_name:
            named = named | {name: _placed(named[name], slots) for name in self._by_name}
        found = self._function(*arguments, **named)
        if isinstance(self._outputs, Slot):
            slots[self._outputs.number] = found
        elif self._outputs is not None:
            for slot, one in zip(self._outputs, found, strict=True):
                if isinstance(slot, Slot):
                    slots[slot.number] = one
        for number in self._done:
            slots[number] = None


def _placed(part: Any, slots: Sequence[torch.Tensor | None]) -> Any:
    """The same with tensors in place of slots."""
    if isinstance(part, Slot):
        return slots[part.number]
    return type(part)([_placed(one, slots) for one in part]) if isinstance(part, tuple | list) else part


def mapped(part: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same with something else in place of tensors."""
    if isinstance(part, torch.Tensor):
        return change(part)
    return type(part)(mapped(one, change) for one in part) if isinstance(part, tuple | list) else part


def copied(outputs: Outputs) -> Outputs:
    """The same in memory of its own."""
    return [mapped(one, torch.Tensor.clone) for one in outputs]


def _numbers(part: Any) -> Iterator[int]:
    """Of all slots in it."""
    if isinstance(part, Slot):
        yield part.number
    elif isinstance(part, dict):
        yield from _numbers(list(part.values()))
    elif isinstance(part, tuple | list):
        for one in part:
            yield from _numbers(one)


def same_bits(a: Any, b: Any) -> bool:
    """Of two outputs of one form."""
    if a is b:
        return True
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_bits, a, b))
    if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(*(one.detach().contiguous().flatten().view(torch.uint8) for one in (a, b)))
