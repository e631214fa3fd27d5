"""The file of a release, by another hand than the library's: whole steps of a lattice, in 32 bits where they fit."""

import hashlib

import numpy as np
from safetensors.numpy import save


def release_file(release: np.ndarray, step: float) -> bytes:
    """That of a release on the lattice of a step, ``(dim,)``."""
    steps = np.rint(release / step).astype(np.int64)
    assert np.array_equal(steps * step, release)
    kept = steps.astype(np.int32) if np.abs(steps).max(initial=0) < 2**31 else steps
    return save({"steps": kept, "step": np.array(step)})


def release_digest(release: np.ndarray, step: float) -> str:
    return hashlib.sha256(release_file(release, step)).hexdigest()
