"""Wrong configs, matrices, data, own code and folders are refused in one line, and nothing that was there changes."""

import gc
import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

import refusals
from refusals import GOOD, Refused, contents, output, settings

# Fixtures are found by their names here.
workplace, refused = refusals.workplace, refusals.refused


# --- config files ---


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["noise_multiplier", "epsilon", "missing"]),
        (GOOD.encode()[:10], ["is not TOML"]),
        (GOOD.encode()[:-12] + b'"', ["is not TOML"]),
        (bytes(range(256)), ["is not TOML"]),
        (bytes(100), ["is not TOML"]),
        (GOOD.encode("utf-16"), ["is not TOML"]),
        (b"#" * 2_000_000, ["2000000 bytes", "at most"]),
        (b"rounds = 3\n" + GOOD.encode(), ["rounds", "section"]),
        (GOOD.encode() + b"[data]\n", ["is not TOML", "data"]),
        (b"a = " + b"[" * 100_000, ["is not TOML"]),
        (b"[training]\nrounds = " + b"9" * 5000, ["bad.toml"]),
    ],
    ids=["empty", "torn", "cut", "binary", "zeros", "utf-16", "huge", "no section", "twice", "deep", "long number"],
)
def test_a_damaged_config_is_refused_by_its_name(refused: Refused, content: bytes, words: list[str]) -> None:
    Path("bad.toml").write_bytes(content)
    refused(settings("bad.toml"), *([] if not content else ["bad.toml"]), *words)
    assert Path("bad.toml").read_bytes() == content
    assert not Path("new").exists()


@pytest.mark.parametrize("command", ["train", "plan"])
@pytest.mark.parametrize("path", ["nowhere.toml", "good.toml/inside"])
def test_a_missing_config_is_refused_by_its_name(refused: Refused, command: str, path: str) -> None:
    refused([command, path], path, "is missing")


@pytest.mark.parametrize("command", ["train", "plan"])
def test_a_folder_in_place_of_a_config_is_refused(refused: Refused, command: str, workplace: Path) -> None:
    refused([command, str(workplace)], str(workplace), "is a folder", "resume")


def test_a_config_with_a_name_too_long_for_any_file_is_refused(refused: Refused) -> None:
    refused(["train", "x" * 5000], "xxx", "too long")


# --- matrices ---


def test_a_dense_matrix_of_fewer_rounds_is_refused(refused: Refused) -> None:
    np.save("C.npy", np.eye(2))
    refused(settings("correlated.toml", "privacy.strategy=dense", "privacy.matrix=C.npy"), "rounds = 4", "C.npy", "2 rounds")


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.full((4, 4), np.nan), ["nan", "finite"]),
        (np.ones((4, 5)), ["(4, 5)", "square"]),
        (np.ones((4, 4)), ["C[0, 1] = 1.0", "lower triangular"]),
        (np.zeros((4, 4)), ["C[0, 0] = 0.0", "diagonal"]),
        (np.ones(4), ["(4,)", "2 axes"]),
        (np.zeros((0, 0)), ["(0, 0)", "empty"]),
        (np.eye(4, dtype=int), ["C.npy", "int64"]),
        (np.eye(4) * 1e-300, ["C"]),
        (np.eye(4) * 1e300, ["C"]),
    ],
    ids=["nan", "not square", "not triangular", "zeros", "one axis", "empty", "whole numbers", "tiny", "enormous"],
)
def test_a_matrix_that_is_no_strategy_is_refused(refused: Refused, matrix: np.ndarray, words: list[str]) -> None:
    np.save("C.npy", matrix)
    refused(settings("correlated.toml", "privacy.strategy=dense", "privacy.matrix=C.npy"), *words)


@pytest.mark.parametrize("kept", [0, 20, 200])
def test_a_torn_matrix_file_is_refused(refused: Refused, kept: int) -> None:
    np.save("C.npy", np.eye(9))
    Path("C.npy").write_bytes(Path("C.npy").read_bytes()[:kept])
    refused(settings("correlated.toml", "privacy.strategy=dense", "privacy.matrix=C.npy"), "C.npy")


