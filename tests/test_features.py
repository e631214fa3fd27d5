"""Features of images: kymatio's values or those of the definition, each example's own, the same in the mirror."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hubbub.datasets import Dataset, features
from hubbub.datasets import patches as module_of_patches
from hubbub.datasets.features import random_images
from hubbub.datasets.patches import patches, with_patches
from hubbub.datasets.scattering import scattering, with_scattering
from hubbub.errors import DataError
from hubbub.experiment import config as configs
from hubbub.experiment.build import build
from hubbub.experiment.planner import planned


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fewer random images and patches, for what is true of any number."""
    made = features.random_images, features._decorrelation, module_of_patches._filters
    monkeypatch.setattr(features, "_LEAVES", 100)
    monkeypatch.setattr(module_of_patches, "_DRAWN", 20_000)
    for kept in made:
        kept.cache_clear()
    yield
    for kept in made:
        kept.cache_clear()


few_random_images = pytest.mark.usefixtures("few")


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


def featured(given: torch.Tensor, folder: Path | None = None, *, mirrored: bool = False) -> torch.Tensor:
    targets = torch.arange(len(given)) % 2
    return with_scattering(Dataset(given, targets, given, targets), folder, mirrored=mirrored).train_inputs


@few_random_images
def test_features_are_of_each_example_alone_and_kept_while_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = images(1, 28, 28)
    whole = featured(given, tmp_path)
    torch.testing.assert_close(whole[2:], featured(given[2:]), rtol=1e-4, atol=1e-4)
    (kept,) = tmp_path.iterdir()
    content = kept.read_bytes()
    for damaged in (content[:-9], b"", b"x" * 1000, content[:9000] + b"\0" * 99 + content[9099:]):
        kept.write_bytes(damaged)
        assert torch.equal(featured(given, tmp_path), whole)
        assert kept.read_bytes() == content
    # Where nothing can be kept, they are computed each time.
    assert torch.equal(featured(given, kept), whole)
    monkeypatch.setattr(features, "_decorrelation", None)
    assert torch.equal(featured(given, tmp_path), whole)


@pytest.mark.slow
@few_random_images
def test_mirrored_features_are_those_of_the_mirror_image_too() -> None:
    given = images(3, 16, 16)
    found, mirror = (featured(some, mirrored=True) for some in (given, given.flip(3)))
    assert found.shape == (3, 243, 4, 2)
    torch.testing.assert_close(found, mirror, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_features_are_those_that_the_cache_was_filled_with() -> None:
    """Change ``_VERSION`` with these numbers: a cache keeps features of another version under another name."""
    found = featured(images(1, 28, 28)).double()
    assert [float(found.sum()), float(found.square().sum())] == pytest.approx([-129.426, 44383.448], rel=1e-3)


@pytest.mark.parametrize("inputs", [torch.rand(2, 28, 28), torch.rand(2, 1, 6, 28), torch.zeros(2, 1, 28, 28).long()])
def test_what_is_no_image_is_refused(inputs: torch.Tensor) -> None:
    data = Dataset(inputs, torch.tensor([0, 1]), inputs, torch.tensor([0, 1]))
    for transform in (scattering, patches, lambda _: with_scattering(data), lambda _: with_patches(data)):
        with pytest.raises(DataError, match=r"have the shape \(2, .*features are those of images"):
            transform(inputs)


@pytest.mark.slow
@few_random_images
@pytest.mark.parametrize(
    ("features", "shape"),
    [
        ("scattering", (81, 2, 2)),
        pytest.param("mirrored-scattering", (81, 2, 1), marks=pytest.mark.slow),
        pytest.param("patches", (768, 4, 4), marks=pytest.mark.slow),
    ],
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


@pytest.mark.slow
@few_random_images
def test_features_of_patches_are_those_of_the_definition() -> None:
    """One feature, patch by patch, by whitened patches of random images that stand here once more."""
    side, draw = 5, torch.Generator().manual_seed(0)

    def normalized(patch: torch.Tensor) -> torch.Tensor:
        centered = patch.double().flatten() - patch.double().mean()
        return centered / math.sqrt(float(centered.square().mean()) + 0.0025)

    leaves = 4 * random_images(1, 32, 32)
    places = torch.randint(len(leaves) * 28 * 28, (20_000,), generator=draw).tolist()
    cut = [(n // 784, n % 784 // 28, n % 28) for n in places]
    rows = torch.stack([normalized(leaves[n, :, i : i + side, j : j + side]) for n, i, j in cut])
    mean = rows.mean(0)
    values, vectors = torch.linalg.eigh((rows - mean).T.cov(correction=0) + 0.1 * torch.eye(side**2, dtype=torch.double))
    whitening = vectors @ torch.diag(values.rsqrt()) @ vectors.T
    lengths = ((rows - mean) @ whitening).norm(dim=1)
    white = (rows - mean) @ whitening / lengths[:, None]
    chosen = white[lengths > lengths.median()][:384]

    def averages(image: torch.Tensor) -> torch.Tensor:
        """Of 8 × 8 pixels, where each of 4 × 4 places is one patch."""
        cells = [normalized(image[:, i : i + side, j : j + side]) for i in range(4) for j in range(4)]
        likeness = (torch.stack(cells) - mean) @ whitening @ chosen.T
        return torch.cat([(likeness - 0.5).clamp(min=0), (-likeness - 0.5).clamp(min=0)], 1).T.reshape(768, 4, 4)

    given = images(1, 8, 8)
    expected = torch.stack([(averages(image) + averages(image.flip(2))).sqrt() for image in given])
    scaled = (expected - expected.mean((1, 2, 3), keepdim=True)) / expected.std((1, 2, 3), keepdim=True, correction=0)
    torch.testing.assert_close(patches(given).double(), scaled, rtol=1e-2, atol=1e-2)


@few_random_images
def test_features_of_patches_are_of_each_example_alone_the_same_in_the_mirror_and_kept(tmp_path: Path) -> None:
    given, targets = images(3, 12, 10), torch.tensor([0, 1, 1])
    whole = with_patches(Dataset(given, targets, given, targets), tmp_path).train_inputs
    for some in (given[2:], given[2:].flip(3)):
        alone = with_patches(Dataset(some, targets[2:], some, targets[2:])).train_inputs
        torch.testing.assert_close(whole[2:], alone, rtol=1e-3, atol=1e-3)
    assert len(list(tmp_path.iterdir())) == 1
