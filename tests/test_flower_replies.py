"""Of what clients may send, nothing but a clipped update counts: the rest is worth a reply that never came, bit for bit."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array
from torch import nn

from bad_replies import BOUNDED, CLIENTS, MODEL, NO_BIT, NOTHING, Fault, adaptive, fixed, outcome, spied, trained, with_w
from flower_arms import Federation, Model
from flower_defects import logged
from hubbub.errors import ConfigError
from hubbub.flower import DPFedAvgAdaptive, DPFedAvgFixed, clipping_mod, noising_mod
from hubbub.flower.population import GridPopulation
from hubbub.noise.lattice import Lattice

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("make", [fixed, adaptive], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("fault", NOTHING.values(), ids=NOTHING)
def test_num_7_num_8_shp_5_shp_6_shp_9_what_is_no_update_counts_as_a_missing_reply(
    fault: Fault, make: Callable[[], Any]
) -> None:
    assert outcome(make, fault) == outcome(make, None, silent=[2])


@pytest.mark.parametrize("fault", NO_BIT.values(), ids=NO_BIT)
def test_a_bit_that_is_none_counts_as_a_missing_reply_and_is_not_in_the_log(fault: Fault) -> None:
    with logged() as lines:
        assert outcome(adaptive, fault) == outcome(adaptive, None, silent=[2])
    assert any("dpfedavg_norm_bit is" in line for line in lines)


FORMS = ("names in another order", "big-endian", "Fortran order")


@pytest.mark.parametrize("make", [fixed, adaptive], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("form", FORMS)
def test_shp_6_shp_7_order_and_form_of_a_reply_change_no_bit(form: str, make: Callable[[], Any]) -> None:
    assert outcome(make, BOUNDED[form]) == outcome(make, None)


def test_cli_4_a_reply_to_the_round_before_counts_for_nothing() -> None:
    def second_round(also: bool) -> bytes:
        strategy, federation = fixed(), Federation(CLIENTS, trained)
        late = federation.ask(strategy, MODEL)
        strategy.aggregate_train(1, [])
        replies = federation.ask(strategy, MODEL)
        arrays, _ = strategy.aggregate_train(2, [*(late if also else []), *replies[:-1]])
        assert arrays is not None
        return arrays["w"].data

    assert second_round(also=True) == second_round(also=False)


class Named(nn.Module):
    """The model of the federation, for the loop."""

    def __init__(self) -> None:
        super().__init__()
        for name, values in MODEL.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(values)))


@pytest.mark.parametrize("lattice", [True, False], ids=["lattice", "floating point"])
@pytest.mark.parametrize("name", [*NOTHING, *BOUNDED])
def test_a_grid_of_the_loop_counts_what_is_no_update_as_nothing_and_clips_the_rest(name: str, lattice: bool) -> None:
    grid, draw = Federation(CLIENTS, trained).grid, random.Random(1)  # noqa: S311 # of a test
    clients, target = GridPopulation(grid, grid.get_node_ids(), lattice=lattice), grid.get_node_ids()[2]

    def total() -> torch.Tensor:
        return clients.collect(clients.clients, Named(), 1.0, 0).open(None)

    grid.offline([target])
    silent = total()
    grid.offline([])
    fault = {**NOTHING, **BOUNDED}[name]
    grid.reply_filter = lambda reply: fault(reply, draw) if reply.metadata.src_node_id == target else reply
    moved = total() - silent
    assert float(moved.norm()) <= (0 if name in NOTHING else 1 + 1e-12)


CRAZY = {
    "huge": lambda model: {"w": np.full((2, 3), 3e38, np.float32), "scale": np.float32(-3e38)},
    "huge, in float64": lambda model: {"w": np.full((2, 3), 1e308), "scale": np.array(-1e308)},
    "only the number without axes": lambda model: {**model, "scale": np.float32(1e6)},
    "tiny": lambda model: {"w": np.nextafter(model["w"], np.float32(9)), "scale": model["scale"]},
    "just above": lambda model: {**model, "scale": model["scale"] + np.float32(1.0001)},
    "half precision": lambda model: {"w": np.full((2, 3), 6e4, np.float16), "scale": np.array(6e4, np.float16)},
}


@pytest.mark.parametrize("update", CRAZY.values(), ids=CRAZY)
@pytest.mark.parametrize("bit", [None, 0, 1, -5, 2**62])
def test_cli_1_no_client_moves_the_release_by_more_than_the_clip_norm(update: Callable[[Any], Model], bit: int | None) -> None:
    """Update and indicator as one vector: in steps of the lattice, exactly."""

    def total(strategy: DPFedAvgFixed | DPFedAvgAdaptive, silent: tuple[int, ...]) -> torch.Tensor:
        told = {} if bit is None else {"dpfedavg_norm_bit": bit}
        federation = Federation(
            CLIENTS,
            lambda m, i: {**m, **update(m)} if i == 0 else trained(m, i),
            lambda i: told if i == 0 else {},
            silent=silent,
        )
        with pytest.MonkeyPatch.context() as patch:
            sums = spied(patch)
            federation.round(strategy, MODEL)
        return sums[0][1]

    for make in (fixed, adaptive):
        moved = total(make(), ()) - total(make(), (0,))
        # Andrew et al. 2021, Theorem 1: the joint norm is z_Δ/z times the clip norm; with 1 on the count that is 1/√(1 - 1/4).
        joint = 1.0 if make is fixed else 1 / math.sqrt(1 - 0.25)
        assert int((moved**2).sum()) <= (joint / Lattice(joint).step) ** 2


def test_cli_10_what_is_told_of_a_round_does_not_hang_on_what_clients_sent() -> None:
    def told(size: float) -> tuple[dict[str, Any], list[str]]:
        federation = Federation(CLIENTS, lambda m, i: {**m, "scale": m["scale"] + np.float32(size)}, lambda i: {"loss": size})
        with logged() as lines:
            _, metrics = federation.round(fixed(simulation_seed=None), MODEL)
        return metrics, lines

    assert told(0.125) == told(77.75)


# Buffers.


def batch_norm() -> Model:
    layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    return {name: value.numpy() for name, value in layer.state_dict().items()}


@pytest.mark.parametrize(
    "model", [batch_norm(), {"w": np.zeros(2), "steps": np.arange(3)}], ids=["batch norm", "whole numbers"]
)
def test_shp_2_shp_3_buffers_are_refused_until_they_are_to_be_kept(model: Model) -> None:
    federation = Federation(CLIENTS, lambda m, i: {name: value + 1 for name, value in m.items()})
    with pytest.raises(ConfigError, match="buffers='keep'"):
        federation.ask(fixed(), model)
    released, _ = federation.round(fixed(buffers="keep"), model)
    assert list(released) == list(model)
    for name, before in model.items():
        assert released[name].dtype == np.asarray(before).dtype
        kept = np.array_equal(released[name], before)
        assert kept == (name == "steps" or "running" in name or "batches" in name)


# Noise of clients.


@pytest.mark.parametrize("steps", [-(2**63), 2**63 - 1, 2**50 + 1])
def test_numbers_too_large_to_be_summed_exactly_are_no_share(steps: int) -> None:
    strategy = fixed(noise_at="clients", min_survivors=CLIENTS, simulation_seed=None)
    federation = Federation(CLIENTS, lambda m, i: m, mods=[noising_mod, clipping_mod])
    replies = federation.ask(strategy, MODEL)
    with_w(lambda w: Array(np.full_like(w, steps)))(replies[0], random.Random())  # noqa: S311 # draws nothing
    assert strategy.aggregate_train(1, replies)[0] is None