def array_of_impossible_size(dtype: str) -> bytes:
    """A .npy file whose header promises 10^15 × 10^15 entries."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({10**15}, {10**15}), }}".encode()
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(100)


def test_a_matrix_file_that_promises_more_than_it_holds_is_refused(refused: Refused) -> None:
    Path("C.npy").write_bytes(array_of_impossible_size("<f8"))
    refused(settings("correlated.toml", "privacy.strategy=dense", "privacy.matrix=C.npy"), "C.npy")


# --- data ---


def damaged_archive(kind: str) -> bytes:
    """What could be found under the name of a data file, and is not it."""
    arrays = dict.fromkeys(("x_train", "y_train", "x_test", "y_test"), np.arange(5000, dtype=np.uint8))
    np.savez_compressed("whole.npz", **arrays)
    whole = Path("whole.npz").read_bytes()
    match kind:
        case "text":
            return b"not an archive"
        case "empty":
            return b""
        case "torn":
            return whole[:400]
        case "overwritten":
            return whole[:200] + bytes(60) + whole[260:]
        case "other shapes":
            return whole
        case "one array":
            np.save("array.npy", np.ones(3))
            return Path("array.npy").read_bytes()
        case "pickled":
            np.savez("pickled.npz", x_train=np.array([{}], dtype=object))
            return Path("pickled.npz").read_bytes()
        case _:
            with zipfile.ZipFile("impossible.npz", "w") as archive:
                for name in arrays:
                    archive.writestr(f"{name}.npy", array_of_impossible_size("|u1"))
            return Path("impossible.npz").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["text", "empty", "torn", "overwritten", "other shapes", "one array", "pickled", "of impossible size"]
)
def test_a_damaged_data_file_is_refused_by_its_name(refused: Refused, kind: str) -> None:
    content = damaged_archive(kind)
    Path("mnist.npz").write_bytes(content)
    refused(settings("good.toml", "data.name=mnist", "data.path=mnist.npz"), "mnist.npz")
    # A file that was left open warns when it is collected.
    gc.collect()
    assert Path("mnist.npz").read_bytes() == content


@pytest.mark.parametrize("path", ["nowhere.npz", "good.toml/inside", "~no_such_user/mnist.npz"])
def test_a_missing_data_file_is_refused_by_its_name(refused: Refused, path: str) -> None:
    refused(settings("good.toml", "data.name=mnist", f"data.path={path}"), Path(path).name)


def test_a_missing_data_folder_in_the_environment_is_refused(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBBUB_DATA", "nowhere")
    refused(settings("good.toml", "data.name=mnist"), "nowhere", "is missing")


def test_a_data_folder_without_the_data_is_refused(refused: Refused) -> None:
    Path("data").mkdir()
    refused(settings("good.toml", "data.name=mnist", "data.path=data"), "data", "is missing", "mnist.npz")


# --- own code ---


OWN_CODE = """
from torch import nn


def seven(*ignored):
    return 7


class Gathering(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))
"""

OWN_NAMES = [("good.toml", "data.name"), ("good.toml", "model.name"), ("correlated.toml", "privacy.strategy")]


@pytest.mark.parametrize(("config", "setting"), OWN_NAMES, ids=[setting for _, setting in OWN_NAMES])
def test_own_code_is_not_run_without_permission(refused: Refused, config: str, setting: str) -> None:
    Path("own_forbidden.py").write_text("raise SystemExit('own code was run')\n")
    refused(settings(config, f"{setting}=own_forbidden:Thing"), "own_forbidden:Thing", "--allow-import")


@pytest.mark.parametrize(("config", "setting"), OWN_NAMES, ids=[setting for _, setting in OWN_NAMES])
@pytest.mark.parametrize("name", ["no_such_module:Thing", "own_code:Missing", "own_code:", ":Thing", "..own_code:Gathering"])
def test_own_code_that_does_not_exist_is_refused(refused: Refused, config: str, setting: str, name: str) -> None:
    Path("own_code.py").write_text(OWN_CODE)
    refused([*settings(config, f"{setting}={name}"), "--allow-import"], setting.rpartition(".")[2], f"'{name}'")


@pytest.mark.parametrize(("config", "setting"), OWN_NAMES, ids=[setting for _, setting in OWN_NAMES])
def test_own_code_that_makes_something_else_is_refused(refused: Refused, config: str, setting: str) -> None:
    Path("own_code.py").write_text(OWN_CODE)
    refused([*settings(config, f"{setting}=own_code:seven"), "--allow-import"], "'own_code:seven'", "int")


def test_an_own_model_that_gathers_statistics_is_refused(refused: Refused) -> None:
    Path("own_code.py").write_text(OWN_CODE)
    refused([*settings("good.toml", "model.name=own_code:Gathering"), "--allow-import"], "BatchNorm1d", "GroupNorm")


# --- where a run is put ---


def test_a_folder_that_holds_files_is_left_as_it_is(refused: Refused) -> None:
    Path("new").mkdir()
    Path("new/.thesis.txt").write_text("years of work")
    refused(settings("good.toml"), "new", "exists already", "--out")
    assert contents(Path("new")) == {".thesis.txt": hashlib.sha256(b"years of work").hexdigest()}


def test_a_file_in_place_of_the_run_folder_is_left_as_it_is(refused: Refused) -> None:
    Path("new").write_text("years of work")
    refused(settings("good.toml"), "new", "exists already", "--out")
    assert Path("new").read_text() == "years of work"


def test_a_folder_that_cannot_be_made_is_refused(refused: Refused) -> None:
    Path("file").write_text("years of work")
    refused(["train", "good.toml", "--out", "file/run"], "file/run", "cannot be written", "--out")
    assert Path("file").read_text() == "years of work"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux")
def test_a_folder_that_the_system_refuses_is_refused(refused: Refused) -> None:
    refused(["train", "good.toml", "--out", "/proc/self/run"], "/proc/self/run", "cannot be written", "--out")


def test_a_file_named_runs_is_left_as_it_is(refused: Refused) -> None:
    Path("runs").write_text("years of work")
    refused(["train", "good.toml"], "runs/good-1", "cannot be written", "--out")
    assert Path("runs").read_text() == "years of work"


def test_a_finished_run_is_not_trained_over(refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, settings("good.toml"))
    before = contents(Path("new"))
    refused(settings("good.toml"), "new", "exists already", "--out")
    assert contents(Path("new")) == before
    output(capsys, ["resume", "new"])
    assert contents(Path("new")) == before
