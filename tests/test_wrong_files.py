"""Missing files, own code and folders that are taken are refused in one line, and nothing that was there changes.

Files that are damaged are tried in ``test_malformed.py``.
"""

import hashlib
from pathlib import Path

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
        (b"#" * 2_000_000, ["bad.toml", "2,000,000 bytes", "at most"]),
        (b"rounds = 3\n" + GOOD.encode(), ["bad.toml", "rounds", "section"]),
    ],
    ids=["empty", "huge", "no section"],
)
def test_a_config_that_is_none_is_refused(refused: Refused, content: bytes, words: list[str]) -> None:
    Path("bad.toml").write_bytes(content)
    refused(settings("bad.toml"), *words)
    assert not Path("new").exists()


@pytest.mark.parametrize("command", ["train", "plan"])
@pytest.mark.parametrize("path", ["nowhere.toml", "good.toml/inside"])
def test_a_missing_config_is_refused_by_its_name(refused: Refused, command: str, path: str) -> None:
    refused([command, path], path, "is missing")


@pytest.mark.parametrize("command", ["train", "plan"])
def test_a_folder_in_place_of_a_config_is_refused(refused: Refused, command: str, workplace: Path) -> None:
    refused([command, str(workplace)], str(workplace), "is no regular file", "hubbub resume")


def test_a_config_with_a_name_too_long_for_any_file_is_refused(refused: Refused) -> None:
    refused(["train", "x" * 5000], "xxx", "too long")


# --- data ---


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


@pytest.mark.parametrize(
    ("taken", "line", "words"),
    [
        ("new", settings("good.toml"), ["new", "exists already"]),
        ("file", ["train", "good.toml", "--out", "file/run"], ["file/run", "cannot be written"]),
        ("runs", ["train", "good.toml"], ["runs/good-1", "cannot be written"]),
        ("none", ["train", "good.toml", "--out", "/proc/self/run"], ["/proc/self/run", "cannot be written"]),
    ],
    ids=["the folder", "its parent", "the folder of runs", "the system's"],
)
def test_a_file_in_the_place_of_a_folder_is_left_as_it_is(
    refused: Refused, taken: str, line: list[str], words: list[str]
) -> None:
    Path(taken).write_text("years of work")
    refused(line, *words, "--out")
    assert Path(taken).read_text() == "years of work"


def test_a_finished_run_is_not_trained_over(refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, settings("good.toml"))
    before = contents(Path("new"))
    refused(settings("good.toml"), "new", "exists already", "--out")
    assert contents(Path("new")) == before
    output(capsys, ["resume", "new"])
    assert contents(Path("new")) == before
