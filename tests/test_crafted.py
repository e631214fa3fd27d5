"""A client whose update somebody chooses goes the way of all others, in every population."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from encrypted_runs import encrypted, terms
from encrypted_runs import plan as encrypted_plan
from flower_arms import Federation
from hubbub.flower import GridPopulation, clipping_mod
from hubbub.mechanism.strategies import Identity
from small_runs import CLIENTS, linear, population
from ways import examples

CLIP = 0.5
# Noise that adds nothing: encrypted sums are not opened without any.
SILENCE = torch.zeros(8, dtype=torch.float64)
FAR = torch.tensor([3.0, 0, -4.0, 0, 0, 0, 0, 0])


def grid(mods: Sequence[Any] = ()) -> GridPopulation:
    made = Federation(CLIENTS, lambda model, _: {name: values + np.float32(0.1) for name, values in model.items()}, mods=mods)
    return GridPopulation(made.grid, made.grid.get_node_ids())


OWNER = terms(holders=1, threshold=1)
MAKERS: dict[str, Callable[[], object]] = {
    "clients": population,
    "examples": lambda: examples(1),
    "Flower": grid,
    "Flower with a mod": lambda: grid([clipping_mod]),
    "Paillier": lambda: encrypted(encrypted_plan(Identity(6), OWNER), OWNER),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_a_crafted_client_is_clipped_and_summed_as_any_other(make: Callable) -> None:
    def of(cohort: list[int], *, chosen: bool) -> torch.Tensor:
        clients = make()
        if chosen:
            clients.inject(3, lambda _, round_index: FAR * 10.0 ** (round_index - 2))
        return clients.collect(cohort, linear(), CLIP, 2).open(SILENCE)

    # What it is clipped to, by definition: at most the clip norm, in its own direction.
    added = of([1, 3, 5], chosen=True) - of([1, 5], chosen=False)
    torch.testing.assert_close(added, FAR.double() * CLIP / 5, atol=1e-4, rtol=0)
    assert CLIP * (1 - 2**-12) < float(added.norm()) <= CLIP * (1 + 1e-5)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@pytest.mark.parametrize("bad", [None, torch.full((8,), math.nan), torch.full((8,), math.inf)], ids=["none", "nan", "inf"])
def test_an_injected_update_that_is_missing_or_no_number_adds_nothing(make: Callable, bad: torch.Tensor | None) -> None:
    clients = make()
    clients.inject(3, lambda *_: bad)
    beside, without = clients.collect([1, 3, 5], linear(), CLIP, 0), make().collect([1, 5], linear(), CLIP, 0)
    torch.testing.assert_close(beside.open(SILENCE), without.open(SILENCE), atol=0, rtol=0)
