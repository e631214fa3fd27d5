"""Convolutions by the compiled kernel are torch's, client by client, and no client's bits hang on another's.

Where a machine has no C compiler, what can be shown without one is shown.
"""

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub import compiled
from hubbub.errors import ConfigError
from hubbub.models import Cnn
from hubbub.training import Execution, LocalTraining, SimulatedPopulation, lanes, tuning
from hubbub.training.batched import Batched
from hubbub.training.execution import ExecutionPlan, candidates, trainer
from hubbub.training.lanes import KERNEL, Lanes
from hubbub.training.local import Job
from hubbub.training.recorded import Recorded
from hubbub.training.stacking import NotStackableError
from kernel_caches import kernels_in
from local_jobs import CPU, Layers, jobs

IMAGES = (1, 12, 12)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    if sys.platform != "linux" or not shutil.which("cc"):
        pytest.skip("needs Linux and a C compiler")
    with pytest.MonkeyPatch.context() as patch, kernels_in(folder, patch):
        KERNEL.build()
    return folder


@pytest.fixture
def built(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lanes]:
    """The kernel, in use."""
    with kernels_in(cache, monkeypatch):
        yield Lanes(KERNEL.in_use())


@pytest.fixture
def missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with kernels_in(tmp_path, monkeypatch):
        yield


# --- one function after the other ---


def numbers(shape: Sequence[int], seed: int) -> torch.Tensor:
    """Small whole numbers, whose sums of products are exact in whatever order."""
    return torch.randint(-4, 5, tuple(shape), generator=torch.Generator().manual_seed(seed)).float()


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_sums_of_whole_numbers_are_exactly_those_of_torch(built_once: Lanes, data: st.DataObject) -> None:
    k = data.draw(st.sampled_from(lanes.widths()))
    n, i, o = (data.draw(st.integers(1, most)) for most in (3, 6, 9))
    kh, kw = data.draw(st.integers(1, 6)), data.draw(st.integers(1, lanes.WIDEST))
    h, w = kh + data.draw(st.integers(0, 9)), kw + data.draw(st.integers(0, 21))
    x, weight, bias = numbers((n, i, h, w, k), 0), numbers((o, i, kh, kw, k), 1), numbers((o, k), 2)
    slope = numbers((n, o, h - kh + 1, w - kw + 1, k), 3)
    out, (of_weights, of_biases) = built_once.outputs(x, weight, bias), built_once.weights(x, slope, kh, kw)
    of_inputs = built_once.inputs(slope, weight, h, w)
    for client in range(k):
        own = [one[..., client].clone().requires_grad_() for one in (x, weight, bias)]
        expected = F.conv2d(*own)
        gradients = torch.autograd.grad(expected, own, slope[..., client])
        assert torch.equal(out[..., client], expected)
        for found, gradient in zip((of_inputs, of_weights, of_biases), gradients, strict=True):
            assert torch.equal(found[..., client], gradient)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_first_of_the_largest_takes_the_gradient_and_what_is_no_number_wins(built_once: Lanes, data: st.DataObject) -> None:
    k = data.draw(st.sampled_from(lanes.widths()))
    n, c, rows, columns = (data.draw(st.integers(1, most)) for most in (2, 3, 4, 4))
    h, w = rows + data.draw(st.integers(0, 9)), columns + data.draw(st.integers(0, 9))
    x = numbers((n, c, h, w, k), data.draw(st.integers(0, 9)))
    x[(x == 4) & (numbers(x.shape, 5) > 2)] = torch.nan
    out, which = built_once.largest(x, rows, columns)
    slope = numbers(out.shape, 6)
    found = built_once.spread(slope, which, h, w, rows, columns)
    for client in range(k):
        own = x[..., client].clone().requires_grad_()
        expected = F.max_pool2d(own, (rows, columns))
        (gradient,) = torch.autograd.grad(expected, own, slope[..., client])
        assert torch.equal(out[..., client].nan_to_num(99), expected.nan_to_num(99))
        assert torch.equal(found[..., client], gradient)


@pytest.fixture(scope="module")
def built_once(cache: Path) -> Iterator[Lanes]:
    """The kernel for a test that draws its cases."""
    with pytest.MonkeyPatch.context() as patch, kernels_in(cache, patch):
        yield Lanes(KERNEL.in_use())


