"""Updates and tensors of odd values, shapes, types and layouts: bounded, matched by name, or refused."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from flower_arms import SEED, Federation, fixed
from hubbub.errors import ConfigError
from hubbub.noise.lattice import Lattice
from hubbub.training import ExamplePopulation, LocalTraining, SimulatedPopulation, clip
from hubbub.training.simulation.functional import FlatModel
from small_runs import linear


def test_num_9_updates_of_zero_are_updates_and_nothing_is_divided_by_their_norm() -> None:
    nothing = (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    for lattice, cohort in itertools.product((True, False), ([], [0], [0, 1, 2])):
        clients = SimulatedPopulation([nothing] * 3, F.cross_entropy, LocalTraining(), lattice=lattice)
        total = clients.collect(cohort, linear(), 0.5, 0)
        assert torch.equal(total.open(None), torch.zeros(8, dtype=torch.float64))
        assert total.statistics["clipped_fraction"] == 0
    flat = torch.zeros(4, 3)
    examples = ExamplePopulation(flat, torch.zeros(4, 2), lambda out, target: (out * 0).sum() / len(target))
    assert not examples.collect([0, 1], linear(), 0.5, 0).open(None).any()
    strategy = fixed(3, noise_multiplier=1e-9, simulation_seed=SEED)
    released, _ = Federation(3, lambda model, index: model).round(strategy, {"w": np.ones(4)})
    np.testing.assert_allclose(released["w"], 1.0, atol=1e-7)


def test_num_10_norms_of_every_scale_are_clipped_exactly_and_none_vanishes_or_overflows() -> None:
    """Ten thousand updates from 1e-38 to 1e38 in float32, and beyond in float64."""
    generator, lattice = torch.Generator().manual_seed(4), Lattice(1.0)
    r = np.random.default_rng(4)
    for i in range(10_000):
        wide = bool(i % 2)
        exponent = float(r.uniform(-300, 300)) if wide else float(r.uniform(-37, 37))
        direction = torch.randn(4, generator=generator, dtype=torch.float64)
        update = (direction / direction.norm() * 10**exponent).to(torch.float64 if wide else torch.float32)
        steps, clipped = lattice.encode(update)
        whole = [int(q) for q in steps]
        # In Python's own whole numbers.
        assert sum(q * q for q in whole) <= lattice.radius**2
        # What is long keeps its direction and all but the rounding of its norm; what is short stays.
        length = math.sqrt(sum(q * q for q in whole)) / lattice.radius
        assert clipped == (exponent > 0) or abs(exponent) < 1e-6
        assert length == pytest.approx(min(1.0, 10**exponent), abs=1e-6)
        bounded, was_clipped = clip(update, 1.0)
        assert float(bounded.norm()) <= 1.0
        assert was_clipped == clipped or abs(exponent) < 1e-6
        if exponent > -30:
            assert float(bounded.norm()) == pytest.approx(min(1.0, 10**exponent), rel=1e-5)


class Scalar(nn.Module):
    """A linear layer and a temperature without axes, whose gradient is a million times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + 1e6 * self.temperature * torch.tensor([1.0, -1.0])


def test_shp_1_a_parameter_without_axes_is_in_the_norm_and_a_neighbour_moves_it_by_the_clip_norm_at_most() -> None:
    torch.manual_seed(0)
    model, x = Scalar(), torch.randn(4, 3)
    clients = SimulatedPopulation([(x, torch.ones(4).long()), (x, torch.ones(4).long())], F.cross_entropy, LocalTraining())
    both, one = (clients.collect(cohort, model, 0.5, 0).open(None) for cohort in ([0, 1], [1]))
    assert len(both) == 9
    assert 0.49 < float((both - one).norm()) <= 0.5
    examples = ExamplePopulation(x, torch.ones(4).long(), F.cross_entropy)
    assert float(examples.collect([0], model, 0.5, 0).open(None).norm()) <= 0.5


