"""Files of strategies: of what is no strategy row and column are named, and what a file states of itself is computed again."""

from pathlib import Path

import numpy as np
import pytest

from hubbub import Mechanism, MinSeparation, SingleParticipation
from hubbub.factorization import Optimized, strategy_file
from hubbub.mechanism.strategies import Dense, dense
from hubbub.mechanism.workloads import prefix_sum
from hubbub.testing import brute_force_sensitivity
from malformed.contents import C, canonical, npy, opened, proto, tensors_file
from recorded_runs import invoke
from refusals import refused
from small_runs import Foreign

pytestmark = pytest.mark.usefixtures("workplace")

ROUNDS = len(C)
ACCOUNT = [
    "account", "--rounds", str(ROUNDS), "--delta", "1e-5", "--noise-multiplier", "1", "--mechanism",
]  # fmt: skip
DENSE = [*ACCOUNT[:-1], "--strategy", "dense", "--matrix"]


def stored(matrix: np.ndarray) -> bytes:
    """The file in which hubbub stores a strategy, with another matrix in it."""
    found = Optimized(Dense(np.eye(ROUNDS)), prefix_sum(ROUNDS), SingleParticipation(), "mean", 1.0, 1.0, "dense", 0)
    strategy_file.save("made.safetensors", found)
    header, _ = opened(Path("made.safetensors").read_bytes())
    dtype = {8: "F64", 4: "F32", 2: "F16"}[matrix.itemsize]
    array = {"dtype": dtype, "shape": list(matrix.shape), "data_offsets": [0, matrix.nbytes]}
    return tensors_file({**header, "strategy.C": array}, np.ascontiguousarray(matrix).tobytes())


FORMATS = {
    "C.npy": npy,
    "C.pb": lambda matrix: proto({8: 2, 4: 1, 2: 19}[matrix.itemsize], matrix.shape, np.ascontiguousarray(matrix).tobytes()),
    "C.safetensors": stored,
}


def changed(i: int, j: int, entry: float) -> np.ndarray:
    matrix = C.copy()
    matrix[i, j] = entry
    return matrix


KINDS: dict[str, tuple[np.ndarray, tuple[str, ...]]] = {
    "NaN": (changed(3, 1, np.nan), ("C[3, 1] = nan", "finite")),
    "infinite": (changed(2, 0, -np.inf), ("C[2, 0] = -inf", "finite")),
    "zero on the diagonal": (changed(4, 4, 0.0), ("C[4, 4] = 0.0", "diagonal")),
    "above the diagonal": (changed(1, 4, 1e-9), ("C[1, 4] = 1e-09", "lower triangular")),
    "transposed": (C.T.copy(), ("C[0, 1] = 0.26", "lower triangular")),
    "not square": (C[:, :5].copy(), ("(6, 5)", "square")),
    "of fewer rounds": (C[:5, :5].copy(), ("rounds", "5")),
    "float16": (C.astype(np.float16), ("C",)),
}


@pytest.mark.parametrize("file", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_fil_1_what_is_no_strategy_is_refused_with_row_and_column(kind: str, file: str) -> None:
    matrix, words = KINDS[kind]
    Path(file).write_bytes(FORMATS[file](matrix))
    for command in (ACCOUNT, DENSE):
        refused([*command, file], file, *words)


@pytest.mark.parametrize("file", FORMATS)
def test_fil_1_whole_files_made_by_the_same_hands_are_taken(file: str) -> None:
    Path(file).write_bytes(FORMATS[file](C))
    for command in (ACCOUNT, DENSE):
        assert "epsilon" in invoke(*command, file)


def test_fil_1_bands_are_counted_in_the_matrix_and_not_believed() -> None:
    Path("C.npy").write_bytes(npy(changed(5, 0, 1e-9)))
    refused([*ACCOUNT, "dense:matrix=C.npy,bands=2"], "bands = 2", "'dense' has none")
    refused([*DENSE, "C.npy", "--bands", "2"], "--matrix", "leave --strategy and its numbers out")
    refused([*ACCOUNT, "C.npy", "--sampling-probability", "0.1", "--cycle-length", "2"], "has 6 bands", "cycle_length = 2")


SEPARATED = MinSeparation(2, 3)


@pytest.mark.parametrize("factor", [1.0, 3.0, 0.01])
def test_fil_2_columns_of_any_norm_have_the_sensitivity_that_they_have(factor: float) -> None:
    Path("C.npy").write_bytes(npy(factor * C))
    mechanism = Mechanism(dense.load("C.npy"), SEPARATED, noise_multiplier=1.5)
    assert mechanism.l2_sensitivity == pytest.approx(brute_force_sensitivity(factor * C, SEPARATED), rel=1e-12)
    # The noise is a multiple of the norm that the largest column really has.
    assert mechanism.stddev == pytest.approx(1.5 * np.linalg.norm(factor * C, axis=0).max(), rel=1e-12)


def test_fil_2_a_stated_sensitivity_is_not_trusted() -> None:
    mechanism = Mechanism(Foreign(C, stated=0.1), SEPARATED, noise_multiplier=1.0)
    whole, largest = brute_force_sensitivity(C, SEPARATED), np.linalg.norm(C, axis=0).max()
    assert mechanism.l2_sensitivity == pytest.approx(whole, rel=1e-12)
    assert mechanism.column_norm == pytest.approx(largest, rel=1e-12)
    assert mechanism.mu == pytest.approx(whole / largest, rel=1e-12)
    assert mechanism.sensitivity_after(4).value == pytest.approx(brute_force_sensitivity(C[:4, :4], SEPARATED), rel=1e-12)


def test_fil_2_a_file_has_no_place_for_a_sensitivity() -> None:
    header, data = opened(stored(C))
    said = header["__metadata__"]["hubbub"]
    for more in ("l2_sensitivity", "sensitivity", "column_norm"):
        forged = {**header, "__metadata__": {"hubbub": f'{said[:-1]},"{more}":0.1}}'}}
        Path("C.safetensors").write_bytes(tensors_file(canonical(forged), data))
        refused([*ACCOUNT, "C.safetensors"], "C.safetensors", more, "no part of a strategy file")