def test_tensors_with_gaps_or_that_do_not_fit_and_weights_that_are_too_wide_are_refused(built: Lanes) -> None:
    with pytest.raises(ValueError, match=r"weight has the shape \(2, 1, 3, 3, 8\): must be \(2, 3, 3, 3, 8\)"):
        built.outputs(numbers((1, 3, 4, 4, 8), 0), numbers((2, 1, 3, 3, 8), 1), numbers((2, 8), 2))
    with pytest.raises(ValueError, match="weight has 8 columns: the kernel takes at most 7"):
        built.inputs(numbers((1, 1, 1, 1, 8), 0), numbers((1, 1, 1, 8, 8), 1), 1, 8)
    x = numbers((8, 1, 1, 6, 6), 0).movedim(0, -1)
    with pytest.raises(ValueError, match="outputs: takes tensors that lie in memory without gaps"):
        built.outputs(x, numbers((2, 1, 3, 3, 8), 1), numbers((2, 8), 2))


# --- networks ---


class Further(nn.Module):
    """What the kernel does not have: strides, dilation, groups, wide kernels, windows that overlap or hang over."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 8, padding=4),
            nn.MaxPool2d(3, stride=1, padding=1),
            nn.Conv2d(4, 4, 3, dilation=2, padding="same"),
            nn.Conv2d(4, 4, (1, 3), padding="same"),
            nn.Conv2d(4, 4, (2, 3), stride=(1, 2), padding=(1, 0)),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(4, 6, 3, groups=2, padding_mode="circular", padding=1),
            nn.MaxPool2d((2, 1)),
        )
        self.head = nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.flatten(self.layers(x), 2).mean(dim=2))


class ByHand(nn.Module):
    """Layers that are called as functions, on views and on what all clients share."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.shift = nn.Parameter(torch.randn(4, 1, 3, 5) / 4), nn.Parameter(torch.zeros(4))
        self.register_buffer("blur", torch.full((4, 4, 2, 2), 1 / 16), persistent=False)
        self.hidden, self.out = nn.Linear(4 * 3 * 3, 7, bias=False), nn.Linear(7, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.conv2d(x, self.kernel, self.shift, padding=(1, 2)), 2)
        x = F.max_pool2d(F.conv2d(x, self.blur, padding="valid"), kernel_size=(2, 2), stride=[1, 1])
        x = F.pad(x, (0, 0, 0, 0)).permute(0, 2, 3, 1).flatten(1)[:, :36]
        return self.out(F.gelu(self.hidden(x.flatten(-1))))


