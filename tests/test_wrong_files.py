"""Missing files, own code and folders that are taken are refused in one line, and nothing that was there changes.

Files that are damaged are tried in ``test_malformed.py``.
"""

import hashlib
from pathlib import Path

import pytest

import refusals
from refusals import Refused, contents, settings

# Fixtures are found by their names here.
workplace, refused = refusals.workplace, refusals.refused


OWN_NAMES = [("good.toml", "data.name"), ("good.toml", "model.name"), ("correlated.toml", "privacy.strategy")]


@pytest.mark.parametrize(("config", "setting"), OWN_NAMES, ids=[setting for _, setting in OWN_NAMES])
def test_own_code_is_not_run_without_permission(refused: Refused, config: str, setting: str) -> None:
    Path("own_forbidden.py").write_text("raise SystemExit('own code was run')\n")
    refused(settings(config, f"{setting}=own_forbidden:Thing"), "own_forbidden:Thing", "--allow-import")


@pytest.mark.parametrize(("config", "setting"), OWN_NAMES, ids=[setting for _, setting in OWN_NAMES])
@pytest.mark.parametrize("name", ["no_such_module:Thing", "own_code:Missing", "own_code:", ":Thing", "..own_code:Gathering"])
def test_own_code_that_does_not_exist_is_refused(refused: Refused, config: str, setting: str, name: str) -> None:
    Path("own_code.py").write_text("seven = 7\n")
    refused([*settings(config, f"{setting}={name}"), "--allow-import"], setting.rpartition(".")[2], f"'{name}'")


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
