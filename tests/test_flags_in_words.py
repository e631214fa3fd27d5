"""What the flags of the commands say of themselves, and how a mistake names the flag that was typed."""

from pathlib import Path

import pytest
import typer

import refusals
from hubbub.cli.app import app
from recorded_runs import COIN, THREE, recorded
from refusals import Refused, output

# Fixtures are found by their names here.
workplace, refused = refusals.workplace, refusals.refused

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined] # a group
DESCRIBED = {
    "account": ["--rounds", "5", "--delta", "1e-5", "--noise-multiplier", "2"],
    "calibrate": ["--rounds", "5", "--delta", "1e-5", "--epsilon", "2"],
}


@pytest.mark.parametrize("command", DESCRIBED)
def test_the_first_line_says_which_participation_is_meant(
    capsys: pytest.CaptureFixture[str], workplace: Path, command: str
) -> None:
    words = [command, *DESCRIBED[command]]
    assert output(capsys, words).startswith("Participation: any client in any round, since no flag names another\n")
    first = output(capsys, [*words, "--min-separation", "2"]).splitlines()[0]
    assert first == "Participation: each client in at most 3 rounds at least 2 apart"
    first = output(capsys, [*words, "--sampling-probability", "0.1"]).splitlines()[0]
    assert first == "Participation: each client in a round with probability 0.1"
    run = recorded(workplace / "run", COIN, THREE)
    more = ["--epsilon", "2", "--delta", "1e-5"] if command == "calibrate" else []
    first = output(capsys, [command, "--mechanism", str(run), *more]).splitlines()[0]
    assert first == "Participation: each client in a round with probability 0.2"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_file_or_folder_to_write_is_named_by_out_or_output(name: str) -> None:
    options = [set(parameter.opts) for parameter in getattr(COMMANDS[name], "params", ())]
    assert all({"--out", "--output"} <= opts for opts in options if opts & {"--out", "--output"})


@pytest.mark.parametrize("flags", ["--bands 2", "--buffers 3"])
def test_compare_refuses_a_number_that_none_of_its_families_takes(refused: Refused, flags: str) -> None:
    flag, _, value = flags.partition(" ")
    words = ["compare", "--rounds", "8", "--families", "tree,identity", flag, value]
    refused(words, f"{flag} with --families tree,identity: none of them takes it", "tree")


@pytest.mark.parametrize(
    "words",
    [
        ["account", "--rounds", "5", "--delta", "1e-5", "--noise-multiplier", "1", "--mechanism", "nofile.npy"],
        ["account", "--rounds", "5", "--delta", "1e-5", "--noise-multiplier", "1", "--matrix=nofile.npy"],
        ["factorize", "file", "--matrix", "nofile.npy"],
        ["compare", "--rounds", "8", "--families", "tree", "--learning-rates", "nofile.npy"],
    ],
    ids=["mechanism", "matrix", "factorize", "rates"],
)
def test_a_file_that_cannot_be_read_is_named_with_its_flag(refused: Refused, words: list[str]) -> None:
    flag = words[-1].partition("=")[0] if "=" in words[-1] else words[-2]
    refused(words, f"{flag} nofile.npy: ", "No such file")


def test_alternatives_are_left_out_by_either_spelling(capsys: pytest.CaptureFixture[str], workplace: Path) -> None:
    assert "Alternatives" in output(capsys, ["plan", "good.toml"])
    for flag in ("--no-alternatives", "--no-neighbours"):
        assert "Alternatives" not in output(capsys, ["plan", "good.toml", flag])
    assert "neighbours" not in output(capsys, ["plan", "--help"])


@pytest.mark.parametrize("command", ["verify", "ledger", "account", "resume", "close", "cite"])
def test_a_folder_that_is_no_run_is_named_with_its_argument(refused: Refused, command: str) -> None:
    refused([command, "nosuch/"], "RUN nosuch: is no run")


def test_a_number_beyond_its_range_is_named_by_its_flag(refused: Refused) -> None:
    refused(["compare", "--rounds", "1000000000"], "--rounds = 1000000000: must be at most 10000000")
    # What was not typed as a flag keeps its name.
    refused(["plan", "good.toml", "--set", "training.rounds=1000000000"], "hubbub: training.rounds = 1000000000: must be")