@pytest.mark.parametrize("buffer", ["int64", "bool", "int8"])
def test_shp_2_whole_numbers_are_refused_by_name_or_stay_as_they_are(buffer: str) -> None:
    model = linear()
    model.register_buffer("counted", torch.ones(3).to(getattr(torch, buffer)))
    with pytest.raises(ConfigError, match="'counted'"):
        FlatModel(model)
    with pytest.raises(ConfigError, match="'counted'"):
        ExamplePopulation(torch.zeros(2, 3), torch.zeros(2).long(), F.cross_entropy).collect([0], model, 0.5, 0)
    strategy = fixed(2, noise_multiplier=1e-9, simulation_seed=SEED, buffers="keep")
    held = np.ones(3).astype(buffer)
    federation = Federation(2, lambda values, index: {"w": values["w"] + 3, "counted": np.zeros(3).astype(buffer)})
    released, _ = federation.round(strategy, {"w": np.zeros(4), "counted": held})
    assert released["counted"].tolist() == held.tolist()
    # Two updates of norm 6, clipped to 1: each number of the mean is a half.
    np.testing.assert_allclose(released["w"], 0.5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_shp_4_half_precision_is_summed_and_hidden_in_whole_steps(dtype: torch.dtype) -> None:
    # A value of a thousand, where neighbours of bfloat16 are 4 apart: noise of 1 must not be lost.
    dim, clip_norm = 200_000, 1000 * math.sqrt(200_000)
    lattice = Lattice(clip_norm)
    steps, _ = lattice.encode(torch.full((dim,), 999.0, dtype=dtype))
    row = torch.randn(dim, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    noise = lattice.release(steps, row) - steps * lattice.step
    # Of 200,000 numbers the deviation is known to 0.16 %: 1 % is six of these.
    assert float(noise.std()) == pytest.approx(1.0, rel=0.01)
    # In steps of a 64th it takes all values that it may, within four deviations.
    assert len(torch.unique(noise)) > 400
    # 0.6 in ten million numbers of 1.9e-4 is above a clip norm of 0.1.
    small = torch.full((10**6,), 6e-4, dtype=dtype)
    assert float(clip(small, 0.1)[0].norm()) == pytest.approx(0.1, rel=1e-5)


def test_shp_8_tied_weights_count_once_frozen_ones_do_not_and_tensors_of_no_size_pass() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    second.extra = nn.Parameter(torch.zeros(0, 4))
    model = nn.Sequential(first, second)
    FlatModel(model).require_views()
    assert FlatModel(model).dim == 9 + 3 + 3
    x, y = torch.randn(4, 3), torch.zeros(4).long()
    total = SimulatedPopulation([(x, y)], F.cross_entropy, LocalTraining()).collect([0], model, 0.5, 0).open(None)
    assert total.shape == (15,)
    assert 0 < float(total.norm()) <= 0.5
    assert ExamplePopulation(x, y, F.cross_entropy).collect([0], model, 0.5, 0).open(None).shape == (15,)
    strategy = fixed(2, noise_multiplier=1e-9, simulation_seed=SEED)
    federation = Federation(2, lambda values, index: {**values, "w": values["w"] + 3})
    out, _ = federation.round(strategy, {"w": np.zeros(4), "none": np.zeros((0, 4))})
    assert out["none"].shape == (0, 4)
    np.testing.assert_allclose(out["w"], 0.5, rtol=1e-5)
    second.bias.requires_grad_(False)
    flat = FlatModel(model)
    assert flat.dim == 9 + 3
    flat.vector.fill_(2.0)
    assert (first.weight == 2).all()
    assert not (second.bias == 2).all()


def test_shp_9_complex_sparse_and_quantised_numbers_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"torch\.complex64"):
        FlatModel(nn.Linear(2, 1, dtype=torch.complex64))
    with pytest.raises(ValueError, match="must be one vector of real numbers"):
        Lattice(1.0).encode(torch.zeros(2, dtype=torch.complex64))
    for odd in ("complex64", "complex128", "longdouble"):
        with pytest.raises(ConfigError, match="'w' is of"):
            Federation(2, lambda model, index: model).ask(fixed(2), {"w": np.zeros(3, odd)})
