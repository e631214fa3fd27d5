"""Rows of correlated noise on a GPU, beside what a copy on the same GPU would take for the bytes that have to be moved."""

import time
from collections.abc import Callable, Sequence

import torch

from _runner import Row, Skipped
from hubbub.mechanism import Mechanism
from hubbub.noise import NoiseStream
from hubbub.noise.blocks import rounds_per_pass
from hubbub.participation import SingleParticipation
from hubbub.strategies import Strategy
from hubbub.strategies.strategy import memory_rows

DIM = 10**8
# Of the bandwidth of a copy.
GOAL = 0.7
# Rows in a repetition: whole passes.
STEPS = 32


def gpu_rows(seconds: float, strategies: dict[str, Strategy]) -> Sequence[Row | Skipped]:
    """A row of noise by each strategy, by name."""
    if not torch.cuda.is_available():
        return [Skipped("rows of noise on a GPU", "torch sees none")]
    return rows(seconds, "cuda", DIM, strategies)


def rows(seconds: float, device: str, dim: int, strategies: dict[str, Strategy]) -> list[Row]:
    """The same on any device, for vectors of any length."""
    found, bandwidth = [], _bandwidth(seconds, device, dim)
    for name, strategy in strategies.items():
        remembered, many = memory_rows(strategy) or 0, rounds_per_pass(strategy)
        stream = NoiseStream(Mechanism(strategy, SingleParticipation(), 1.0), dim, seed=0, device=device, dtype=torch.float32)
        # Until all is remembered that ever will be.
        stream.skip_to((remembered // many + 1) * many)
        cost = _least_mean(stream.next_row, STEPS, seconds, device)
        # What is remembered, read and renewed once a pass, and each row as it is given out.
        moved = 4 * dim * (remembered / many + min(1, remembered / many) + 1)
        note = f"{moved / 1e9:.3g} GB a row at {bandwidth / 1e12:.3g} TB/s; the generator is counted in our cost alone"
        title = f"{name}, {dim:,} numbers on {_name(device)}; peer: a copy"
        found.append(Row(title, cost, moved / bandwidth, GOAL, unit="wall seconds", note=note))
    return found


def _bandwidth(seconds: float, device: str, dim: int) -> float:
    """Bytes a second of a copy, in which each number is read and written."""
    given, taken = (torch.ones(dim, device=device) for _ in range(2))
    return 2 * 4 * dim / _least_mean(lambda: taken.copy_(given), 1, seconds, device)


def _least_mean(step: Callable[[], object], steps: int, seconds: float, device: str) -> float:
    """Wall seconds of a step, in repetitions of so many steps, the first not counted; each until the device is done."""
    spent, stop = [], time.perf_counter() + seconds
    while len(spent) < 2 or time.perf_counter() < stop:
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        spent.append((time.perf_counter() - begin) / steps)
    return min(spent[1:])


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device
