"""The noise that is really in a release: within 1 % of what is stated, however many clients drop out, at any precision.

Standard deviations are measured over so many numbers that 1 % are five and a half standard errors or more: chance misses
that once in 25 million.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bad_replies import spied
from flower_arms import Federation, adaptive, fixed
from hubbub.flower import DPFedAvgFixed, GridPopulation, clipping_mod, noising_mod
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import every_round
from hubbub.mechanism.strategies import Identity, Strategy, toeplitz
from hubbub.noise.lattice import Lattice
from hubbub.noise.steps import share_stddev
from hubbub.training import LatticeSum, Population, RunPlan, train
from replays import Transcript

CLIENTS, CLIP, Z, DIM = 10, 0.5, 1.3, 160_000
WITHIN = 0.01


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("silent", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
def test_cli_5_drop_outs_leave_noise_and_influence_as_stated(silent: float, dtype: str) -> None:
    """The sum is divided by the planned number of clients: whoever is left moves the model by no more than before."""
    strategy = fixed(CLIENTS, clip_norm=CLIP, noise_multiplier=Z)
    federation = Federation(CLIENTS, lambda model, index: model, silent=range(round(silent * CLIENTS)))
    with pytest.MonkeyPatch.context() as patch:
        found = spied(patch)
        model, told = federation.round(strategy, {"w": np.zeros(DIM, dtype)})
    assert told["released"] == 1
    assert float(found[0].release.std()) == pytest.approx(Z * CLIP, rel=WITHIN)
    assert abs(float(found[0].release.mean())) < 6 * Z * CLIP / math.sqrt(DIM)
    assert model["w"].dtype == dtype
    # To the last bits of the model's own precision.
    np.testing.assert_allclose(model["w"], found[0].release.numpy() / CLIENTS, rtol=2.0**-10, atol=1e-6)


@pytest.mark.parametrize("silent", [0.0, 0.5, 0.9])
def test_cli_5_drop_outs_leave_the_noise_of_adaptive_clipping_as_stated(silent: float) -> None:
    strategy = adaptive(CLIENTS, initial_clip_norm=CLIP, noise_multiplier=Z, clip_count_stddev=2.0)
    federation = Federation(CLIENTS, lambda model, index: model, silent=range(round(silent * CLIENTS)))
    with pytest.MonkeyPatch.context() as patch:
        found = spied(patch)
        federation.round(strategy, {"w": np.zeros(DIM, np.float32)})
    # Andrew et al. 2021, Theorem 1.
    stated = (Z**-2 - (2 * 2.0) ** -2) ** -0.5 * CLIP
    assert float(found[0].release[:-1].std()) == pytest.approx(stated, rel=WITHIN)


class Wide(nn.Module):
    def __init__(self, dim: int, dtype: torch.dtype, value: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((dim,), value, dtype=dtype))


def plan(strategy: Strategy, **changes: Any) -> RunPlan:
    pattern = every_round(strategy.rounds)
    mechanism = Mechanism(strategy, pattern, Z)
    return RunPlan(strategy.rounds, pattern, CLIENTS, mechanism, clip_norm=CLIP, **changes)


@pytest.mark.parametrize("silent", [0.0, 0.5, 0.9])
def test_cli_5_drop_outs_leave_correlated_noise_as_stated(silent: float) -> None:
    """C times the rows is z again: of the stated standard deviation in every round, and independent over rounds."""
    rounds, dim = 4, DIM // 4
    planned = plan(toeplitz.square_root(rounds, 3))
    grid = Federation(CLIENTS, lambda model, index: model, silent=range(round(silent * CLIENTS))).grid
    with pytest.MonkeyPatch.context() as patch:
        found = spied(patch)
        list(train(planned, GridPopulation(grid, grid.get_node_ids()), Wide(dim, torch.float32, 0.0)))
    rows = torch.stack([one.release for one in found]).numpy()
    whitened = planned.mechanism.strategy.matrix() @ rows / (planned.mechanism.stddev * CLIP)
    assert float(whitened.std()) == pytest.approx(1, rel=WITHIN)
    correlations = np.corrcoef(whitened) - np.eye(rounds)
    assert np.abs(correlations).max() < 6 / math.sqrt(dim)


class Nobody(Population):
    """Clients none of whom answers, for models of any type."""

    clients = range(CLIENTS)

    def collect(self, cohort: Any, model: nn.Module, clip_norm: float, round_index: int, split: Any = None) -> Any:
        dim = sum(p.numel() for p in model.parameters())
        return LatticeSum(torch.zeros(dim, dtype=torch.int64), Lattice(clip_norm), {})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cli_5_a_model_of_half_precision_is_released_with_noise_of_full_precision(dtype: torch.dtype) -> None:
    """Weights of 1000 lie 4 apart in bfloat16 and 0.5 in float16: noise that was added to them would be rounded away."""
    with pytest.MonkeyPatch.context() as patch:
        found = spied(patch)
        transcript = Transcript(Nobody())
        list(train(plan(Identity(1)), transcript, Wide(DIM, dtype, 1000.0)))
    assert found[0].release.dtype == torch.float64
    assert float(found[0].release.std()) == pytest.approx(Z * CLIP, rel=WITHIN)
    assert len(found[0].release.unique()) > DIM * 0.9
    assert Lattice(CLIP).holds(found[0].release)


def sharing(answering: int, least: int, dim: int) -> tuple[DPFedAvgFixed, Federation, dict[str, Any]]:
    strategy = fixed(CLIENTS, clip_norm=CLIP, noise_multiplier=Z, noise_at="clients", min_survivors=least)
    silent = range(CLIENTS - answering)
    federation = Federation(CLIENTS, lambda model, index: model, silent=silent, mods=[noising_mod, clipping_mod])
    return strategy, federation, {"w": np.zeros(dim)}


@pytest.mark.parametrize("answering", [5, 7, 10])
def test_cli_5_shares_of_the_noise_are_as_their_theory_says_and_never_below_what_is_stated(answering: int) -> None:
    least = 5
    strategy, federation, model = sharing(answering, least, DIM)
    with pytest.MonkeyPatch.context() as patch:
        found = spied(patch)
        _, told = federation.round(strategy, model)
    assert told["released"] == 1
    lattice = Lattice(CLIP)
    share = share_stddev(Z, CLIP, least)
    # As whole numbers: the shares of the fewest have the stated variance together, or more.
    assert Fraction(share) ** 2 * least >= (Fraction(Z) * Fraction(CLIP) / Fraction(lattice.step)) ** 2
    theory = share * math.sqrt(answering) * lattice.step
    assert theory >= Z * CLIP
    assert float(found[0].release.std()) == pytest.approx(theory, rel=WITHIN)
    assert theory == pytest.approx(Z * CLIP * math.sqrt(answering / least), rel=1e-5)


@pytest.mark.parametrize("answering", [0, 1, 3, 4])
def test_cli_5_too_few_shares_of_the_noise_are_not_released(answering: int) -> None:
    strategy, federation, model = sharing(answering, 5, 20)
    with pytest.MonkeyPatch.context() as patch:
        sums = spied(patch)
        after, told = federation.round(strategy, model)
    assert not sums
    assert (told["released"], strategy.rounds_charged) == (0, 1)
    assert not np.asarray(after["w"]).any()
    assert strategy.guarantee().epsilon > 0
