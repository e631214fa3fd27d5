"""scikit-learn's handwritten digits: 1,797 images of 8 × 8, part of scikit-learn, so that a first run needs no network.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.
"""

import numpy as np
import torch

from hubbub.datasets.dataset import Dataset
from hubbub.errors import DataError


def load(path: str | None = None) -> Dataset:
    """The digits, shuffled once: 1,437 for training, 360 for test; inputs ``(1, 8, 8)``.

    Args:
        path: Must be left out: the data come with scikit-learn.

    Raises:
        DataError: A path is given.

    Example:
        >>> data = load()
        >>> len(data.train_targets), len(data.test_targets), data.shape, data.classes
        (1437, 360, (1, 8, 8), 10)
    """
    if path is not None:
        raise DataError(f"data.path = {path!r}: the digits come with scikit-learn; leave it out")
    from sklearn.datasets import load_digits

    images, targets = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x = torch.from_numpy(images[order].reshape(-1, 1, 8, 8)).float() / 16
    y = torch.from_numpy(targets[order])
    return Dataset(x[360:], y[360:], x[:360], y[:360])
