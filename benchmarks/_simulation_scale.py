"""What many clients cost that are not many examples: memory of one round, and the plan of a run."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

import _runner
from hubbub.datasets import Dataset
from hubbub.models import Mlp
from hubbub.training import Execution, LocalTraining, SimulatedPopulation

FEW, MANY = 100, 10_000
# How many chunks of so many models a round of many clients may take more than one of few.
CHUNKS, CHUNK, PARAMETERS = 4, 10, 50_890
# The same chunks for few and for many.
PLAN = Execution(plan=f"batched-{CHUNK}")
PLAN_CLIENTS, PLAN_ROUNDS, PLAN_LIMIT = 100_000, 2000, 2.0
SETTINGS = f"""
[training]
rounds = {PLAN_ROUNDS}
cohort_size = 1000

[privacy]
epsilon = 8.0

[data]
name = "{__name__}:crowd"
clients = {PLAN_CLIENTS}
"""


def memory_rows(seconds: float) -> list[_runner.Row]:
    """The most memory of a process that sums the updates of many clients, beside one of few."""
    few, many = (_runner.alone(partial(one_round, clients)).peak_bytes / 1e6 for clients in (FEW, MANY))
    allowed = few + CHUNKS * CHUNK * 4 * PARAMETERS / 1e6
    name = f"peak memory, MLP, {MANY:,} clients in a round; peer: {FEW}, and {CHUNKS} chunks of {CHUNK} models"
    note = f"{many:.0f} MB, and {few:.0f} MB for {FEW} clients: {many / few:.3f} times"
    return [_runner.Row(name, many, allowed, 1.0, unit="MB", note=note)]


def one_round(clients: int) -> Callable[[], float]:
    """A round of clients of two examples."""
    torch.set_num_threads(1)
    model, examples = Mlp((784,), 10), (torch.rand(2, 784), torch.tensor([0, 1]))
    population = SimulatedPopulation([examples] * clients, F.cross_entropy, LocalTraining(batch_size=2), execution=PLAN)
    return lambda: float(population.collect(population.clients, model, 1.0, 0).open(None).norm())


def crowd(path: str | None) -> Dataset:
    """As many examples as there are clients, of 64 numbers."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.rand(PLAN_CLIENTS, 64, generator=generator), torch.arange(PLAN_CLIENTS) % 10
    return Dataset(inputs, targets, inputs[:1000], targets[:1000])


def plan_rows(seconds: float) -> list[_runner.Row]:
    """``hubbub plan``, from the start of its process to the end."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "crowd.toml"
        file.write_text(SETTINGS)
        command = [sys.executable, "-m", "hubbub", "plan", str(file), "--allow-import"]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
        spent = []
        while sum(spent) < seconds:
            begin = time.perf_counter()
            subprocess.run(command, env=environment, check=True, capture_output=True)
            spent.append(time.perf_counter() - begin)
    name = f"hubbub plan, {PLAN_CLIENTS:,} clients, {PLAN_ROUNDS:,} rounds; peer: a limit of {PLAN_LIMIT:g} s"
    return [_runner.Row(name, min(spent), PLAN_LIMIT, 1.0, unit="wall seconds")]
