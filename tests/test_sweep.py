"""The parts of a sweep that need no run: its grid, its cells, its record, its page, and what choosing costs."""

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hubbub import Mechanism, PoissonSampling, accounting
from hubbub.accounting import PoissonSampled
from hubbub.accounting.selection import selection_epsilon
from hubbub.cli import main, sweeping
from hubbub.errors import ConfigError, RunFolderError
from hubbub.experiment.config import Config, DataConfig, PrivacyConfig, TrainingConfig, absolute, load, overrides
from hubbub.experiment.planner import planned
from hubbub.experiment.sweep import grid as grids
from hubbub.experiment.sweep.grid import Cell, SweepRecord, begin, cells_of, grid_of, locked, read_record
from hubbub.experiment.sweep.results import Begun, CellSummary, Choice, PointSummary, SweepSummary, choice, page, write
from hubbub.mechanism.strategies import Identity
from hubbub.training.run_folder.record import read_run
from recorded_runs import promise_of, recorded
from refusals import refused

pytestmark = pytest.mark.usefixtures("workplace")

GRID = "privacy.clip_norm=0.1,0.5"
NOISE = "privacy.noise_multiplier=1,2"


def test_a_grid_over_the_budget_takes_the_place_of_a_noise_multiplier_and_each_cell_gets_its_own_noise() -> None:
    base = load("good.toml")
    assert base["privacy"]["noise_multiplier"]
    cells = cells_of(base, grid_of(["privacy.epsilon=1,8"]))
    noise = [planned(cell.config, 10).mechanism.noise_multiplier for cell in cells]
    for cell, multiplier in zip(cells, noise, strict=True):
        mechanism = Mechanism(Identity(2), PoissonSampling(0.2), multiplier)
        met = accounting.guarantee(mechanism, delta=1e-5).epsilon
        assert cell.config.privacy.epsilon * 0.99 < met <= cell.config.privacy.epsilon
        # Whoever publishes or extends it says so.
        (said,) = planned(cell.config, 10).not_covered
        assert "these settings are of a sweep of 2 runs over the same people" in said
    assert not planned(cells_of(base, grid_of(["privacy.epsilon=1"]))[0].config, 10).not_covered
    assert noise[0] > noise[1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--grid: is missing"),
        (["--grid", "privacy.clip_norm=0.1,,0.5"], "has an empty value"),
        (["--grid", "privacy.clip_norm=0.1,0.10"], "has 0.1 twice"),
        (["--grid", "training.seed=1,2", "--seeds", "3"], "training.seed: is given twice; name it once"),
        (["--grid", "privacy.clip_norm=0.1,-1"], "the cell privacy.clip_norm = -1: privacy.clip_norm = -1.0: must be above 0"),
        (["--grid", "privacy.stop_epsilon=99,1e-9"], "the cell privacy.stop_epsilon = 1e-09: "),
        (["--grid", "privacy.epsilon=1,2", "--grid", NOISE], "give one; the other follows from it"),
        (["--grid", NOISE, "--set", "privacy.epsilon=1"], "1 of --set is replaced by privacy.noise_multiplier = [1, 2]; leave"),
        (["--grid", GRID, "--set", 'heads.command=["cat"]'], "heads.command = ['cat']: names a program; pass --allow-import"),
        (["--grid", "model.name=own_code:Net,mlp"], "own_code:Net': names code of your own; pass --allow-import"),
        (["--grid", GRID, "--set", "training.nproc=2"], "training.nproc = 2: each run of a sweep has one process; say --jobs"),
        (
            ["--grid", GRID, "--set", "training.extends=one", "--set", 'privacy.earlier_runs=["one"]'],
            "/one': the privacy cost of each cell would have to count all others",
        ),
        (["--grid", f"training.seed={','.join(map(str, range(10_001)))}"], "makes 10,001 runs, at most 10,000 are allowed"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_a_sweep_with_a_fault_in_it_is_refused_before_the_first_cell(flags: list[str], words: str) -> None:
    refused(["sweep", "good.toml", "-o", "out", *flags], words)
    assert not Path("out").exists()


def test_two_cells_that_are_one_run_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"learning_rate = 1 and .* are the same run"):
        cells_of({}, {"training.learning_rate": [1, 1.0]})


def test_a_folder_of_another_sweep_is_refused_and_the_same_one_is_known_wherever_it_is_asked_for(tmp_path: Path) -> None:
    base, grid = overrides(["training.rounds=2"]), grid_of([GRID])
    begin(tmp_path / "s", SweepRecord("a.toml", base, grid, "/"))
    begin(tmp_path / "s", SweepRecord("moved.toml", base, grid, "/"))
    assert read_record(tmp_path / "s").grid == grid
    with pytest.raises(RunFolderError, match=r"holds another sweep, of a\.toml; choose another folder with -o"):
        begin(tmp_path / "s", SweepRecord("a.toml", base, grid_of([GRID, NOISE]), "/"))
    with pytest.raises(RunFolderError, match="holds another sweep"):
        begin(tmp_path / "s", SweepRecord("a.toml", overrides(["training.rounds=3"]), grid, "/"))


@pytest.mark.parametrize(
    "change",
    [
        lambda told: {**told, "schema": 2},
        lambda told: {**told, "grid": [["privacy.clip_norm", [0.1, 0.6]]]},
        lambda told: {key: value for key, value in told.items() if key != "digest"},
        lambda told: {**told, "allow_import": 1},
        lambda told: {**told, "grid": "all"},
        lambda _: [],
    ],
)
def test_a_record_that_was_changed_is_not_believed(tmp_path: Path, change: Any) -> None:
    begin(tmp_path / "s", SweepRecord("a.toml", overrides(["training.rounds=2"]), grid_of([GRID]), "/"))
    file = tmp_path / "s" / "sweep.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(RunFolderError, match="is no record of a sweep"):
        read_record(tmp_path / "s")


def test_a_folder_goes_on_by_its_own_record_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "finish_all", lambda *_, allow_import: pytest.fail(f"allowed: {allow_import}"))
    for name in ("s", "t"):
        begin(Path(name), SweepRecord("a.toml", {"training": {"rounds": 2}}, grid_of([GRID]), "/", allow_import=name == "s"))
        with pytest.raises(pytest.fail.Exception, match="allowed: True"):
            main(["sweep", name, "--allow-import"])
    refused(["sweep", "s", "--grid", NOISE], "--grid: the sweep in s is described by its own sweep.json; leave it out")
    refused(["sweep", "s", "--set", "training.rounds=3"], "--set: the sweep in s")
    refused(["sweep", "s"], "s: its settings name code of your own; pass --allow-import")


