"""A list of operations as one CUDA graph: launched at once, since a GPU has done with a small one before the next arrives."""

from collections.abc import Sequence
from typing import Any

import torch

from hubbub.training.programs import Outputs, Program, copied, same_bits

__all__ = ["graphed"]

# Passes before the one that is captured: libraries set themselves up in the first.
_PASSES = 2


def graphed(program: Program, tensors: Sequence[torch.Tensor], expected: Outputs, pool: Any) -> "Graph | None":
    """The program as a graph, if the GPU can have one that makes the very bits that the program makes.

    Args:
        program: Confirmed.
        tensors: Its arguments, on a GPU.
        expected: What it makes of them.
        pool: Of memory: graphs that are launched one after the other need it once.
    """
    try:
        graph = Graph(program, tensors, pool)
        return graph if all(map(same_bits, graph(tensors), expected)) else None
    except RuntimeError:
        # Some operation waits for the processor, or there is no memory left for a second one of each tensor.
        return None


class Graph:
    """What a program does to tensors of one form, captured once.

    Args:
        program: Has no operation that draws random numbers or whose outputs' form hangs on numbers.
        tensors: Its arguments; others must have the same form.
        pool: Of memory, which the next graph's launch may overwrite.

    Raises:
        RuntimeError: It cannot be captured.
    """

    def __init__(self, program: Program, tensors: Sequence[torch.Tensor], pool: Any) -> None:
        self._program = program
        self._given = [tensor.detach().clone() for tensor in tensors]
        # Where the captured operations will look for them.
        self._constants = [(constant, constant.data_ptr()) for constant in program.constants()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_PASSES):
                program(self._given)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._outputs = program(self._given)

    @torch.no_grad()
    def __call__(self, tensors: Sequence[torch.Tensor]) -> Outputs:
        """The outputs, which nothing overwrites."""
        if any(constant.data_ptr() != place for constant, place in self._constants):
            return self._program(tensors)
        for own, given in zip(self._given, tensors, strict=True):
            own.copy_(given)
        self._graph.replay()
        return copied(self._outputs)
