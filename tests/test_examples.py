"""Single examples as units: each one's gradient by itself, bounded, whoever else is in the batch."""

import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know
from torch.utils.checkpoint import checkpoint

from hubbub import AdaptiveClipping, Mechanism, PoissonSampling, SingleParticipation
from hubbub.errors import ConfigError, ParticipationError
from hubbub.ledger.promise import Promise
from hubbub.mechanism.strategies import Identity
from hubbub.noise.lattice import Lattice
from hubbub.testing import check_population
from hubbub.training import ReleasePath, RunPlan, ServerOptimizer, train
from hubbub.training.per_example import Chosen, ExampleGradients, ExamplePopulation, private_gradients
from odd_modules import MODULES, Mixes, counts, forks, made

EXAMPLES = 11


def data(shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(EXAMPLES, *shape, generator=generator), torch.randint(0, 3, (EXAMPLES,), generator=generator)


def one_by_one(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """By definition: each example is a batch by itself, ``(examples, dim)``."""
    rows = []
    for x, y in zip(inputs, targets, strict=True):
        module.zero_grad()
        F.cross_entropy(module(x.unsqueeze(0)), y.unsqueeze(0)).backward()
        trained = [p for p in module.parameters() if p.requires_grad]
        rows.append(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in trained]))
    module.zero_grad()
    return torch.stack(rows)


def all_rows(gradients: ExampleGradients, inputs: torch.Tensor, targets: torch.Tensor, numbers: list[int]) -> torch.Tensor:
    return torch.cat([rows.clone() for rows, _ in gradients.rows(Chosen(inputs, targets, numbers, lambda number: number))])


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_each_example_has_the_gradient_that_it_has_alone(name: str) -> None:
    module, inputs, targets = made(name, EXAMPLES)
    gradients = ExampleGradients(module, F.cross_entropy, batch=4)
    expected = one_by_one(module, inputs, targets)
    # All together, whether or not bits stay; and as they are taken.
    torch.testing.assert_close(gradients.of_batch(inputs, targets)[0], expected, rtol=2e-4, atol=2e-6)
    torch.testing.assert_close(all_rows(gradients, inputs, targets, list(range(EXAMPLES))), expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("make", [forks, lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))], ids=["forks", "dropout"])
def test_what_vmap_cannot_take_is_taken_one_by_one(make: Callable[[], nn.Module]) -> None:
    inputs, targets = data((4,))
    gradients = ExampleGradients(make().eval(), F.cross_entropy)
    found = all_rows(gradients, inputs, targets, list(range(EXAMPLES)))
    torch.testing.assert_close(found, one_by_one(gradients.module, inputs, targets))
    assert gradients.batched(Chosen(inputs, targets, [0], int)) == (make is not forks)
    assert not ExampleGradients(make().train(), F.cross_entropy).batched(Chosen(inputs, targets, [0], int))


def test_examples_of_an_odd_width_are_batched() -> None:
    """Their rows would begin anywhere in a vector, and the order of a sum depends on it."""
    examples = Chosen(torch.randn(64, 3969), torch.zeros(64, dtype=torch.int64), [0], int)
    assert ExampleGradients(nn.Linear(3969, 10), F.cross_entropy).batched(examples)


@pytest.mark.parametrize("make", [lambda layer: layer, lambda layer: nn.Linear(4, 4)], ids=["one layer twice", "two"])
def test_the_module_is_left_as_it_was(make: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    module = nn.Sequential(layer, nn.Tanh(), make(layer), nn.Linear(4, 3))
    module[2].weight = layer.weight
    before = {name: (id(p), p.clone()) for name, p in module.named_parameters(remove_duplicate=False)}
    inputs, targets = data((4,))
    all_rows(ExampleGradients(module, F.cross_entropy), inputs, targets, list(range(EXAMPLES)))
    for name, p in module.named_parameters(remove_duplicate=False):
        assert id(p) == before[name][0]
        assert torch.equal(p, before[name][1])
    assert len(before) == len(dict(module.named_parameters(remove_duplicate=False)))


def bits(total: torch.Tensor) -> torch.Tensor:
    return total.view(torch.int32)


@pytest.mark.parametrize("name", ["network", "sequence", "norms", "perceptron"])
def test_a_gradient_is_the_same_to_the_last_bit_in_any_batch(name: str) -> None:
    module, inputs, targets = made(name, 40)
    gradients = ExampleGradients(module, F.cross_entropy, batch=8)
    alone = torch.cat([all_rows(gradients, inputs, targets, [number]) for number in range(40)])
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).tolist()
    for numbers in (list(range(40)), order, order[3:22]):
        assert torch.equal(bits(all_rows(gradients, inputs, targets, numbers)), bits(alone[numbers]))