def test_sweep_files_have_full_names_and_one_owner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("good.toml").write_text(Path("good.toml").read_text() + 'evaluation.statistics = ["loss"]\n')
    monkeypatch.setattr(sweeping, "_finished", lambda *_: pytest.fail("it went on"))
    grid = ["--grid", "data.path=a,b", "--set", "privacy.matrix=c.npy", "--set", 'privacy.earlier_runs=["old"]']
    grid += ["--grid", "privacy.epsilon=1", "--set", 'heads.command=["./keep", "x"]', "--set", "evaluation.every=1"]
    monkeypatch.setattr(grids, "require_runnable", lambda *_, **__: None)
    with pytest.raises(pytest.fail.Exception, match="it went on"):
        main(["sweep", "good.toml", "-o", "s", *grid])
    one, two = (cell.config for cell in read_record(Path("s")).cells())
    here = Path.cwd()
    assert (one.data.path, two.data.path) == (str(here / "a"), str(here / "b"))
    assert one.privacy.matrix == str(here / "c.npy")
    named = absolute(Config(data=DataConfig(path="private", normalization="private")), here).data
    assert (named.path, named.normalization) == (str(here / "private"), "private")
    assert (one.privacy.earlier_runs, one.heads.command) == ((str(here / "old"),), (str(here / "keep"), "x"))
    assert "privacy.noise_multiplier = 1.0 of good.toml is replaced by privacy.epsilon = [1]" in capsys.readouterr().out
    with locked(Path("s")):
        refused(["sweep", "good.toml", "-o", "s", *grid], "s: another process is working on this sweep; wait for it")


def test_the_command_that_resumes_a_sweep_can_be_pasted() -> None:
    asked = sweeping.Asked((), None, (), None, 2, True, False)
    assert sweeping._again(Path("my runs/a"), asked) == "hubbub sweep 'my runs/a' --jobs 2 --allow-import"


def point(settings: dict[str, Any], accuracies: list[float | None], epsilon: float | None) -> PointSummary:
    """A finished point; of a run without accuracy, a waiting one."""
    cells = []
    for seed, accuracy in enumerate(accuracies):
        scores = {} if accuracy is None else {"accuracy": accuracy, "loss": 1 - accuracy, "train_accuracy": accuracy + 0.01}
        state, cost = "finished" if scores else "waiting", {"rounds": 2, "epsilon": epsilon, "delta": 1e-5}
        cells.append(CellSummary(f"{settings} {seed}", {**settings, "training.seed": seed}, state, **cost, **scores))
    return PointSummary(tuple(cells))


