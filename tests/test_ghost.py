"""Norms without gradients, and sums without norms' gradients, against gradients that are made one by one."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.training.per_example.examples import ExamplePopulation, squared_norms, weighted_sum
from hubbub.training.per_example.gradients import ExampleGradients
from odd_modules import MODULES, made
from test_examples import one_by_one

EXAMPLES = 9


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_norms_are_those_of_each_example_s_own_gradient(name: str) -> None:
    module, inputs, targets = made(name, EXAMPLES)
    norms = squared_norms(ExampleGradients(module, F.cross_entropy).seen(inputs, targets)).sqrt()
    exact = one_by_one(module.double(), inputs.double() if inputs.is_floating_point() else inputs, targets).norm(dim=1)
    torch.testing.assert_close(norms, exact, rtol=1e-5, atol=0)


def test_pairs_of_positions_are_used_where_they_are_few_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(32, 24, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(24 * 16, 3))
    inputs, targets = torch.randn(5, 32, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    seen = ExampleGradients(module, F.cross_entropy).seen(inputs, targets)
    exact = one_by_one(module.double(), inputs.double(), targets).norm(dim=1)
    monkeypatch.setattr("hubbub.training.per_example.examples.weight_gradients", None)
    torch.testing.assert_close(squared_norms(seen).sqrt(), exact, rtol=1e-5, atol=0)


def test_a_layer_used_twice_has_the_norm_of_both_uses_together() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(20, 20, bias=False)
    module = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer, nn.Linear(20, 3))
    inputs, targets = torch.randn(4, 20), torch.tensor([0, 1, 2, 0])
    norms = squared_norms(ExampleGradients(module, F.cross_entropy).seen(inputs, targets)).sqrt()
    exact = one_by_one(module.double(), inputs.double(), targets).norm(dim=1)
    torch.testing.assert_close(norms, exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_a_weighted_sum_is_that_of_the_gradients(name: str) -> None:
    module, inputs, targets = made(name, EXAMPLES)
    gradients = ExampleGradients(module, F.cross_entropy)
    weights = torch.linspace(0, 2, EXAMPLES)
    found = weighted_sum(gradients.seen(inputs, targets), weights, gradients.shapes)
    expected = (weights.unsqueeze(1) * one_by_one(module, inputs, targets)).sum(dim=0)
    torch.testing.assert_close(found, expected.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip_norm", [0.05, 1e6, None])
@pytest.mark.parametrize("name", ["network", "sequence", "norms"])
def test_a_simulation_s_sum_is_the_same_with_ghost_norms(name: str, clip_norm: float | None) -> None:
    module, inputs, targets = made(name, EXAMPLES)
    ghost, own = (ExamplePopulation(inputs, targets, F.cross_entropy, lattice=False, ghost=way) for way in (True, False))
    ours, theirs = (way.collect(range(EXAMPLES), module, clip_norm, 0) for way in (ghost, own))
    torch.testing.assert_close(ours.total, theirs.total, rtol=1e-4, atol=1e-6)
    assert ours.statistics == pytest.approx(theirs.statistics, rel=1e-5)


def test_hostile_examples_count_as_nothing_and_nobody_moves_the_sum_by_more_than_the_clip_norm() -> None:
    module, inputs, targets = made("network", EXAMPLES)
    honest = ExamplePopulation(inputs[5:], targets[5:], F.cross_entropy, lattice=False).collect(range(4), module, 0.2, 0)
    for number, hostile in enumerate((math.nan, math.inf, -math.inf, 1e38, 0.0)):
        inputs[number] = hostile
    examples = ExamplePopulation(inputs, targets, F.cross_entropy, lattice=False)
    for number in range(EXAMPLES):
        assert float(examples.collect([number], module, 0.2, 0).total.norm()) <= 0.2
    assert not examples.collect([0, 1], module, 0.2, 0).total.any()
    together = examples.collect([0, 1, 2, 5, 6, 7, 8], module, 0.2, 0).total
    torch.testing.assert_close(together, honest.total, rtol=1e-4, atol=1e-6)