@pytest.mark.parametrize("name", ["network", "sequence", "norms", "perceptron"])
def test_num_7_num_8_a_neighbour_that_is_not_a_number_changes_no_bit(name: str) -> None:
    module, inputs, targets = made(name, 16)
    gradients = ExampleGradients(module, F.cross_entropy, batch=8)
    before = all_rows(gradients, inputs, targets, list(range(16)))
    inputs = inputs.clone()
    inputs[5], inputs[12] = math.nan, math.inf
    after = all_rows(gradients, inputs, targets, list(range(16)))
    honest = [number for number in range(16) if number not in (5, 12)]
    assert torch.equal(bits(after[honest]), bits(before[honest]))
    assert not torch.isfinite(after[5]).all()


@pytest.mark.parametrize("make", [counts, Mixes])
def test_a_module_whose_bits_move_is_taken_one_by_one(make: Callable[[], nn.Module]) -> None:
    inputs, targets = data((4,))
    assert not ExampleGradients(make(), F.cross_entropy).batched(Chosen(inputs, targets, [0], int))


def test_what_a_module_writes_into_its_weights_reaches_no_other_example() -> None:
    module, inputs, targets = made("tied", 8)
    module.table.max_norm, before = 1.0, module.table.weight.detach().clone()
    inputs = torch.cat([inputs[:1] * 0 + 2, inputs[1:] % 2])
    parts = (slice(8), slice(1), slice(1, 8))
    whole, one, others = (private_gradients(module, F.cross_entropy, inputs[p], targets[p], 1.0).total for p in parts)
    assert torch.equal(whole, one + others)
    assert torch.equal(module.table.weight, before)
    module, inputs, targets = made("perceptron", EXAMPLES)
    module[0].register_forward_pre_hook(torch.no_grad()(lambda layer, _: setattr(layer, "kept", layer.weight.mul_(0.9))))
    private_gradients(module, F.cross_entropy, inputs, targets, 1.0)
    assert torch.equal(module[0].weight, made("perceptron", EXAMPLES)[0][0].weight)


def population(name: str = "perceptron", **options: object) -> tuple[ExamplePopulation, nn.Module, torch.Tensor, torch.Tensor]:
    module, inputs, targets = made(name, EXAMPLES)
    return ExamplePopulation(inputs, targets, F.cross_entropy, **options), module, inputs, targets


@pytest.mark.parametrize("lattice", [True, False], ids=["lattice", "plain"])
def test_num_7_num_8_the_population_keeps_its_contract_with_hostile_examples(lattice: bool) -> None:
    module, inputs, targets = made("perceptron", EXAMPLES)
    for number, hostile in enumerate((math.nan, math.inf, -math.inf, 1e30, 0.0)):
        inputs[number] = hostile
    check_population(ExamplePopulation(inputs, targets, F.cross_entropy, lattice=lattice), module, clip_norm=0.25)


@pytest.mark.parametrize("lattice", [True, False], ids=["lattice", "plain"])
def test_a_sum_is_that_of_minus_the_clipped_gradients(lattice: bool) -> None:
    examples, module, inputs, targets = population("network", lattice=lattice)
    rows = one_by_one(module, inputs, targets).double()
    clip_norm = float(rows.norm(dim=1).sort().values[5:7].mean())
    expected = -(rows * (clip_norm / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(dim=0)
    total = examples.collect(range(EXAMPLES), module, clip_norm, 0)
    torch.testing.assert_close(total.open(None), expected, rtol=1e-4, atol=1e-5 * clip_norm)
    assert total.statistics["clipped_fraction"] == pytest.approx(5 / EXAMPLES)


@pytest.mark.parametrize("lattice", [True, False], ids=["lattice", "plain"])
def test_the_indicators_of_adaptive_clipping_are_one_more_coordinate(lattice: bool) -> None:
    examples, module, inputs, targets = population(lattice=lattice)
    norms = one_by_one(module, inputs, targets).norm(dim=1)
    clip_norm = float(norms.sort().values[3:5].mean())
    split = AdaptiveClipping().split(noise_multiplier=1.0, expected_cohort_size=8)
    total = examples.collect(range(EXAMPLES), module, clip_norm, 0, split).open(None)
    assert float(total[-1]) == pytest.approx(split.count_scale(clip_norm) * (4 - EXAMPLES / 2), rel=1e-5)
    bare = examples.collect(range(EXAMPLES), module, clip_norm, 0).open(None)
    torch.testing.assert_close(total[:-1], bare, rtol=1e-4, atol=1e-5)


def test_what_is_drawn_for_an_example_is_its_own() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 3))
    inputs, targets = data((4,))
    examples = ExamplePopulation(inputs, targets, F.cross_entropy, seed=1)
    before = torch.get_rng_state()
    alone = examples.collect([3], module, 1.0, 2).total
    beside = examples.collect([5, 3, 1], module, 1.0, 2).total - examples.collect([1, 5], module, 1.0, 2).total
    assert torch.equal(alone, beside)
    assert not torch.equal(alone, examples.collect([3], module, 1.0, 3).total)
    assert torch.equal(torch.get_rng_state(), before)


