"""No update moves the sum by more than the clip norm, whatever numbers it holds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.noise.lattice import Lattice
from hubbub.training import clip
from hubbub.training.clipping import AdaptiveClipping


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=20), st.floats(1e-6, 1e6))
def test_no_update_moves_the_sum_by_more_than_the_clip_norm(values: list[float], clip_norm: float) -> None:
    bounded, was_clipped = clip(torch.tensor(values), clip_norm)
    assert float(bounded.norm()) <= clip_norm
    assert torch.isfinite(bounded).all()
    if all(math.isfinite(v) for v in values) and not was_clipped:
        assert torch.equal(bounded, torch.tensor(values, dtype=torch.float64))


def test_a_long_hostile_update_stays_within_the_clip_norm() -> None:
    update = torch.cat([torch.ones(16), torch.full((999_984,), 1e-8)])
    assert float(clip(update, 1.0)[0].norm()) <= 1.0


def test_clipping_keeps_the_direction_and_the_norm() -> None:
    update = torch.tensor([3.0, 4.0])
    bounded, was_clipped = clip(update, 1.0)
    assert was_clipped
    assert 1 - 2**-19 < float(bounded.norm()) <= 1
    torch.testing.assert_close(bounded / bounded.norm(), torch.tensor([0.6, 0.8], dtype=torch.float64), rtol=1e-12, atol=0)
    assert not clip(update, 5.1)[1]


@given(st.floats(0.05, 50), st.floats(1, 5000), st.floats(1e-3, 1e3), st.booleans())
def test_ada_5_one_noise_hides_updates_and_count_as_stated(z: float, cohort: float, clip_norm: float, stated: bool) -> None:
    split = AdaptiveClipping(clip_count_stddev=z * 1.3 if stated else None).split(z, cohort)
    # Two Gaussians, of multipliers z_Δ and 2σ_b (an indicator about its middle moves by a half), cost as much as one of z.
    assert split.update_multiplier**-2 + (2 * split.count_stddev) ** -2 == pytest.approx(z**-2, rel=1e-9)
    # The same deviation on every coordinate: z_Δ·C on the update, and σ_b once the indicator's scale is divided out.
    noise = z * split.joint_norm(clip_norm)
    assert noise == pytest.approx(split.update_multiplier * clip_norm, rel=1e-9)
    assert noise / split.count_scale(clip_norm) == pytest.approx(split.count_stddev, rel=1e-9)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9), st.booleans(), st.floats(1e-3, 1e3))
def test_an_update_and_its_indicator_stay_within_the_joint_norm(values: list[float], within: bool, clip_norm: float) -> None:
    split = AdaptiveClipping().split(1.0, 10)
    indicator = torch.tensor([split.count_scale(clip_norm) * (within - 0.5)], dtype=torch.float64)
    bounded, _ = clip(torch.tensor(values), clip_norm)
    joint = split.joint_norm(clip_norm)
    assert float(torch.cat([bounded, indicator]).norm()) <= joint * (1 + 1e-12)
    steps, _ = Lattice(joint).encode(torch.cat([bounded, indicator]))
    assert int((steps**2).sum()) <= Lattice(joint).radius ** 2


@pytest.mark.parametrize("fraction", [-1e300, 1e300, 0.0, 1.0])
def test_ada_2_ada_3_an_adapted_clip_norm_stays_in_its_bounds(fraction: float) -> None:
    rule, clip_norm = AdaptiveClipping(1.0, 0.5, clip_norm_learning_rate=1e3), 1.0
    for _ in range(40):
        clip_norm = rule.following(clip_norm, fraction)
    assert clip_norm in (1e-10, 1e10)


@pytest.mark.parametrize("stddev", [0.50001, 0.5, 0.49, 0.1])
def test_ada_5_a_count_that_would_cost_everything_is_refused(stddev: float) -> None:
    with pytest.raises(ValueError, match=r"clip_count_stddev = .*: twice that must be well above noise_multiplier = 1\.0"):
        AdaptiveClipping(clip_count_stddev=stddev).split(1.0, 100)


@pytest.mark.parametrize(
    "settings_",
    [{"initial_clip_norm": 0.0}, {"target_quantile": 1.1}, {"clip_norm_learning_rate": math.nan}, {"clip_count_stddev": -1}],
)
def test_a_rule_that_cannot_be_is_refused_by_name(settings_: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings_))):
        AdaptiveClipping(**settings_)
