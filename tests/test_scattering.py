"""Scattering features: kymatio's values, each example's own."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hubbub.datasets import Dataset
from hubbub.datasets.patches import patches, with_patches
from hubbub.datasets.scattering import scattering, with_scattering
from hubbub.errors import DataError
from hubbub.experiment import config as configs
from hubbub.experiment.build import build
from hubbub.experiment.planner import planned


def images(*shape: int) -> torch.Tensor:
    return torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))


# Of kymatio 0.3.0, Scattering2D(J=2): sums of channels 0, 1, 9, 20, 50, 80 of the first image, and the sum of all squares.
KYMATIO = {
    (1, 28, 28): ([24.230849, 2.942681, 1.449034, 0.229844, 0.216113, 0.407536], 42.814573511725605),
    (3, 32, 32): ([31.778693, 3.876805, 2.130431, 0.320302, 0.252632, 0.587362], 168.4104191643928),
}


@pytest.mark.parametrize("shape", KYMATIO)
def test_the_transform_is_that_of_kymatio(shape: tuple[int, ...]) -> None:
    sums, squares = KYMATIO[shape]
    found = scattering(images(*shape)).double()
    assert [float(found[0, i].sum()) for i in (0, 1, 9, 20, 50, 80)] == pytest.approx(sums, rel=1e-3)
    assert float(found.square().sum()) == pytest.approx(squares, rel=1e-4)


def test_features_are_of_each_example_alone_and_are_kept(tmp_path: Path) -> None:
    given, targets = images(1, 28, 28), torch.tensor([0, 1, 1])
    whole = with_scattering(Dataset(given, targets, given, targets), tmp_path)
    alone = with_scattering(Dataset(given[2:], targets[2:], given, targets))
    torch.testing.assert_close(whole.train_inputs[2:], alone.train_inputs, rtol=1e-4, atol=1e-4)
    assert len(list(tmp_path.iterdir())) == 1
    (kept,) = tmp_path.iterdir()
    np.save(kept, np.ones_like(whole.train_inputs.numpy()))
    assert bool((with_scattering(Dataset(given, targets, given, targets), tmp_path).train_inputs == 1).all())


def test_mirrored_features_are_those_of_the_mirror_image_too() -> None:
    given, targets = images(3, 16, 16), torch.tensor([0, 1, 1])
    found, mirror = (
        with_scattering(Dataset(some, targets, some, targets), mirrored=True).train_inputs for some in (given, given.flip(3))
    )
    assert found.shape == (3, 243, 4, 2)
    torch.testing.assert_close(found, mirror, rtol=1e-4, atol=1e-4)


def test_the_features_are_those_that_the_cache_was_filled_with() -> None:
    """Change ``_VERSION`` with these numbers: a cache keeps features of another version under another name."""
    given, targets = images(1, 28, 28), torch.tensor([0, 1, 1])
    found = with_scattering(Dataset(given, targets, given, targets)).train_inputs.double()
    assert [float(found.sum()), float(found.square().sum())] == pytest.approx([-129.426, 44383.448], rel=1e-3)


@pytest.mark.parametrize("inputs", [torch.rand(2, 28, 28), torch.rand(2, 1, 6, 28), torch.zeros(2, 1, 28, 28).long()])
def test_what_is_no_image_is_refused(inputs: torch.Tensor) -> None:
    data = Dataset(inputs, torch.tensor([0, 1]), inputs, torch.tensor([0, 1]))
    for transform in (scattering, patches, lambda _: with_scattering(data), lambda _: with_patches(data)):
        with pytest.raises(DataError, match=r"have the shape \(2, .*(scattering takes|patches are those of) images"):
            transform(inputs)


@pytest.mark.parametrize(
    ("features", "shape"),
    [("scattering", (81, 2, 2)), ("mirrored-scattering", (81, 2, 1)), ("patches", (768, 4, 4))],
)
def test_a_run_on_features_says_so_in_its_promise(
    features: str, shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBBUB_CACHE", str(tmp_path))
    layer = {"data": {"name": "digits", "features": features}, "model": {"name": "linear"}, "privacy": {"epsilon": 4.0}}
    run = build(configs.resolve(layer))
    assert run.dataset.shape == shape
    assert run.plan.promise().settings["data.features"] == features
    assert "data.features" not in planned(configs.resolve({"privacy": {"epsilon": 4.0}}), 100).promise().settings
