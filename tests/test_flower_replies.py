"""Of what clients may send, nothing but a clipped update counts: the rest is worth a reply that never came, bit for bit."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array

from bad_replies import BOUNDED, CLIENTS, MODEL, NO_BIT, NOTHING, Fault, adaptive, fixed, outcome, trained, with_w
from flower_arms import Federation, Model
from flower_defects import logged
from hubbub.errors import ConfigError
from hubbub.flower import clipping_mod, noising_mod

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("make", [fixed, adaptive], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("fault", NOTHING.values(), ids=NOTHING)
def test_num_7_num_8_shp_5_shp_6_shp_9_what_is_no_update_counts_as_no_reply(fault: Fault, make: Callable[[], Any]) -> None:
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
        return arrays["w"].data

    assert second_round(also=True) == second_round(also=False)


def test_cli_4_no_node_answers_in_the_name_of_another() -> None:
    def without_the_first(forged: bool) -> bytes:
        strategy = fixed()
        first, second, *others = Federation(CLIENTS, trained).ask(strategy, MODEL)
        theirs = second.metadata.__dict__
        first.metadata.__dict__.update({name: theirs[name] for name in ("_src_node_id", "_reply_to_message_id")})
        return strategy.aggregate_train(1, [*([first] if forged else []), second, *others])[0]["w"].data

    assert without_the_first(forged=True) == without_the_first(forged=False)


def test_cli_10_what_is_told_of_a_round_does_not_hang_on_what_clients_sent() -> None:
    def told(size: float) -> tuple[dict[str, Any], list[str]]:
        federation = Federation(CLIENTS, lambda m, i: {**m, "scale": m["scale"] + np.float32(size)}, lambda i: {"loss": size})
        strategy = fixed(simulation_seed=None)
        strategy.strategy.train_metrics_aggr_fn = lambda contents, key: contents[0]["metrics"]["loss"]
        with logged() as lines:
            _, metrics = federation.round(strategy, MODEL)
        return metrics, lines

    assert told(0.125) == told(77.75)


BATCH_NORM = {name: value.numpy() for name, value in torch.nn.BatchNorm1d(2).state_dict().items()}


@pytest.mark.parametrize("model", [BATCH_NORM, {"w": np.zeros(2), "steps": np.arange(3)}], ids=["batch norm", "whole numbers"])
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


@pytest.mark.parametrize("steps", [-(2**63), 2**63 - 1, 2**29])
def test_numbers_larger_than_an_update_and_its_noise_are_no_share(steps: int) -> None:
    strategy = fixed(noise_at="clients", min_survivors=CLIENTS, simulation_seed=None)
    federation = Federation(CLIENTS, lambda m, i: m, mods=[noising_mod, clipping_mod])
    replies = federation.ask(strategy, MODEL)
    with_w(lambda w: Array(np.full_like(w, steps)))(replies[0], random.Random())  # noqa: S311 # draws nothing
    assert strategy.aggregate_train(1, replies)[0] is None
