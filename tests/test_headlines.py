"""The scripts of the headlines: they run, go on where they were, choose by held-out examples; the page has their tables."""

import importlib
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hubbub import Mechanism, guarantee
from hubbub.mechanism.participation import every_round
from hubbub.mechanism.strategies import Identity

ROOT = Path(__file__).parent.parent
HEADLINES = ROOT / "examples" / "headlines"
PAGE = ROOT / "docs" / "results.md"
ONE_EPSILON = ("--epsilons", "8")


@pytest.fixture(autouse=True)
def _beside_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HEADLINES))


class Script:
    """A script that is called as from a shell, with files of its own."""

    def __init__(
        self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *further: str
    ) -> None:
        self.module: ModuleType = importlib.import_module(name)
        self.results, self.picture = folder / "results.json", folder / "picture.png"
        self._monkeypatch, self._capsys, self._further = monkeypatch, capsys, further

    def __call__(self, *further: str) -> str:
        files = ("--results", str(self.results), "--picture", str(self.picture))
        self._monkeypatch.setattr(sys, "argv", ["script", *files, "--seeds", "1", *self._further, *further])
        self.module.main()
        return self._capsys.readouterr().out


def tables(text: str) -> list[list[list[str]]]:
    """The Markdown tables in a text: the cells of each, without the line under the header."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if not line.startswith("|"):
            found.append([])
        elif not line.startswith("|---"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
    return [table for table in found if table]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "further"),
    [
        ("mnist_central", ONE_EPSILON),
        ("federated_mnist", ()),
        ("cifar10", ONE_EPSILON),
        ("shakespeare", ONE_EPSILON),
        ("records", ()),
    ],
)
def test_a_script_prints_its_tables_and_computes_nothing_twice(
    name: str, further: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(name, tmp_path, monkeypatch, capsys, "--quick", *further)
    found = tables(script())
    shown = [table[0] for table in tables(PAGE.read_text())]
    assert found
    assert all(table[0] in shown for table in found)
    assert all(len(row) == len(table[0]) for table in found for row in table)
    accuracies = [cell for row in found[-1][1:] for cell in row if "%" in cell]
    assert len(accuracies) >= len(found[-1]) - 1
    assert script.picture.stat().st_size > 10_000

    def computed(*_: object) -> None:
        pytest.fail("a run that is in the file was computed again")

    monkeypatch.setattr(importlib.import_module("_runs"), "one_run", computed)
    assert tables(script()) == found


def test_settings_are_chosen_by_held_out_examples_alone(tmp_path: Path) -> None:
    runs = importlib.import_module("_runs")
    settings = {"privacy.unit": "example", "training.cohort_size": 1000, "privacy.epsilon": 8.0}
    tried = {rate: runs.choosing({**settings, "rate": rate}) for rate in (0.1, 0.2, 0.4)}
    assert all(run["training.validation"] == 0.1 and run["training.seed"] == 1000 for run in tried.values())
    # A tenth is held out, so that a batch of nine tenths is drawn with the same probability.
    assert {run["training.cohort_size"] for run in tried.values()} == {900}
    # By clients, nobody is held out as a whole.
    assert runs.choosing({"training.cohort_size": 33})["training.cohort_size"] == 33

    def record(run: object, accuracy: float) -> dict[str, object]:
        return {"settings": run, "accuracy": {"9": 0.99, "10": accuracy}}

    file = tmp_path / "results.json"
    # The test run of the rate that is worst on held-out examples is the best of all: nobody asks it.
    test = record({**settings, "rate": 0.1, "training.seed": 0}, 0.97)
    file.write_text(json.dumps([test, *(record(tried[rate], 0.9 - abs(rate - 0.2)) for rate in (0.1, 0.2, 0.4))]))
    rates = [{"rate": rate} for rate in (0.1, 0.2, 0.4)]
    assert runs.best(runs.Runs(file), settings, rates) == {"rate": 0.2}
    assert runs.best(runs.Runs(file), settings, [{"rate": 0.8}]) is None


@pytest.mark.parametrize(("clip_norm", "sigma"), [(0.1, 0.1), (0.9, 0.4)])
def test_the_epsilons_of_the_grid_are_those_of_the_accountant(clip_norm: float, sigma: float) -> None:
    one, six, per_tensor, ran = importlib.import_module("federated_mnist").epsilons(clip_norm, sigma)

    def accounted(rounds: int, noise_multiplier: float) -> float:
        return guarantee(Mechanism(Identity(rounds), every_round(rounds), noise_multiplier), 1e-3).epsilon

    assert one == pytest.approx(accounted(1, sigma), rel=1e-6)
    assert six == pytest.approx(accounted(6, sigma), rel=1e-6)
    assert per_tensor == pytest.approx(accounted(6, sigma / math.sqrt(8)), rel=1e-6)
    # Its noise was σ²C², and eight tensors of norm C have the norm C√8.
    assert ran == pytest.approx(accounted(6, sigma**2 * clip_norm / math.sqrt(8)), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "further"),
    [("mnist_central", ()), ("federated_mnist", ()), ("cifar10", ("--part", "noise")), ("records", ("--seeds", "5"))],
)
def test_the_page_shows_the_tables_of_the_recorded_runs(
    name: str, further: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "results.md"
    page.write_text(PAGE.read_text())
    monkeypatch.setattr(importlib.import_module("_runs"), "_PAGE", page)
    script = Script(name, tmp_path, monkeypatch, capsys, "--table", "--write", "--seeds", "3", *further)
    script.results = ROOT / "docs" / f"{name}.json"
    for table in tables(script()):
        assert table in tables(PAGE.read_text())
    assert page.read_text() == PAGE.read_text()
