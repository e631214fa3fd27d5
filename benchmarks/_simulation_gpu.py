"""Rounds on a GPU, beside one client after the other on the same GPU."""

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know
from torch.utils.flop_counter import FlopCounterMode

from _peer_turns import Work
from _runner import Row, Skipped
from _simulation_sides import cnn, mnist_work, ours, population
from hubbub.training import Execution

# Clients and samples: as many images each time.
ROUNDS = ((100, 600), (1000, 60))
# Clients that the peer trains, its cost being that of any client.
FEW = 5
GOAL = 10.0
# Side of the square matrices whose product is the peak.
SIDE = 8192


def gpu_rows(seconds: float) -> list[Row | Skipped]:
    """Rounds of 100 and of 1,000 clients."""
    if not torch.cuda.is_available():
        return [Skipped("CNN on a GPU", "torch sees none")]
    return rows(seconds, "cuda", SIDE, ROUNDS)


def rows(seconds: float, device: str, side: int, rounds: tuple[tuple[int, int], ...]) -> list[Row | Skipped]:
    """The same on any device.

    Args:
        seconds: How long a side may be repeated.
        device: Of models and data.
        side: Of the square matrices whose product is the peak.
        rounds: Clients and samples of each row.
    """
    matrix = torch.rand(side, side, device=device)
    peak = 2 * side**3 / _least_seconds(lambda: matrix @ matrix, seconds, device)
    found: list[Row | Skipped] = []
    for clients, samples in rounds:
        work = _on(mnist_work(cnn(), clients, samples), device)
        few = replace(work, clients=(work.clients[0][:FEW], work.clients[1][:FEW]))
        model = work.model
        mine, single = (
            ours(population(*side))
            for side in ((work, Execution(device=device)), (few, Execution("one-by-one", device=device)))
        )
        cost = _least_seconds(lambda: mine(model, 0), seconds, device) / clients  # noqa: B023 # called at once
        one = _least_seconds(lambda: single(model, 0), seconds, device) / FEW  # noqa: B023 # called at once
        share = samples * _operations(work) / cost / peak
        name = f"CNN on {_name(device)}, a client round of {clients:,} x {samples} images; peer: one by one"
        speed = f"{1 / cost:.4g} client rounds a second"
        note = f"{speed}; {100 * share:.2g} % of the {peak / 1e12:.3g} TFLOP/s of a matrix product"
        found.append(Row(name, cost, one, GOAL, unit="wall seconds", note=note))
    return found


def _on(work: Work, device: str) -> Work:
    clients, test = ((inputs.to(device), targets.to(device)) for inputs, targets in (work.clients, work.test))
    return replace(work, model=work.model.to(device), clients=clients, test=test)


def _operations(work: Work) -> float:
    """Floating-point operations of one example, forward and backward."""
    inputs, targets = work.client(0)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(work.model(inputs[:1]), targets[:1]).backward()
    work.model.zero_grad()
    return float(counter.get_total_flops())


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


def _least_seconds(call: Callable[[], object], seconds: float, device: str) -> float:
    """Of as many calls as fit into a time, the first not counted; each until the device is done."""
    spent, stop = [], time.perf_counter() + seconds
    while len(spent) < 2 or time.perf_counter() < stop:
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - begin)
    return min(spent[1:])