def test_the_best_is_the_mean_over_seeds_of_finished_points_at_the_least_epsilon() -> None:
    low, lucky = point({"a": 0}, [0.5, 0.7], 1.0), point({"a": 1}, [0.99, 0.1], 2.0)
    dearer, high = point({"a": 2}, [0.8, 0.8], 5.0), point({"a": 3}, [0.8, 0.8], 4.0)
    unfinished = point({"a": 4}, [1.0, None], 0.5)
    told = replace(sweep({"a": (0, 1)}), points=(low, lucky, dearer, high, unfinished))
    assert told.best is high
    # √(((0.5 − 0.6)² + (0.7 − 0.6)²)/1)
    assert low.spread("accuracy") == pytest.approx((0.6, math.sqrt(0.02)))
    unlike = point({"a": 5}, [0.5, 0.5], 1.0)
    assert replace(unlike, cells=(unlike.cells[0], replace(unlike.cells[1], epsilon=3.0))).epsilon == 3.0
    failed = replace(unlike.cells[0], state="failed", epsilon=None, delta=None)
    zeroed = replace(unlike.cells[1], neighboring_relation="zero-out")
    assert PointSummary((failed, zeroed)).promised == "1 at delta 1e-05, zero-out"
    assert point({"a": 6}, [None], 1.0).promised == "–"
    assert unfinished.state == "1 finished, 1 waiting"
    assert replace(told, points=(unfinished,)).best is None


COIN = promise_of(Identity(5), PoissonSampling(0.2), 1.5)
FEWER = promise_of(Identity(5), PoissonSampling(0.2), 3.0)
ROUNDS = [["a"], ["b"], ["c"], ["a"], ["d"]]


def known(folder: Path, promise: Any, secret: int, config: Config | None = None, rounds: int = 5) -> Begun:
    cell = Cell(folder.name, {}, config or Config())
    return cell, read_run(recorded(folder, promise, ROUNDS[:rounds], secret))


def test_all_runs_together_are_composed_and_no_random_number_of_trials_is_claimed(tmp_path: Path) -> None:
    told = choice([known(tmp_path / "one", COIN, 1), known(tmp_path / "two", FEWER, 2)])
    one, two = [(PoissonSampled(1.5, 0.2), 5)], [(PoissonSampled(3.0, 0.2), 5)]
    relation, delta = "add-or-remove-one", COIN.delta
    assert told.epsilon == pytest.approx(accounting.epsilon([*one, *two], delta, relation), rel=1e-12)
    assert told.epsilon > accounting.epsilon(one, delta, relation)
    for (words, epsilon), law in zip(told.trials, ("logarithmic", "geometric", "poisson"), strict=True):
        assert law in words.lower()
        assert epsilon == selection_epsilon([one, two], 2, delta, relation, law=law)
    assert any("the grid was fixed before the first run" in text for text in told.assumptions)
    assert any("no run of it was deleted, and no other run" in text for text in told.assumptions)
    assert any("the test examples are public" in text for text in told.assumptions)
    assert not told.warnings


def test_what_interrupted_runs_did_is_charged_too(tmp_path: Path) -> None:
    told = choice([known(tmp_path / "one", COIN, 1), known(tmp_path / "two", FEWER, 2, rounds=2)])
    events = [(PoissonSampled(1.5, 0.2), 5), (PoissonSampled(3.0, 0.2), 2)]
    assert told.epsilon == pytest.approx(accounting.epsilon(events, COIN.delta, "add-or-remove-one"), rel=1e-12)
    assert any("rounds that they still do add to it" in text for text in told.warnings)


def test_what_has_no_bound_has_none_stated(tmp_path: Path) -> None:
    bare = promise_of(Identity(5), PoissonSampling(0.2))
    one = known(tmp_path / "one", COIN, 1)
    without = choice([one, known(tmp_path / "two", replace(bare, mechanism=None), 2)])
    assert without.epsilon == math.inf
    assert not without.trials
    lost = choice([one, (Cell("two", {}, Config()), None)])
    assert lost.epsilon is None
    assert "the ledger of two cannot be read" in lost.sentence
    example = replace(COIN, privacy_unit="example")
    other = choice([one, known(tmp_path / "three", example, 3)])
    assert other.epsilon is None
    assert "costs of different units do not add up" in other.sentence
    assert choice([]).epsilon is None


