"""No update moves the sum by more than the clip norm, whatever numbers it holds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.training import clip


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=20),
    st.floats(1e-6, 1e6),
)
def test_no_update_moves_the_sum_by_more_than_the_clip_norm(values: list[float], clip_norm: float) -> None:
    bounded, was_clipped = clip(torch.tensor(values), clip_norm)
    assert float(bounded.norm()) <= clip_norm
    assert torch.isfinite(bounded).all()
    if all(math.isfinite(v) for v in values) and not was_clipped:
        assert torch.equal(bounded, torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize("hostile", [math.nan, math.inf, -math.inf, 1e30, 3e38, 0.0])
def test_one_hostile_number_moves_the_sum_by_at_most_the_clip_norm(hostile: float) -> None:
    update = torch.full((1000,), 0.01)
    update[17] = hostile
    assert float(clip(update, 1.0)[0].norm()) <= 1.0


def test_a_long_hostile_update_stays_within_the_clip_norm() -> None:
    update = torch.full((1_000_000,), 1e-8)
    update[:16] = 1.0
    assert float(clip(update, 1.0)[0].norm()) <= 1.0


def test_clipping_keeps_the_direction_and_the_norm() -> None:
    update = torch.tensor([3.0, 4.0])
    bounded, was_clipped = clip(update, 1.0)
    assert was_clipped
    assert 1 - 2**-19 < float(bounded.norm()) <= 1
    torch.testing.assert_close(bounded / bounded.norm(), torch.tensor([0.6, 0.8], dtype=torch.float64), rtol=1e-12, atol=0)
    assert not clip(update, 5.1)[1]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_norm_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="clip_norm"):
        clip(torch.ones(2), bad)