def test_shp_8_frozen_parameters_are_neither_differentiated_nor_released() -> None:
    examples, module, _, _ = population("network")
    module[0].requires_grad_(False)
    total = examples.collect(range(EXAMPLES), module, 0.5, 0)
    assert len(total.total) == sum(p.numel() for p in module.parameters() if p.requires_grad)


def test_num_2_a_run_without_privacy_is_gradient_descent() -> None:
    (examples, module, inputs, targets), (_, twin, _, _) = population(), population()
    plan = RunPlan(4, PoissonSampling(1.0), EXAMPLES, noise="simulation", server=ServerOptimizer("fedavgm", 0.1, 0.8))
    list(train(plan, examples, module))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.8)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(twin(inputs), targets).backward()
        optimizer.step()
    torch.testing.assert_close([*module.parameters()], [*twin.parameters()], rtol=1e-5, atol=1e-6)


def test_however_large_a_cohort_is_a_batch_is_in_memory_at_a_time() -> None:
    module, inputs, targets = made("perceptron", 200)
    by_form = ExampleGradients(nn.Sequential(nn.Conv1d(1, 8, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten()), F.cross_entropy)
    assert by_form.size(torch.zeros(1, 1, 9), targets) == 64 > by_form.size(torch.zeros(1, 1, 10**6), targets)
    gradients = ExampleGradients(module, F.cross_entropy, batch=8)
    chosen = Chosen(inputs, targets, range(200), int)
    assert {rows.untyped_storage().nbytes() for rows, _ in gradients.rows(chosen)} == {8 * 4 * gradients.dim}


def test_private_gradients_are_the_sum_of_the_clipped_ones() -> None:
    module, inputs, targets = made("network", EXAMPLES)
    rows = one_by_one(module, inputs, targets).double()
    total = private_gradients(module, F.cross_entropy, inputs, targets, 0.1)
    expected = (rows * (0.1 / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(dim=0)
    torch.testing.assert_close(total.open(None), expected, rtol=1e-4, atol=1e-6)
    assert total.lattice == Lattice(0.1)
    promise = Promise(1, Mechanism(Identity(1), SingleParticipation(), 1.0), privacy_unit="example")
    path, other = (
        ReleasePath(replace(promise, privacy_unit=unit), len(total.total), clients=EXAMPLES) for unit in ("example", "client")
    )
    path.start()
    other.start()
    with pytest.raises(ConfigError, match="privacy_unit = 'client': this sum is of single clipped examples"):
        other.begin(range(EXAMPLES), total, 0.1)
    with pytest.raises(ParticipationError, match=f"holds {EXAMPLES} units, and its cohort names {EXAMPLES - 1}"):
        path.begin(range(EXAMPLES - 1), total, 0.1)
    path.begin(range(EXAMPLES), total, 0.1)
    assert not private_gradients(module, F.cross_entropy, inputs[:0], targets[:0], 0.1).total.any()


def test_a_module_is_tried_anew_when_it_becomes_random() -> None:
    module, (inputs, targets) = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)).eval(), data((4,))
    for change in (module.eval, module.train, partial(setattr, module[1], "p", 0.5)):
        change()
        assert "failed" not in private_gradients(module, F.cross_entropy, inputs, targets, 1.0).statistics


def test_a_module_whose_loss_is_its_own_method_is_tried_once_and_not_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    class Whole(nn.Linear):
        def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(output, targets)

    tried, module, examples = [], Whole(4, 3), data((4,))
    steady = ExampleGradients.require_steady
    monkeypatch.setattr(ExampleGradients, "require_steady", lambda self, *given: tried.append(1) or steady(self, *given))
    for _ in range(3):
        private_gradients(module, module.loss, *examples, 1.0)
    assert len(tried) == 1
    private_gradients(module, F.cross_entropy, *examples, 1.0)
    assert len(tried) == 2
    private_gradients(module, module.loss, *examples, 1.0)
    left = weakref.ref(module)
    del module
    gc.collect()
    assert left() is None


def test_shp_2_shp_3_private_gradients_refuse_a_buffer() -> None:
    with pytest.raises(ConfigError, match="GroupNorm"):
        private_gradients(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), F.cross_entropy, *data((4,)), 1.0)


