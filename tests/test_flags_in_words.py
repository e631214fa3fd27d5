"""What the flags of the commands say of themselves, and how a mistake names the flag that was typed."""

import re
from pathlib import Path

import pytest
import typer

import refusals
from hubbub.accounting.events_of_mechanism import default_relation
from hubbub.cli.app import app
from hubbub.mechanism.participation import FixedSizeSampling, MinSeparation, PoissonSampling
from recorded_runs import BAND, COIN, THREE, recorded
from refusals import Refused, output

# Fixtures are found by their names here.
workplace, refused = refusals.workplace, refusals.refused

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined] # a group
DESCRIBED = {
    "account": ["--rounds", "5", "--delta", "1e-5", "--noise-multiplier", "2"],
    "calibrate": ["--rounds", "5", "--delta", "1e-5", "--epsilon", "2"],
}


def helped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str) -> str:
    monkeypatch.setenv("COLUMNS", "400")
    return re.sub(r"\s+", " ", output(capsys, [command, "--help"]))


@pytest.mark.parametrize("command", ["account", "calibrate", "factorize", "compare"])
def test_the_help_says_both_defaults_of_participation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, workplace: Path, command: str
) -> None:
    text = helped(capsys, monkeypatch, command)
    said = text[text.index("Without flags on participation") :][:160]
    assert all(word in said for word in ("account", "calibrate") if command in ("factorize", "compare"))
    assert all(word in said for word in ("compare", "factorize") if command in DESCRIBED)
    assert "every round" in said
    assert re.search("(joins one round|one round of each client)", said)


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


@pytest.mark.parametrize("command", DESCRIBED)
def test_the_help_names_the_default_relation_of_each_kind_of_cohorts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, workplace: Path, command: str
) -> None:
    defaults = [default_relation(kind) for kind in (MinSeparation(2, 2), FixedSizeSampling(2, 9), PoissonSampling(0.1))]
    assert defaults == ["zero-out", "zero-out", "add-or-remove-one"]
    text = helped(capsys, monkeypatch, command)
    assert "zero-out (default for patterns and cohorts of fixed size)" in text
    assert "add-or-remove-one (default for other random cohorts)" in text


def test_one_letter_has_one_meaning_in_the_help_of_the_noise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, workplace: Path
) -> None:
    text = helped(capsys, monkeypatch, "account")
    assert "largest column norm of the matrix C" in text
    assert "σ/C" not in text


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_file_or_folder_to_write_is_named_by_out_or_output(name: str) -> None:
    options = [set(parameter.opts) for parameter in getattr(COMMANDS[name], "params", ())]
    assert all({"--out", "--output"} <= opts for opts in options if opts & {"--out", "--output"})


@pytest.mark.parametrize("flags", ["--bands 2", "--buffers 3"])
def test_compare_refuses_a_number_that_none_of_its_families_takes(refused: Refused, flags: str) -> None:
    flag, _, value = flags.partition(" ")
    words = ["compare", "--rounds", "8", "--families", "tree,identity", flag, value]
    refused(words, f"{flag} with --families tree,identity: none of them takes it", "tree")


def test_compare_takes_a_number_that_one_of_its_families_takes(capsys: pytest.CaptureFixture[str], workplace: Path) -> None:
    words = ["compare", "--rounds", "8", "--families", "tree,banded-toeplitz", "--min-separation", "2", "--bands", "2"]
    assert "banded-toeplitz" in output(capsys, words)


def test_what_is_over_the_best_is_said_in_one_unit(capsys: pytest.CaptureFixture[str], workplace: Path) -> None:
    text = output(capsys, ["compare", "--rounds", "400", "--families", "identity,blt,tree"])
    found = re.findall(r"\+([\d.,]+) %", text)
    assert any(float(one.replace(",", "")) > 100 for one in found)
    assert "×" not in text


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


def test_a_cohort_that_is_too_large_is_told_what_is_possible(refused: Refused) -> None:
    flags = ["--set", "training.cohort_size=400"]
    refused(["plan", "good.toml", *flags], "training.cohort_size = 400: there are", "ask for at most as many")


def test_the_table_of_a_ledger_counts_incarnations(capsys: pytest.CaptureFixture[str], workplace: Path) -> None:
    header = output(capsys, ["ledger", str(recorded(workplace / "run", BAND, THREE))]).splitlines()[0]
    assert header.split()[:3] == ["round", "state", "incarnation"]


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