class Unusual(nn.Module):
    """What torch widens, narrows or takes in another form."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.one = nn.Conv2d(1, 3, 3), nn.Parameter(torch.ones(1) / 3)
        self.head = nn.Linear(75, 10)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.convolution(x), np.int64(2))
        x = torch.flatten(input=x, start_dim=1) * self.scale.flatten()[0]
        y = x * 1
        # In place, through a view.
        y.flatten(1).mul_(2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            narrow = self.head(y).float()
        return F.linear(narrow, torch.eye(10), self.one)


def updates(model: nn.Module, local: LocalTraining, clients: int, own: Sequence[Job]) -> dict[int, torch.Tensor]:
    stack = Batched(model, F.cross_entropy, local, CPU, clients=clients, compiled=True)
    return {trained.client: trained.update for trained in stack.train(model, own)}


@pytest.mark.parametrize("make", [Layers, Further, ByHand, Unusual, lambda: nn.Sequential(*Cnn((1, 16, 16), 10))])
def test_clients_learn_what_they_learn_one_by_one(built: Lanes, make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, local = make(), LocalTraining(epochs=2, batch_size=4, learning_rate=0.1, momentum=0.5, weight_decay=0.01)
    clients = jobs((1, 16, 16) if isinstance(model, nn.Sequential) else IMAGES)
    single = trainer(ExecutionPlan(), model, F.cross_entropy, local, Execution(), "float32")
    expected = {trained.client: trained.update for trained in single.train(model, clients)}
    for width in lanes.widths():
        found = updates(model, local, width, clients)
        for job in clients:
            assert float((found[job.client] - expected[job.client]).norm()) <= 1e-5 * float(expected[job.client].norm())


def test_convolutions_and_poolings_and_dense_layers_are_the_kernel_s_and_are_recorded(
    built: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    call = Lanes._call

    def counting(self: Lanes, name: str, *arguments: object) -> None:
        called.append(name)
        call(self, name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Lanes, "_call", counting)
    followed = []
    program = Recorded.__call__

    def watching(self: Recorded, *arguments: object) -> object:
        found = program(self, *arguments)  # type: ignore[arg-type]
        followed.append(any(one.confirmed for one in self._programs.values()))
        return found

    monkeypatch.setattr(Recorded, "__call__", watching)
    torch.manual_seed(0)
    model = nn.Sequential(*Cnn((1, 16, 16), 10))
    updates(model, LocalTraining(batch_size=5), 8, jobs((1, 16, 16), sizes=[20] * 8))
    # Steps that are written down are done twice, later ones once: two convolutions, two dense layers, two poolings.
    assert followed == [False, True, True, True]
    steps = 2 * 2 + 2
    assert {name: called.count(name) for name in set(called)} == {
        "outputs": 4 * steps,
        "weights": 4 * steps,
        # The first layer's inputs need no gradient.
        "inputs": 3 * steps,
        "largest": 2 * steps,
        "spread": 2 * steps,
    }


def test_no_bit_of_a_client_hangs_on_its_lane_or_on_whoever_is_in_the_others(built: Lanes) -> None:
    torch.manual_seed(0)
    model, local = nn.Sequential(*Cnn((1, 16, 16), 10)), LocalTraining(batch_size=4)
    clients = jobs((1, 16, 16), sizes=(9, 12, 0, 12, 3, 1, 12, 12))
    found = updates(model, local, 8, clients)
    backwards = updates(model, local, 8, clients[::-1])
    poisoned = [replace(job, inputs=job.inputs * torch.nan) if i % 2 else job for i, job in enumerate(clients)]
    beside = updates(model, local, 8, poisoned)
    alone = updates(model, local, 8, clients[:1])
    assert torch.equal(found[0], alone[0])
    for i in range(8):
        assert torch.equal(found[i], backwards[i])
        assert i % 2 or torch.equal(found[i], beside[i])
    assert not bool(torch.isfinite(beside[1]).all())


def test_workers_give_the_same_bits(built: Lanes) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*Cnn((1, 16, 16), 10))
    clients = [(job.inputs, job.targets) for job in jobs((1, 16, 16), sizes=[6] * 20)]
    sums = []
    for count in (1, 2):
        execution = Execution("batched-8-compiled", workers=count)
        population = SimulatedPopulation(clients, F.cross_entropy, LocalTraining(), execution=execution)
        sums.append(population.collect(range(20), model, 1.0, 0).open(None))
        population.close()
    assert torch.equal(*sums)


# --- plans ---


def test_the_kernel_s_plans_are_tried_for_networks_that_convolve(built: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [ExecutionPlan(width, compiled=True) for width in lanes.widths()]
    assert [plan for plan in candidates(100, Execution(), convolves=True) if plan.compiled] == ours
    for cohort, execution, convolves in (
        (1, Execution(), True),
        (9, Execution(precision="bfloat16"), True),
        (9, Execution(), False),
    ):
        assert not any(plan.compiled for plan in candidates(cohort, execution, convolves=convolves))
    tried = []
    monkeypatch.setattr(tuning, "_WORTH", 1)
    monkeypatch.setattr(tuning._Trial, "_time", lambda _, plan: tried.append(plan) or float(not plan.compiled) + 1)
    model, local = nn.Sequential(*Cnn((1, 16, 16), 10)), LocalTraining(batch_size=4)
    chosen = tuning.choose(model, F.cross_entropy, local, Execution(), jobs((1, 16, 16), sizes=[9]), 40)
    assert set(ours) < set(tried)
    assert chosen.plan.compiled
    # Without it another plan is looked for.
    monkeypatch.setenv("HUBBUB_KERNEL", "off")
    assert not tuning.choose(model, F.cross_entropy, local, Execution(), jobs((1, 16, 16), sizes=[9]), 40).plan.compiled


@pytest.mark.parametrize("fails", [True, False])
def test_other_plans_are_tried_where_the_kernel_s_fail_or_lose(
    fails: bool, built: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time(_: object, plan: ExecutionPlan) -> float:
        if plan.compiled and fails:
            raise NotStackableError("it does not run")
        return 9.0 if plan.compiled else 2.0 / plan.clients

    monkeypatch.setattr(tuning, "_WORTH", 1)
    monkeypatch.setattr(tuning, "_remembered", {})
    monkeypatch.setattr(tuning, "_read", dict)
    monkeypatch.setattr(tuning, "_remember", lambda _, plan: plan)
    monkeypatch.setattr(tuning._Trial, "_time", time)
    model, local = nn.Sequential(*Cnn((1, 16, 16), 10)), LocalTraining(batch_size=4)
    chosen = tuning.choose(model, F.cross_entropy, local, Execution(), jobs((1, 16, 16), sizes=[9]), 40).plan
    assert chosen.clients > 1
    assert not chosen.compiled


def test_a_kernel_that_is_switched_off_in_mid_run_is_named(built: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [(job.inputs, job.targets) for job in jobs((1, 16, 16))]
    population = SimulatedPopulation(clients, F.cross_entropy, LocalTraining(), execution=Execution("batched-8-compiled"))
    model = nn.Sequential(*Cnn((1, 16, 16), 10))
    population.collect([0, 1], model, 1.0, 0)
    monkeypatch.setenv("HUBBUB_KERNEL", "off")
    with pytest.raises(ConfigError, match="the training kernel is to do this, and is not used: HUBBUB_KERNEL is off"):
        population.collect([2, 4], model, 1.0, 1)


def test_a_plan_has_a_name_that_says_it_is_compiled() -> None:
    for width in (8, 16):
        plan = ExecutionPlan(width, compiled=True)
        assert plan.name == f"batched-{width}-compiled"
        assert ExecutionPlan.named(plan.name) == plan
    for wrong in ("batched-12-compiled", "batched-32-compiled", "one-by-one-compiled", "batched-compiled"):
        with pytest.raises(ConfigError, match="or 'batched-K-compiled', K = 8 or 16"):
            ExecutionPlan.named(wrong)
    with pytest.raises(ConfigError, match="the kernel computes in float32 on a processor"):
        Execution("batched-8-compiled", precision="bfloat16")


def test_a_plan_for_more_clients_than_the_processor_has_lanes_names_the_one_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "widths", lambda: (8,))
    told = "on this processor the training kernel takes 8 clients at once; say 'batched-8-compiled', or 'auto'"
    with pytest.raises(ConfigError, match=told):
        trainer(ExecutionPlan(16, compiled=True), Layers(), F.cross_entropy, LocalTraining(), Execution(), "float32")


@pytest.mark.usefixtures("missing")
def test_without_the_kernel_a_plan_that_needs_it_is_refused_with_the_next_step() -> None:
    assert lanes.widths() == ()
    clients = [(job.inputs, job.targets) for job in jobs(IMAGES)]
    population = SimulatedPopulation(clients, F.cross_entropy, LocalTraining(), execution=Execution("batched-8-compiled"))
    told = "needs the training kernel, which is not built: 'hubbub kernel training' builds it"
    with pytest.raises(ConfigError, match=told):
        population.collect([0, 1], Layers(), 1.0, 0)
    with pytest.raises(ConfigError, match="the training kernel is to do this, and is not built"):
        lanes.measured()


WRONG = {
    "outputs": ("sum[a][c] = b[o + a];", "sum[a][c] = b[o];"),
    "weights": ("db[o] = sum;", "db[o] = sum * 0.999f;"),
    "inputs": ("sum[a][c + k] += value * by[a];", "sum[a][k] += value * by[a];"),
    "poolings": ("(value > most)", "(value >= most)"),
    "what is no number": ("(value > most) | (value != value)", "value > most"),
}


@pytest.mark.parametrize(("right", "wrong"), WRONG.values(), ids=WRONG)
@pytest.mark.usefixtures("cache")
def test_a_library_that_answers_wrongly_is_not_kept(
    right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = KERNEL.source.read_text()
    assert text.count(right) == 1
    source = tmp_path / "lanes.c"
    source.write_text(text.replace(right, wrong))
    monkeypatch.setenv("HUBBUB_CACHE", str(tmp_path / "cache"))
    changed = replace(KERNEL, source=source, flags=("-O0",))
    with pytest.raises(ConfigError, match=r"the kernel computes wrongly for 8 clients and the sizes \("):
        changed.build()
    assert not list(compiled.folder().iterdir())


def test_every_function_of_the_source_is_declared(built: Lanes) -> None:
    named = set(re.findall(r"OWN\(hubbub_(\w+)\)", KERNEL.source.read_text()))
    assert named == set(lanes._FUNCTIONS)