class Checkpointed(nn.Module):
    """A table that writes into its rows when it is called, and is called once more by the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(50, 4, max_norm=0.5), nn.Linear(4, 50)
        self.register_buffer("seen", torch.zeros(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(checkpoint(self.rows, x, use_reentrant=False))

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.tanh(self.table(x)).mean(1)
        self.seen.copy_(found.detach().mean(0))
        return found


def test_cli_15_a_backward_pass_that_calls_the_module_again_leaves_it_as_it_was() -> None:
    model = Checkpointed()
    before = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
    inputs, targets = torch.tensor([[41, 42], [43, 44]]), torch.tensor([1, 2])
    total = private_gradients(model, F.cross_entropy, inputs, targets, 1.0)
    assert all(torch.equal(*pair) for pair in zip(before, (*model.parameters(), *model.buffers()), strict=True))
    alone = [private_gradients(model, F.cross_entropy, inputs[i : i + 1], targets[i : i + 1], 1.0).total for i in (0, 1)]
    assert torch.equal(total.total, sum(alone))


def test_sparse_gradients_are_dense_ones() -> None:
    module, given = nn.EmbeddingBag(9, 3), (F.cross_entropy, torch.randint(9, (5, 4)), torch.zeros(5).long(), 1.0)
    dense, module.sparse = private_gradients(module, *given).open(None), True
    torch.testing.assert_close(private_gradients(module, *given).open(None), dense, rtol=0, atol=1e-6)


def test_what_a_layer_writes_or_draws_reaches_no_example_and_no_other_measurement() -> None:
    module, (inputs, targets) = nn.Linear(4, 3), data((4,))
    module.register_forward_pre_hook(lambda _, given: F.dropout(given[0].sub_(0.5)))
    before, examples = inputs.clone(), ExamplePopulation(inputs, targets, F.cross_entropy)
    private_gradients(module, F.cross_entropy, inputs, targets, 1.0)
    examples.collect([0, 1], module, 1.0, 0)
    assert examples.measure([0, 1, 2], module)[2:] == examples.measure([2], module)
    assert torch.equal(inputs, before)


NUMBERS = st.floats(-10, 10) | st.sampled_from([0.0, math.nan, math.inf, -math.inf, 1e30, -1e-30, 1e300, 5e-324, 0.5**25])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5).flatmap(lambda dim: st.lists(st.lists(NUMBERS, min_size=dim, max_size=dim), min_size=1, max_size=6)),
    clip_norm=st.sampled_from([1.0, 0.3, 1e-9, 1e9]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_rows_are_encoded_as_each_is_alone(rows: list[list[float]], clip_norm: float, dtype: torch.dtype) -> None:
    lattice, matrix = Lattice(clip_norm), torch.tensor(rows, dtype=torch.float64).to(dtype)
    total = torch.zeros(matrix.shape[1], dtype=torch.int64)
    flags = lattice.encode_rows(matrix, total)
    alone = [lattice.encode(row) for row in matrix]
    assert torch.equal(total, torch.stack([steps for steps, _ in alone]).sum(dim=0))
    assert flags.tolist() == [flag for _, flag in alone]
    # As a GPU does it, by which a norm may have other last bits.
    together, apart = torch.zeros(2, matrix.shape[1], dtype=torch.float64)
    clipped, finite = lattice._add_together(matrix, together)
    for row, (steps, _) in zip(matrix, alone, strict=True):
        before = apart.clone()
        lattice._add_together(row[None], apart)
        assert float((apart - before - steps).abs().max()) <= 1
    assert torch.equal(together, apart)
    assert (clipped | ~finite).tolist() == flags.tolist()
