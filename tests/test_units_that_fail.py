"""One unit's data can neither stop a run nor move what others add: whatever is raised for it counts as an update of zero."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

import encrypted_runs
from hubbub import AdaptiveClipping, training
from hubbub.errors import ConfigError, DataError
from hubbub.experiment.tracking import scalars
from hubbub.mechanism.strategies import Identity
from hubbub.training import ExamplePopulation, Execution, LocalTraining, RunStore, SimulatedPopulation, private_gradients, train
from hubbub.training.simulation.local import Examples
from odd_modules import Mixes
from small_runs import CLIENTS, PLANS, linear, population

SPOILT = 99.0


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise self


class Data(Sequence[Examples]):
    """Clients' examples, of which some cannot be read any more."""

    def __init__(self, examples: Sequence[Examples]) -> None:
        self._whole, self.lost = list(examples), set[int]()
        self._examples = list(self._whole)

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, client: Any) -> Any:
        if client in self.lost:
            raise OSError("the file is gone")
        return self._examples[client]

    def mend(self) -> None:
        """Nothing raises any more."""
        self._examples, self.lost = list(self._whole), set()

    def spoil(self, client: int, how: str) -> None:
        """Make a client's data raise, each in a way of its own."""
        inputs, targets = self._examples[client]
        if how == "lookup":
            self.lost.add(client)
        elif how == "class":
            targets = torch.full_like(targets, 7)
        elif how == "loss":
            inputs = torch.full_like(inputs, SPOILT)
        self._examples[client] = inputs, targets


