"""What commands print with --json is strict JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

import refusals
from hubbub.cli import main
from refusals import ACCOUNT, CALIBRATE, output, settings

# Found by its name here.
workplace = refusals.workplace

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