def test_scores_of_clients_data_are_covered_by_no_epsilon(tmp_path: Path) -> None:
    held_out = Config(training=TrainingConfig(validation=0.2))
    told = choice([known(tmp_path / "one", COIN, 1, held_out), known(tmp_path / "two", FEWER, 2, held_out)])
    assert not told.trials
    assert "held-out clients' data" in told.no_trials
    assert any("no epsilon here covers them" in text for text in told.warnings)
    assert not any("are public" in text for text in told.assumptions)


ONE, TWO, ALIKE = TrainingConfig(seed=1), TrainingConfig(seed=2), DataConfig(seed=3)


@pytest.mark.parametrize(
    ("one", "other", "wander"),
    [
        (Config(training=ONE), Config(training=TWO), True),
        (Config(data=DataConfig(clients=10)), Config(data=DataConfig(clients=20)), True),
        (Config(training=TrainingConfig(rounds=1)), Config(training=TrainingConfig(rounds=2)), False),
        (Config(training=ONE, data=ALIKE), Config(training=TWO, data=ALIKE), False),
        *(
            (Config(training=ONE, **more), Config(training=TWO, **more), False)
            for more in ({"data": DataConfig(partition="user")}, {"privacy": PrivacyConfig(unit="example")})
        ),
    ],
)
def test_if_a_seed_deals_the_data_it_is_said_whose_the_sum_is(tmp_path: Path, one: Config, other: Config, wander: bool) -> None:
    told = choice([known(tmp_path / "one", COIN, 1, one), known(tmp_path / "two", FEWER, 2, other)])
    assert any("deal the data to clients anew" in text for text in told.warnings) == wander
    assert told.sentence.startswith("for people who are the same client in each run, ") == wander


def sweep(grid: dict[str, tuple[Any, ...]], seeds: int = 1, **more: Any) -> SweepSummary:
    """A finished sweep, of which one point has no privacy."""
    cells = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    points = []
    for number, settings in enumerate(cells):
        epsilon = math.inf if 0 < number == len(cells) - 1 else 1.0 + 7 * number
        accuracies = [0.2 + 0.6 * (number + seed / 3) / len(cells) for seed in range(seeds)]
        points.append(point(settings, accuracies, epsilon))
    told = Choice(len(cells), 77.7, 1e-5, "A sentence.", (("geometric number", 12.34567),), "", ("fixed",), ("beware <b>",))
    record = SweepRecord("run.toml", {}, grid, "/", version="1")
    usual: dict[str, Any] = {"choice": told, "held_out": False, "simulation": False}
    return SweepSummary("s", record, tuple(points), **{**usual, **more})


TWO: dict[str, tuple[Any, ...]] = {"privacy.clip_norm": (0.1, 0.5, 0.9), "privacy.noise_multiplier": (0.1, 0.4)}


@pytest.mark.parametrize("grid", [TWO, {"privacy.earlier_runs": (["a"], ["b"])}, {}], ids=["numbers", "lists", "seeds alone"])
def test_a_page_is_the_table_one_picture_and_what_choosing_costs(grid: dict[str, tuple[Any, ...]]) -> None:
    told = sweep(grid, seeds=2, simulation=True)
    text = page(told)
    assert text.count("<svg") == 1
    assert text.count("<tr>") == 1 + len(told.points)
    assert text.count("<td>best</td>") == 1
    assert not re.search(r'(?:src|href)="(?!cells/|data:|#)', text)
    assert all(words in text for words in ("beware &lt;b&gt;", "12.35", "A sentence.", "Simulation, not for release"))
    for cell in told.cells:
        assert f'href="{quote(cell.report)}"' in text


def test_the_numbers_are_there_for_programs_too(tmp_path: Path) -> None:
    told = sweep(TWO, seeds=2)
    write(tmp_path, told)
    read = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert [p["epsilon"] for p in read["points"]] == [1.0, 8.0, 15.0, 22.0, 29.0, None]
    assert read["points"][0]["accuracy"] == pytest.approx(0.2 + 0.6 / 36)
    assert [p["best"] for p in read["points"]] == [False] * 5 + [True]
    header, *rows = told.rows()
    assert len(read["cells"]) == len(rows) == 12
    assert header[-2:] == ["train_accuracy (private)", "error"]
    assert (tmp_path / "results.csv").read_text().splitlines()[-1].split(",")[header.index("epsilon")] == "inf"
    assert all(cell["private"] == ["train_accuracy"] for cell in read["cells"])
    held_out = sweep(TWO, held_out=True)
    assert {"accuracy (private)", "loss (private)", "train_accuracy (private)"} < set(held_out.rows()[0])
    assert all(cell["private"] == ["accuracy", "loss", "train_accuracy"] for cell in held_out.as_json()["cells"])
