"""The cohort sizes that ``hubbub plan`` shows have the calibrated noise of their budget, and the rule finds the smallest."""

import pytest

from hubbub.accounting import calibrate
from hubbub.experiment import config as configs
from hubbub.experiment.cohort_sizes import CohortSize, cohort_sizes, proposed
from hubbub.experiment.planner import planned
from hubbub.mechanism.participation import FixedSizeSampling, Participation, PoissonSampling
from hubbub.mechanism.strategies import Identity

Layer = configs.Layer
UNITS = 2000
BASE: Layer = {"training": {"rounds": 50, "cohort_size": 100}, "data": {"clients": UNITS, "name": "my:own"}}
CYCLIC: Layer = {
    "privacy": {"mode": "dp-ftrl", "sampling": "cyclic-poisson", "bands": 5, "epsilon": 3.0},
    "participation": {"cycle_length": 5},
}
RUNS: dict[str, Layer] = {
    "poisson": {"privacy": {"epsilon": 3.0, "clip_norm": 0.5}},
    "poisson, zero-out": {"privacy": {"epsilon": 3.0, "neighboring_relation": "zero-out"}},
    "poisson, given noise": {"privacy": {"noise_multiplier": 1.5}},
    "adaptive clipping": {"privacy": {"epsilon": 3.0, "clipping": "adaptive"}},
    "fixed-size": {"privacy": {"epsilon": 3.0, "sampling": "fixed-size"}},
    "cyclic": CYCLIC,
}


def sizes_of(*layers: Layer) -> tuple[CohortSize, ...]:
    config = configs.resolve(BASE, *layers)
    return cohort_sizes(config, UNITS, planned(config, UNITS))


@pytest.mark.parametrize("layer", RUNS.values(), ids=RUNS)
def test_noise_in_the_mean_never_rises_with_the_size_and_the_proposed_size_is_the_smallest_near_the_least(layer: Layer) -> None:
    sizes = sizes_of(layer)
    noise = {one.size: one.mean_stddev for one in sizes}
    assert list(noise) == sorted(noise)
    assert list(noise.values()) == sorted(noise.values(), reverse=True)
    # The powers of two up to half of what a cohort is sampled from, without a gap, and the size of the settings.
    top = 128 if layer is CYCLIC else 512
    powers = sorted({*noise} - {100})
    assert powers == [top >> i for i in reversed(range(len(powers)))]
    assert noise[powers[0]] > 2 * noise[top] >= noise[powers[1]]
    near = [size for size, each in noise.items() if each <= 1.1 * noise[max(noise)]]
    assert proposed(sizes).size == near[0]
    assert all(one.processed == one.size * 50 for one in sizes)
    assert [one.size for one in sizes if not one.changes] == [100]


@pytest.mark.parametrize("kind", ["poisson", "fixed-size"])
def test_the_noise_multiplier_of_a_size_is_the_calibrated_one(kind: str) -> None:
    for one in sizes_of({"privacy": {"epsilon": 3.0, "clip_norm": 0.5, "sampling": kind}}):
        fixed = kind == "fixed-size"
        cohorts: Participation = FixedSizeSampling(one.size, UNITS) if fixed else PoissonSampling(one.size / UNITS)
        z = calibrate(Identity(50), cohorts, epsilon=3.0, delta=1e-5).noise_multiplier
        assert one.noise_multiplier == z
        assert one.mean_stddev == pytest.approx(z * 0.5 / one.size)


@pytest.mark.parametrize(
    "layer",
    [
        {"privacy": {"mode": "none"}},
        {"privacy": {"mode": "dp-ftrl", "epsilon": 3.0}},
        {"privacy": {"mode": "dp-ftrl", "strategy": "identity", "sampling": "balls-in-bins", "epsilon": 3.0}},
        {"privacy": {"noise_multiplier": 1.5, "stop_epsilon": 3.0}},
    ],
    ids=["no privacy", "pattern", "balls in bins", "ended by a budget"],
)
def test_runs_without_noise_or_without_a_free_size_have_no_table(layer: Layer) -> None:
    assert sizes_of(layer) == ()
