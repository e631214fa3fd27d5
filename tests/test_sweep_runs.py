"""A sweep at work: ordinary runs in processes of their own, which go on where they stopped, whatever stopped them."""

import csv
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hubbub import accounting
from hubbub.accounting import PoissonSampled
from hubbub.experiment.config import load, overrides, resolve
from hubbub.experiment.sweep import work
from hubbub.experiment.sweep.work import finish, finish_all
from hubbub.ledger.chain import read_chain
from hubbub.training.run_folder.record import Metrics, read_metrics
from reaper import alive
from recorded_runs import answer, hubbub

pytestmark = pytest.mark.slow

CONFIG = """
training = { rounds = 3, cohort_size = 4, learning_rate = 0.3, plan = "one-by-one", fairness = true }
privacy = { noise_multiplier = 1.0, noise = "simulation" }
data = { name = "digits", clients = 20 }
"""
FLAGS = ("--grid", "privacy.noise_multiplier=0.5,2", "--seeds", "1,2")
FIRST, SECOND, LAST = "1-noise_multiplier=0.5,seed=1", "2-noise_multiplier=0.5,seed=2", "4-noise_multiplier=2,seed=2"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config, and a sweep of four finished runs by two processes."""
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / "run.toml").write_text(CONFIG)
    assert hubbub("sweep", folder / "run.toml", *FLAGS, "--jobs", 2, "-o", folder / "whole") == 0
    return folder


@pytest.fixture(autouse=True)
def _ctrl_c_as_it_was() -> Any:
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(), parse_constant=pytest.fail)


def by_name(folder: Path) -> dict[str, Any]:
    return {cell["name"]: cell for cell in results(folder)["cells"]}


def copied(place: Path, to: Path) -> Path:
    shutil.copytree(place / "whole", to)
    return to


def test_each_cell_is_an_ordinary_run(place: Path, tmp_path: Path) -> None:
    cells = by_name(place / "whole")
    assert sorted(cells) == sorted(folder.name for folder in (place / "whole" / "cells").iterdir())
    assert len(cells) == 4
    for name, cell in cells.items():
        folder = place / "whole" / "cells" / name
        assert cell["state"] == "finished"
        assert cell["accuracy"] == read_metrics(folder / "metrics.jsonl")[0][-1]["accuracy"]
        assert (place / "whole" / cell["report"]).is_file()
        assert (folder / "private-fairness.json").is_file()
    last = place / "whole" / "cells" / LAST
    assert hubbub("verify", last) == 0
    # As it would have been by hand, to the last bit: noise and cohorts of a simulation follow from the seed.
    flags = ("privacy.noise_multiplier=2", "training.seed=2")
    by_hand = tmp_path / "by_hand"
    assert hubbub("train", place / "run.toml", "--out", by_hand, *(part for flag in flags for part in ("--set", flag))) == 0
    assert (by_hand / "state/releases/2.safetensors").read_bytes() == (last / "state/releases/2.safetensors").read_bytes()
    told = answer("evaluate", last)
    assert (cells[LAST]["accuracy"], cells[LAST]["loss"]) == (told["accuracy"], told["loss"])


def test_the_results_are_means_over_seeds_and_state_what_all_runs_cost(place: Path) -> None:
    found = results(place / "whole")
    cells = by_name(place / "whole")
    assert [point["settings"] for point in found["points"]] == [{"privacy.noise_multiplier": noise} for noise in (0.5, 2)]
    two = [cells[name]["accuracy"] for name in (FIRST, SECOND)]
    assert found["points"][0]["accuracy"] == pytest.approx(sum(two) / 2)
    one = {noise: [(PoissonSampled(noise, 0.2), 3)] for noise in (0.5, 2.0)}
    relation, delta = "add-or-remove-one", 1e-5
    for cell in cells.values():
        alone = accounting.epsilon(one[float(cell["settings"]["privacy.noise_multiplier"])], delta, relation)
        assert cell["epsilon"] == pytest.approx(alone, rel=1e-12)
    everything = [*(2 * one[0.5]), *(2 * one[2.0])]
    assert found["choice"]["epsilon"] == pytest.approx(accounting.epsilon(everything, delta, relation), rel=1e-9)
    assert found["simulation"] is True
    with (place / "whole" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == [cell["accuracy"] for cell in cells.values()]
    assert "Simulation, not for release" in (place / "whole" / "sweep.html").read_text()


def test_a_sweep_goes_on_with_what_is_missing_and_one_failure_stops_nothing_else(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(place, tmp_path / "sweep")
    first, second = folder / "cells" / FIRST, folder / "cells" / SECOND
    shutil.rmtree(first)
    shutil.rmtree(second)
    first.write_text("in the way")

    begun = Metrics.add

    def stopped(self: Metrics, row: dict[str, Any], now: float) -> None:
        begun(self, row, now)
        raise KeyboardInterrupt

    config = resolve(load(place / "run.toml"), overrides(["privacy.noise_multiplier=0.5", "training.seed=2"]))
    with monkeypatch.context() as patch:
        patch.setattr(Metrics, "add", stopped)
        with pytest.raises(KeyboardInterrupt):
            finish(second, config)
    assert not (second / "private-scores.json").exists()
    capsys.readouterr()
    assert hubbub("sweep", folder) == 1
    printed = capsys.readouterr().out
    assert "Sweep of 4 runs, 2 of them finished: 2 to do" in printed
    assert f"hubbub sweep {folder}" in printed
    cells = by_name(folder)
    assert cells[FIRST]["state"] == "failed"
    assert str(first) in cells[FIRST]["error"]
    assert cells[FIRST]["error"] in (folder / "sweep.html").read_text().replace("&#39;", "'")
    # It went on where it stood: three rounds, two starts.
    kinds = [record["kind"] for record in read_chain(second / "ledger.jsonl").records[1:]]
    assert (kinds.count("begin"), kinds.count("epoch")) == (3, 2)
    # And where it would have come to: noise and cohorts of a simulation follow from the seed.
    assert cells[SECOND] == by_name(place / "whole")[SECOND]


def test_a_damaged_cell_is_shown_and_nothing_said_of_all(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied(place, tmp_path / "sweep")
    ledger = folder / "cells" / FIRST / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"round":1', '"round":2'))
    monkeypatch.setattr(work, "ProcessPoolExecutor", lambda *_: pytest.fail("a process was started"))
    assert hubbub("sweep", folder) == 1
    found = results(folder)
    assert by_name(folder)[FIRST]["state"] == "failed"
    assert str(ledger) in by_name(folder)[FIRST]["error"]
    assert found["choice"]["epsilon"] is None
    assert f"the ledger of {FIRST} cannot be read" in found["choice"]["sentence"]
    assert not any(point["best"] for point in found["points"][:1])


def test_a_process_that_is_killed_fails_its_cell_alone_and_an_interruption_ends_all_processes(tmp_path: Path) -> None:
    settings = tomllib.loads(CONFIG)
    # More rounds than are done before the kill, however slow the one that kills.
    endless = resolve(settings, overrides(["training.rounds=100000", "training.keep_releases=false"]))
    killed, last, good = (tmp_path / name for name in ("killed", "last", "good"))
    cells = {killed: endless, last: endless, good: resolve(settings)}

    def kill() -> None:
        while not (killed / "metrics.jsonl").exists():
            time.sleep(0.1)
        (process,) = multiprocessing.active_children()
        os.kill(process.pid or 0, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    outcomes = dict(finish_all({folder: cells[folder] for folder in (killed, good)}, 1))
    killer.join()
    assert outcomes[killed] == "its process was killed, perhaps for lack of memory"
    assert outcomes[good] == json.loads((good / "private-scores.json").read_text())["accuracy"]
    with closing(finish_all({folder: cells[folder] for folder in (last, good)}, 2)) as ends:
        assert next(ends) == (good, outcomes[good])
        assert multiprocessing.active_children()
    assert multiprocessing.active_children() == []
    assert not (last / "private-scores.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_processes_of_a_sweep_end_with_it(how: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    grid = "training.rounds=100000,100001"
    command = [sys.executable, "-m", "hubbub", "sweep", "run.toml", "--grid", grid, "-o", "sweep", "--jobs", "2"]
    sweep = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(list(tmp_path.glob("sweep/cells/*/metrics.jsonl"))) < 2:
        time.sleep(0.1)
    started = Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children").read_text().split()
    sweep.send_signal(how)
    assert sweep.wait(60) != 0
    deadline = time.monotonic() + 60
    while any(alive(int(pid)) for pid in started):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.1)
