"""Features of patches: each example's own, the same in the mirror, those of the definition."""

import math
from pathlib import Path

import torch

from hubbub.datasets import Dataset
from hubbub.datasets.features import random_images
from hubbub.datasets.patches import patches, with_patches


def images(*shape: int) -> torch.Tensor:
    return torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))


def test_the_features_are_those_of_the_definition() -> None:
    """One feature, patch by patch, by whitened patches of random images that stand here once more."""
    side, draw = 5, torch.Generator().manual_seed(0)

    def normalized(patch: torch.Tensor) -> torch.Tensor:
        centered = patch.double().flatten() - patch.double().mean()
        return centered / math.sqrt(float(centered.square().mean()) + 0.0025)

    leaves = 4 * random_images(1, 32, 32)
    places = torch.randint(len(leaves) * 28 * 28, (200_000,), generator=draw).tolist()
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


def test_features_are_of_each_example_alone_the_same_in_the_mirror_and_kept(tmp_path: Path) -> None:
    given, targets = images(3, 12, 10), torch.tensor([0, 1, 1])
    whole = with_patches(Dataset(given, targets, given, targets), tmp_path).train_inputs
    for some in (given[2:], given[2:].flip(3)):
        alone = with_patches(Dataset(some, targets[2:], some, targets[2:])).train_inputs
        torch.testing.assert_close(whole[2:], alone, rtol=1e-3, atol=1e-3)
    assert len(list(tmp_path.iterdir())) == 1
