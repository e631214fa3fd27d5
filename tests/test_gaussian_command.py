"""``hubbub gaussian``, the page on one release, and its table of epsilons, printed and true."""

import re
import runpy
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import mpmath
import pytest

from conftest import oracle
from hockey_stick import gaussian_delta
from hubbub.mechanism import gaussian
from recorded_runs import answer as ask
from recorded_runs import invoke

pytestmark = pytest.mark.usefixtures("workplace")

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "gaussian.md").read_text()
SCRIPT = ROOT / "examples" / "headlines" / "epsilon_table.py"
COMMAND = ["gaussian", "--epsilon", "2", "--delta", "1e-5", "--sensitivity", "1"]
CELLS = oracle("accounting")["seed_C_sigma_table_delta_1e-3"]["points"]


def test_the_table_shows_every_calibration_with_what_it_attains() -> None:
    text = invoke(*COMMAND)
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    rows = {name: lines[name] for name in gaussian.NAMES if name in lines}
    assert tuple(rows) == gaussian.NAMES
    for name, row in rows.items():
        answer = gaussian.computed(name, 2.0, 1e-5)
        # What is printed is rounded up, noise and delta alike.
        assert answer.noise_multiplier <= float(row[1]) <= answer.noise_multiplier * (1 + 1e-5)
        assert answer.attained_delta <= float(row[2]) <= answer.attained_delta * 1.01
        assert row[-1] == ("refused" if name in ("classical", "dwork2006") else "noise" if name == "analytic" else "holds")
    assert "'classical' is proved only for epsilon below 1" in text
    assert "attains delta 1.34e-07" in text


def test_the_json_says_the_same_and_names_its_sources() -> None:
    answer = ask(*COMMAND[:-1], "3")
    assert (answer["epsilon"], answer["delta"], answer["sensitivity"], answer["plot"]) == (2.0, 1e-5, 3.0, None)
    by_name = {row["name"]: row for row in answer["calibrations"]}
    assert tuple(by_name) == gaussian.NAMES
    for name, row in by_name.items():
        expected = gaussian.computed(name, 2.0, 1e-5, 3.0)
        assert row["noise_multiplier"] == expected.noise_multiplier
        assert row["attained_delta"] == expected.attained_delta
        assert row["holds"] is expected.holds
        assert (row["refused"] is None) is expected.proved
        assert "https://" in row["source"]
    least = by_name["analytic"]["noise_multiplier"]
    assert by_name["zhao2"]["relative_to_analytic"] == by_name["zhao2"]["noise_multiplier"] / least


@pytest.fixture(scope="module")
def table() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def test_the_table_of_the_page_is_what_the_script_prints(
    table: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    table.main()
    printed = capsys.readouterr().out
    assert re.findall(r"<!-- table: epsilon -->\n(.*?)<!-- end -->", PAGE, re.DOTALL) == [printed]
    assert len(printed.splitlines()) == 2 + 9 * 4


@pytest.mark.parametrize("point", CELLS, ids=lambda point: f"{point['C']}-{point['sigma']}" if isinstance(point, dict) else "")
def test_each_cell_of_the_table_is_the_reference(table: SimpleNamespace, point: dict) -> None:
    row = table.cell(point["C"], point["sigma"])
    for key, value in point.items():
        if key.startswith("seed_printed"):
            assert row["as printed"] == pytest.approx(value, rel=1e-12)
        elif key.startswith("classical"):
            assert row["as meant"] == pytest.approx(value, rel=1e-12)
        elif key[:2] in ("A:", "B:", "C:", "D:"):
            # The exact epsilon is above the reference, and by nothing that shows.
            assert float(value["analytic"]) * (1 - 1e-15) <= row[key[0]] <= float(value["analytic"]) * (1 + 1e-11)
    reference = point["A: noise std=sigma, sens=C -> z=sigma/C"]
    for name, column in (("zhao1", "zhao1"), ("zhao2", "zhao2"), ("extended", "phan_extended")):
        assert row[f"A, {name}"] == pytest.approx(float(reference[column]), rel=1e-11)


def test_the_table_marks_as_false_what_lies_below_the_truth(table: SimpleNamespace) -> None:
    lines = table.table().splitlines()[2:]
    for (_, _, row), line in zip(table.rows(), lines, strict=True):
        assert ("!" in line) == (row["as meant"] > 7.463)
        assert row["as printed"] < row["A"] < row["B"] < row["C"] < row["D"]


def test_what_ran_is_that_of_the_theorem_for_its_noise_and_its_eight_tensors(table: SimpleNamespace) -> None:
    # One cell from first principles: eight tensors clipped to C each, noise of standard deviation σ²C².
    epsilon = table.cell(0.5, 0.1)["D"]
    with mpmath.workdps(60):
        mu = mpmath.mpf(0.5) * mpmath.sqrt(8) / (mpmath.mpf(0.1) ** 2 * mpmath.mpf(0.5) ** 2)
        assert gaussian_delta(mu, epsilon * (1 - 1e-9)) > 1e-3 > gaussian_delta(mu, epsilon * (1 + 1e-9))


def test_the_command_of_the_page_runs_and_the_names_of_the_page_are_all(workplace: Path) -> None:
    (line,) = re.findall(r"^\$ hubbub (gaussian .*)$", PAGE, re.MULTILINE)
    invoke(*shlex.split(line))
    assert (workplace / "calibrations.png").exists()
    assert tuple(re.findall(r"^\| `(\w+)` \| .* \| .* \| .* \d{4}.* \|$", PAGE, re.MULTILINE)) == gaussian.NAMES
