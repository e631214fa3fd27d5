"""What commands say of their flags, how a mistake names the flag that was typed, and strict JSON for programs."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

import refusals
from hubbub.cli import main
from hubbub.cli.app import app
from recorded_runs import COIN, THREE, recorded
from refusals import ACCOUNT, CALIBRATE, Refused, output, settings

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


# For programs

STRICT = {
    "independent": "",
    "poisson": "--sampling-probability 0.1",
    "fixed size": "--cohort-size 2 --population 10",
    "truncated": "--sampling-probability 0.1 --max-cohort-size 3 --population 10",
    "cyclic": "--mechanism banded-toeplitz:bands=2 --sampling-probability 0.1 --cycle-length 2",
    "bins": "--bins 3",
    "toeplitz": "--mechanism banded-toeplitz:bands=2",
    "tree": "--mechanism tree",
    "cyclic, in parts": "--strategy banded-toeplitz --bands 2 --sampling-probability 0.1 --cycle-length 2",
}


def strict_json(text: str) -> Any:
    """One JSON value; NaN and Infinity, which JSON does not have, are refused."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("flags", STRICT.values(), ids=STRICT.keys())
@pytest.mark.parametrize("command", [ACCOUNT, CALIBRATE], ids=["account", "calibrate"])
def test_the_json_of_an_account_is_strict(capsys: pytest.CaptureFixture[str], command: list[str], flags: str) -> None:
    answer = strict_json(output(capsys, [*command, *flags.split(), "--json"]))
    assert answer["private"] is True
    assert answer["epsilon"] > 0
    assert answer["delta"] == 1e-5
    assert answer["rounds"] == 5


@pytest.mark.parametrize("flag", ["--mechanism", "--strategy"])
def test_a_refusal_leaves_the_output_for_programs_empty(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    with pytest.raises(SystemExit):
        main([*ACCOUNT, "--json", flag, "tre"])
    assert capsys.readouterr().out == ""


def test_a_run_without_privacy_has_no_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    planned = strict_json(output(capsys, ["plan", "good.toml", "--set", "privacy.mode=none", "--json"]))
    trained = strict_json(output(capsys, [*settings("good.toml", "privacy.mode=none"), "--json"]))
    for answer in (planned, trained):
        assert (answer["private"], answer["epsilon"]) == (False, None)
    rows = [strict_json(line) for line in Path("new/metrics.jsonl").read_text().splitlines()]
    assert [row["epsilon"] for row in rows] == [None, None]
