"""On a GPU: sums of clipped gradients beside Opacus, and what of a round is left of its noise and of the ranks' exchange.

The networks are that of ``per_example.py`` and one of three dense layers. A step of Opacus makes every example's gradient,
their norms, and the clipped sum, as its ``DPOptimizer`` does; ours are rounded and summed as a release needs, with the same
bits in any order. Both convolve in all bits of float32. Costs are wall seconds, the least of some calls, with the GPU's own
work waited for.

Ranks need a GPU each; with ``NCCL_MULTI_RANK_GPU_ENABLE=1`` NCCL 2.30 and later lets two of them share one.
"""

import os
import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
from opacus.grad_sample import GradSampleModule
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

import _runner
from _runner import Row, Skipped
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import FixedEpochs
from hubbub.mechanism.strategies import toeplitz
from hubbub.training import ExamplePopulation, ReleasePath, RunPlan, train
from hubbub.training.ranks import Ranks
from per_example import CLIP_NORM, cifar_cnn
from ranks import on_ranks

NUMBERS, ROUNDS, BANDS = 2 * 10**7, 12, 8
WALL = "wall seconds"


def dense(width: int) -> nn.Module:
    layers = (nn.Linear(3072, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10))
    return nn.Sequential(nn.Flatten(), *layers)


def least(call: Callable[[], object], repeats: int) -> float:
    """Wall seconds of the fastest call after the first."""
    found = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found[1:])


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(count, 3, 32, 32, device="cuda"), torch.randint(10, (count,), device="cuda")


def by_opacus(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The clipped sum, of a ``GradSampleModule``."""
    for parameter in module.parameters():
        parameter.grad = parameter.grad_sample = None  # type: ignore[attr-defined] # of Opacus
    F.cross_entropy(module(inputs), targets).backward()
    samples = [p.grad_sample for p in module.parameters()]  # type: ignore[attr-defined] # of Opacus
    norms = torch.stack([sample.flatten(1).norm(dim=1) for sample in samples], dim=1).norm(dim=1)
    factor = (CLIP_NORM / (norms + 1e-6)).clamp(max=1.0)
    return torch.cat([torch.einsum("i,i...", factor, sample).reshape(-1) for sample in samples])


def by_us(population: ExamplePopulation, module: nn.Module) -> torch.Tensor:
    """Minus the clipped sum, so that a step adds it."""
    return population.collect(population.clients, module, CLIP_NORM, 0).open(None)


def sum_rows(seconds: float) -> list[Row]:
    torch.backends.cudnn.allow_tf32 = False
    repeats, found = 2 if seconds <= _runner.QUICK else 5, []
    for name, module, count in (("CNN", cifar_cnn(), 4096), ("dense network", dense(800), 2048)):
        inputs, targets = images(count)
        model = module.to("cuda")
        ours = partial(by_us, ExamplePopulation(inputs, targets, F.cross_entropy), model)
        opacus = partial(by_opacus, GradSampleModule(deepcopy(model)), inputs, targets)
        apart = float((ours() + (right := opacus())).norm() / right.norm())
        text = f"clipped sum of {count:,} gradients, {name} of {len(right):,} parameters; Opacus, hooks"
        costs = least(ours, repeats), least(opacus, repeats)
        found.append(Row(text, *costs, 1.0, unit=WALL, good=apart < 1e-3, note=f"{apart:.1e} apart"))
    return found


def round_rows(seconds: float) -> list[Row]:
    """A round whose row of noise is drawn while the GPU computes, beside one where it is drawn afterwards."""
    inputs, targets = images(2048)
    everyone, width = FixedEpochs(ROUNDS, 1), 800 if seconds <= _runner.QUICK else 2000
    found, right = dict[str, tuple[float, float]](), ReleasePath.prepare_row
    for name in ("while", "after"):
        ReleasePath.prepare_row = right if name == "while" else lambda self: None  # type: ignore[method-assign]
        mechanism = Mechanism(toeplitz.square_root(ROUNDS, bands=BANDS), everyone, 1.0)
        plan = RunPlan(ROUNDS, everyone, len(inputs), mechanism=mechanism, clip_norm=CLIP_NORM, privacy_unit="example")
        torch.manual_seed(0)
        population, model = ExamplePopulation(inputs, targets, F.cross_entropy), dense(width).to("cuda")
        rounds = list(train(plan, population, model))[BANDS:]
        found[name] = min((result.seconds, result.phases["noise"]) for result in rounds)
    ReleasePath.prepare_row = right  # type: ignore[method-assign]
    dim = sum(p.numel() for p in model.parameters())
    text = f"a round of {len(inputs):,} examples, {dim:,} parameters, {BANDS} bands; peer: noise is drawn after the sum"
    waits = f"for noise {found['while'][1]:.3f} s, after the sum {found['after'][1]:.3f} s"
    return [Row(text, found["while"][0], found["after"][0], None, unit=WALL, note=waits)]


def exchange(ranks: Ranks, repeats: int, nccl: bool) -> float:
    """Wall seconds to add up a sum of each rank's."""
    torch.cuda.set_device(ranks.rank % torch.cuda.device_count())
    zero = torch.zeros(NUMBERS, dtype=torch.int64, device="cuda")
    if not nccl:
        ranks._gpus = ranks._data
    return least(lambda: ranks.summed([lambda total: total.add_(1).numel()] * ranks.size, zero), repeats)


def exchange_rows(seconds: float) -> list[Row | Skipped]:
    name = f"sum of {NUMBERS:,} numbers, two ranks, by NCCL; peer: gloo, over the processor"
    if torch.cuda.device_count() < 2 and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
        return [Skipped(name, "needs two GPUs, or NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1")]
    repeats = 3 if seconds <= _runner.QUICK else 8
    by_nccl, by_gloo = (max(on_ranks(2, exchange, repeats, nccl)) for nccl in (True, False))
    return [Row(name, by_nccl, by_gloo, 1.0, unit=WALL)]


def nothing_rows(seconds: float) -> list[Row | Skipped]:
    return [Skipped("all rows", "torch finds no GPU here")]


if __name__ == "__main__":
    _runner.main(__doc__, *((sum_rows, round_rows, exchange_rows) if torch.cuda.is_available() else (nothing_rows,)))