class Picky(nn.Module):
    """A loss that does not like some numbers, and says so in an error that cannot be shown."""

    def forward(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if bool(output.abs().max() > SPOILT / 10):
            raise UnprintableError
        return F.cross_entropy(output, targets)


def data() -> Data:
    return Data(population()._examples)


@cache
def ready(plan: str, loss: type[nn.Module]) -> tuple[Data, SimulatedPopulation, nn.Module]:
    held, model = data(), linear()
    clients = SimulatedPopulation(held, loss(), LocalTraining(batch_size=2), execution=Execution(plan))
    clients.prepare(model, CLIENTS)
    return held, clients, model


def clients_that_fail_add_zero(plan: str, spoilt: dict[int, str], cohort: Sequence[int], loss: type[nn.Module]) -> None:
    """The sum is, to the last bit, that of the others, and the operator is told how many failed."""
    held, clients, model = ready(plan, loss)
    held.mend()
    others = clients.collect([client for client in cohort if client not in spoilt], model, 0.5, 0)
    for client, how in spoilt.items():
        held.spoil(client, how)
    found = clients.collect(list(cohort), model, 0.5, 0)
    assert torch.equal(found.total, others.total)
    assert found.statistics.get("failed", 0.0) == sum(client in spoilt for client in cohort)
    assert "failed" not in others.statistics


@pytest.mark.parametrize("examples", [25, pytest.param(20_000, marks=pytest.mark.slow)])
def test_cli_13_clients_that_fail_change_no_bit_of_what_others_add(examples: int) -> None:
    clients, hows = st.integers(0, CLIENTS - 1), st.sampled_from(["lookup", "class", "loss"])
    law = given(
        plan=st.sampled_from(["one-by-one", "batched-2", "batched-5"]),
        spoilt=st.dictionaries(clients, hows, max_size=5),
        cohort=st.lists(clients, unique=True),
        loss=st.just(Picky),
    )(clients_that_fail_add_zero)
    settings(max_examples=examples, deadline=None)(law)()


@pytest.mark.parametrize("plan", ["one-by-one", "batched-4"])
def test_cli_13_a_target_that_is_no_class_adds_nothing_in_a_stack_of_cross_entropies(plan: str) -> None:
    clients_that_fail_add_zero(plan, {3: "class", 8: "class"}, range(CLIENTS), nn.CrossEntropyLoss)


class Fussy(nn.Linear):
    """Looks at numbers, so that each example is taken alone, and refuses some."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.abs().max()) > SPOILT / 2:
            raise UnprintableError
        return super().forward(x)


@cache
def ready_examples(way: str) -> tuple[torch.Tensor, torch.Tensor, ExamplePopulation, nn.Module]:
    drawn = torch.Generator().manual_seed(2)
    inputs, targets = torch.randn(20, 3, generator=drawn), torch.randint(0, 2, (20,), generator=drawn)
    torch.manual_seed(0)
    model = Fussy(3, 2) if way == "alone" else nn.Linear(3, 2)
    return inputs, targets, ExamplePopulation(inputs, targets, F.cross_entropy, batch=4, lattice=way != "plain"), model


def examples_that_fail_add_zero(way: str, spoilt: Sequence[int], cohort: Sequence[int]) -> None:
    """The sum is that of the others: to the last bit, but where they are added in floating point."""
    inputs, targets, examples, model = ready_examples(way)
    others = examples.collect([number for number in cohort if number not in spoilt], model, 0.5, 0)
    whole = inputs.clone(), targets.clone()
    inputs[list(spoilt)], targets[list(spoilt)] = SPOILT, 7
    found = examples.collect(list(cohort), model, 0.5, 0)
    inputs.copy_(whole[0])
    targets.copy_(whole[1])
    assert found.statistics.get("failed", 0.0) == sum(number in spoilt for number in cohort)
    slack = 1e-6 * len(cohort) if way == "plain" else 0
    torch.testing.assert_close(found.open(None), others.open(None), rtol=0, atol=slack)


@pytest.mark.parametrize("examples", [40, pytest.param(20_000, marks=pytest.mark.slow)])
def test_cli_13_examples_that_fail_change_no_bit_of_what_others_add(examples: int) -> None:
    ways, numbers = st.sampled_from(["lattice", "plain", "alone"]), st.integers(0, 19)
    law = given(ways, st.lists(numbers, unique=True, max_size=6), st.lists(numbers, unique=True))(examples_that_fail_add_zero)
    settings(max_examples=examples, deadline=None)(law)()


def test_cli_13_a_gradient_that_fails_adds_nothing_to_the_sum_of_a_loop_of_one_s_own() -> None:
    inputs, targets, model = torch.randn(6, 3), torch.tensor([0, 1, 7, 0, 1, 0]), linear()
    others = torch.tensor([0, 1, 3, 4, 5])
    whole, without = (private_gradients(model, F.cross_entropy, inputs[o], targets[o], 1.0) for o in (slice(None), others))
    assert torch.equal(whole.total, without.total)
    assert whole.statistics["failed"] == 1


def test_cli_13_with_adaptive_clipping_a_client_that_fails_counts_as_one_that_was_not_clipped() -> None:
    split, held = AdaptiveClipping().split(1.0, CLIENTS), data()
    held.spoil(4, "class")
    clients = SimulatedPopulation(held, F.cross_entropy, LocalTraining())
    alone = clients.collect([4], linear(), 0.5, 0, split).open(None)
    assert not alone[:-1].any()
    assert float(alone[-1]) == pytest.approx(split.count_scale(0.5) / 2, rel=1e-6)


def test_cli_13_of_an_encrypted_run_with_a_client_that_fails_every_round_is_released() -> None:
    how = encrypted_runs.terms()
    chosen = encrypted_runs.plan(Identity(encrypted_runs.ROUNDS), how)
    clients = encrypted_runs.encrypted(chosen, how)
    inputs, targets = clients._population._examples[5]
    clients._population._examples[5] = inputs, torch.full_like(targets, 7)
    results = list(train(chosen, clients, linear()))
    assert all(result.released and result.statistics["failed"] == 1 for result in results)


@pytest.mark.parametrize("name", ["clients", "examples"])
def test_cli_13_a_run_ends_as_it_does_without_the_unit_and_the_operator_alone_is_told(
    name: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    held, drawn = data(), torch.Generator().manual_seed(0)
    held.spoil(2, "class")
    inputs, targets = torch.randn(CLIENTS, 3, generator=drawn), torch.zeros(CLIENTS, dtype=torch.int64)
    targets[2] = 7
    population = {"clients": partial(SimulatedPopulation, held), "examples": partial(ExamplePopulation, inputs, targets)}
    units = population[name](F.cross_entropy)
    results = list(train(everyone(units), units, linear()))
    assert len(results) == 6
    assert all(result.statistics["failed"] == 1 for result in results)
    assert not any("failed" in shown for shown in scalars(results[0]))
    assert scalars(results[0], private=True)["private/failed"] == 1
    assert capfd.readouterr() == ("", "")
    with caplog.at_level(logging.INFO, logger="hubbub"):
        units.collect([2], linear(), 0.5, 0)
    assert caplog.messages[0].startswith(f"counted as nothing: {name[:-1]} 2: ")


def population_of(make: str, loss: Callable[..., torch.Tensor]) -> ExamplePopulation | SimulatedPopulation:
    """Examples, or clients that train by a plan."""
    if make == "examples":
        return ExamplePopulation(torch.randn(CLIENTS, 3), torch.zeros(CLIENTS, dtype=torch.int64), loss)
    return SimulatedPopulation(data(), loss, LocalTraining(), execution=Execution(make))


def everyone(units: training.Population) -> training.RunPlan:
    return replace(PLANS["independent, everyone"], privacy_unit=units.privacy_unit)


@pytest.mark.parametrize("make", ["one-by-one", "batched-4", "examples"])
@pytest.mark.parametrize("wrong", ["model", "loss"])
def test_cli_14_what_fails_for_every_unit_stops_before_the_first_round(make: str, wrong: str, tmp_path: Path) -> None:
    def shapeless(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return output.sum() + targets.view(-1, 3, 5).sum()

    loss, model = (F.cross_entropy, nn.Linear(4, 2)) if wrong == "model" else (shapeless, linear())
    units = population_of(make, loss)
    with pytest.raises(ConfigError, match=r"random examples of the form|does not run for many clients at once"):
        next(train(everyone(units), units, model, RunStore(tmp_path)))
    assert '"begin"' not in (tmp_path / "ledger.jsonl").read_text()


def test_cli_13_a_client_that_cannot_be_read_when_the_population_is_made_adds_nothing() -> None:
    data = Data([(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64))] * 3)
    data.lost = {1}
    total = SimulatedPopulation(data, F.cross_entropy).collect([0, 1, 2], nn.Linear(3, 2), 1.0, 0)
    assert total.statistics["failed"] == 1
    data.lost = {0, 1, 2}
    with pytest.raises(DataError, match=r"none can be read .*the file is gone"):
        SimulatedPopulation(data, F.cross_entropy)


def test_cli_14_the_first_client_alone_does_not_say_that_no_client_runs() -> None:
    examples = [(torch.zeros(5, 4), torch.zeros(5, dtype=torch.int64)), *data()]
    clients = SimulatedPopulation(examples, F.cross_entropy, LocalTraining(), execution=Execution("one-by-one"))
    assert clients.collect(range(len(examples)), linear(), 0.5, 0).statistics["failed"] == 1


TEXTS = "[enforce fail at alloc_cpu.cpp:1] err == 0. DefaultCPUAllocator: can't allocate memory", "CUDA error: misaligned"
FAULTS = [KeyboardInterrupt(), SystemExit(), MemoryError(), torch.OutOfMemoryError(), *map(RuntimeError, TEXTS)]


@pytest.mark.parametrize("error", FAULTS, ids=repr)
@pytest.mark.parametrize("make", ["one-by-one", "batched-4", "examples"])
@pytest.mark.parametrize("where", ["model", "loss"])
def test_cli_14_what_the_machine_has_not_stops_the_run_whoever_asked_for_it(where: str, make: str, error: Exception) -> None:
    armed, model = [], linear()

    def fail(place: object, *_: object) -> None:
        if armed and (place == "loss") == (where == "loss"):
            raise error

    units = population_of(make, lambda output, targets: fail("loss") or F.cross_entropy(output, targets))
    model.register_forward_pre_hook(fail)
    units.prepare(model, CLIENTS)
    armed.append(True)
    with pytest.raises(type(error)) as raised:
        units.collect(range(CLIENTS), model, 0.5, 0)
    assert raised.value is error


@pytest.mark.parametrize("make", ["one-by-one", "batched-4", "examples"])
def test_what_was_frozen_in_one_run_trains_in_the_next(make: str) -> None:
    units, model = population_of(make, F.cross_entropy), nn.Sequential(nn.Linear(3, 3), linear())
    for frozen in (True, False):
        model[0].requires_grad_(not frozen)
        with torch.enable_grad(), torch.device("meta"):
            for result in train(everyone(units), units, model):
                assert "failed" not in result.statistics
                torch.set_grad_enabled(False)


@pytest.mark.parametrize("plan", ["one-by-one", "batched-2"])
def test_cli_15_clients_whose_features_share_a_graph_take_nothing_from_one_another(plan: str) -> None:
    features = nn.Linear(3, 3)(torch.randn(12, 3)).tanh()
    clients = [(x, torch.ones(3).long()) for x in features.split(3)]
    units, model = SimulatedPopulation(clients, F.cross_entropy, execution=Execution(plan)), linear()
    whole, *each = (units.collect(some, model, 0.5, 0).total for some in (range(4), [0], [1], [2], [3]))
    assert torch.equal(whole, sum(each))
    assert all(one.any() for one in each)


@pytest.mark.parametrize("draw", [torch.rand, np.random.random])
def test_cli_15_what_is_drawn_where_a_client_is_read_is_its_own_or_refused(draw: Callable[..., Any]) -> None:
    class Augmented(Data):
        def __getitem__(self, client: Any) -> Any:
            inputs, targets = super().__getitem__(client)
            return inputs * torch.as_tensor(draw((5, 1))), targets

    units = SimulatedPopulation(Augmented([(x.double(), y) for x, y in data()]), F.cross_entropy)
    with pytest.raises(DataError, match="gives other examples at each reading") if draw is not torch.rand else nullcontext():
        whole, *each = (units.collect(some, linear().double(), 0.5, 0).total for some in ([0, 1], [0], [1]))
        assert torch.equal(whole, sum(each))


@pytest.mark.parametrize("around", [torch.no_grad, partial(torch.autocast, "cpu", torch.bfloat16)])
@pytest.mark.parametrize("make", ["one-by-one", "batched-4"])
def test_no_context_of_the_caller_s_changes_a_sum(make: str, around: Callable[[], Any]) -> None:
    expected = population_of(make, F.cross_entropy).collect(range(CLIENTS), linear(), 0.5, 0)
    with around():
        assert torch.equal(population_of(make, F.cross_entropy).collect(range(CLIENTS), linear(), 0.5, 0).total, expected.total)


def test_a_model_that_replaces_what_is_trained_is_refused() -> None:
    model = linear()
    model.register_forward_pre_hook(lambda layer, _: setattr(layer.weight, "data", F.normalize(layer.weight.data)))
    with pytest.raises(ConfigError, match="its parameters were replaced during the run"):
        SimulatedPopulation(data(), F.cross_entropy).collect([0], model, 0.5, 0)


class RunningMean:
    """A loss that divides by the mean of all losses so far."""

    def __init__(self) -> None:
        self.mean = 1.0

    def __call__(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        value = F.cross_entropy(output, targets)
        self.mean = 0.9 * self.mean + 0.1 * float(value.detach())
        return value / self.mean


class Balanced:
    """A loss that weighs each class by how often it came so far."""

    def __init__(self) -> None:
        self.counts = torch.zeros(3)

    def __call__(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.counts += F.one_hot(targets, 3).sum(dim=0)
        return F.cross_entropy(output, targets, self.counts.sum() / self.counts, reduction="sum") / len(targets)


class Sometimes(nn.Linear):
    """Keeps a mean while it trains, or of inputs with a further axis."""

    mean = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim == 3 or (self.training and x.ndim == 2):
            self.mean += float(x.detach().mean())
        return super().forward((x.mean(1) if x.ndim == 3 else x) - self.mean)


def test_cli_15_what_a_model_keeps_in_one_mode_or_of_one_form_is_found_where_it_is_used() -> None:
    model, y = Sometimes(4, 3).eval(), torch.tensor([0, 1] * 4)
    private_gradients(model, F.cross_entropy, torch.randn(8, 4), y, 0.5)
    for inputs in (torch.randn(8, 2, 4), torch.randn(8, 4)):
        with pytest.raises(ConfigError, match="depends on what they saw before"):
            private_gradients(model.train(inputs.ndim == 2), F.cross_entropy, inputs, y, 0.5)
    clients = [(torch.randn(8, 1, 1, 4), y), (torch.randn(8, 2, 4), y)]
    clients_by_form = SimulatedPopulation(clients, F.cross_entropy, LocalTraining(), execution=Execution("one-by-one"))
    flat = nn.Sequential(nn.Identity(), Sometimes(4, 3))
    flat[0].register_forward_hook(lambda *called: called[2].flatten(1) if called[2].ndim == 4 else called[2])
    flat[1].register_forward_pre_hook(lambda module, given: module.train(given[0].ndim == 3) and None)
    with pytest.raises(ConfigError, match="depends on what they saw before"):
        clients_by_form.prepare(flat, 2)


def test_a_parameter_that_is_used_past_its_name_or_has_hooks_is_refused_since_it_would_not_be_trained_so() -> None:
    listed = nn.Linear(4, 3)
    listed.weights = [listed.weight]
    listed.register_forward_hook(lambda module, given, _: F.linear(given[0], module.weights[0], module.bias))
    hooked = nn.Linear(4, 3)
    hooked.weight.register_hook(lambda gradient: 0 * gradient)
    for model, words in ((listed, "uses a parameter past its name"), (hooked, "has hooks on parameters")):
        with pytest.raises(ConfigError, match=words):
            private_gradients(model, F.cross_entropy, torch.randn(8, 4), torch.tensor([0, 1] * 4), 0.5)
        if model is hooked:
            with pytest.raises(ConfigError, match=words):
                ExamplePopulation(torch.randn(8, 4), torch.tensor([0, 1] * 4), F.cross_entropy).prepare(model, 8)


@pytest.mark.parametrize("make", ["one-by-one", "batched-4", "alone", "examples", "gradients"])
@pytest.mark.parametrize("what", [RunningMean, Balanced, "model"])
def test_cli_15_a_model_or_a_loss_that_carries_one_unit_s_data_to_the_next_is_refused(make: str, what: Any) -> None:
    inputs, targets = torch.randn(8, 4), torch.tensor([0, 1] * 4)
    model, loss = (Mixes(), F.cross_entropy) if what == "model" else (nn.Linear(4, 3), what())
    execution = Execution("batched-4" if make == "batched-4" else "one-by-one")
    clients = SimulatedPopulation([(inputs, targets)] * 3, loss, LocalTraining(), execution=execution)
    computed: dict[str, Callable[[], object]] = {
        "alone": lambda: clients.train_client(0, model, 0),
        "examples": lambda: ExamplePopulation(inputs, targets, loss).collect([0], model, 0.5, 0),
        "gradients": lambda: private_gradients(model, loss, inputs, targets, 0.5),
    }
    with pytest.raises(ConfigError, match=r"depends on what they saw before|for many clients at once"):
        computed.get(make, lambda: clients.collect([0], model, 0.5, 0))()
