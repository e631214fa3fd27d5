"""A plan needs the settings alone: no data, no model, no tensors; with --measure it says what they cost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubbub import config as configs
from hubbub.build import build
from hubbub.cli.app import app
from hubbub.planned import planned

FLEETS = {
    "Poisson": {"privacy": {"mode": "dp-fedavg", "epsilon": 8.0}},
    "banded Toeplitz": {"privacy": {"mode": "dp-ftrl", "strategy": "banded-toeplitz", "bands": 100, "epsilon": 8.0}},
    "BLT": {"privacy": {"mode": "dp-ftrl", "strategy": "blt", "epsilon": 8.0}},
}


def written(folder: Path, *layers: configs.Layer) -> Path:
    path = folder / "run.toml"
    path.write_text(configs.dump(configs.resolve(*layers)))
    return path


@pytest.mark.parametrize("fleet", FLEETS.values(), ids=FLEETS)
def test_a_plan_of_a_hundred_thousand_clients_loads_no_tensors_and_no_data(fleet: configs.Layer, tmp_path: Path) -> None:
    run = written(
        tmp_path,
        {"training": {"rounds": 2000, "cohort_size": 1000}, "data": {"name": "mnist", "clients": 100_000, "path": "nowhere"}},
        fleet,
    )
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from hubbub.cli.app import app\n"
        f"answer = CliRunner().invoke(app, ['plan', {str(run)!r}, '--json'])\n"
        "assert answer.exit_code == 0, answer.output\n"
        "heavy = {'torch', 'scipy.stats', 'matplotlib', 'hubbub.datasets', 'hubbub.build'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "print(answer.output)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # our own
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["clients"] == 100_000
    assert 7.9 < told["epsilon"] <= 8.0
    assert told["parameters"] is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"privacy": {"mode": "dp-ftrl", "noise_multiplier": 1.0}},
        {"privacy": {"mode": "none"}},
        {"privacy": {"clipping": "adaptive", "noise_multiplier": 1.0}},
    ],
    ids=str,
)
def test_what_is_planned_without_data_is_what_is_run(changes: configs.Layer) -> None:
    config = configs.resolve({"privacy": {"noise_multiplier": 1.0}, "data": {"clients": 40}}, changes)
    assert planned(config, 40).promise().record() == build(config).plan.promise().record()


def test_measuring_adds_what_follows_from_the_model(tmp_path: Path) -> None:
    settings: configs.Layer = {"training": {"rounds": 4}, "privacy": {"noise_multiplier": 1.0, "clipping": "adaptive"}}
    run = written(tmp_path, settings)
    bare = json.loads(CliRunner().invoke(app, ["plan", str(run), "--json"]).stdout)
    whole = json.loads(CliRunner().invoke(app, ["plan", str(run), "--measure", "--json"]).stdout)
    parameters = sum(p.numel() for p in build(configs.resolve(settings)).model.parameters())
    assert whole["parameters"] == parameters
    # The count is one more number of each release.
    assert whole["releases_bytes"] == 8 * (parameters + 1) * 4
    assert whole["estimated_seconds"] > 0
    unmeasured = ("parameters", "noise_memory_bytes", "releases_bytes", "estimated_seconds")
    assert all(bare[key] is None for key in unmeasured)
    assert {key: whole[key] for key in bare} == bare | {key: whole[key] for key in unmeasured}
    assert "With --measure" in CliRunner().invoke(app, ["plan", str(run)]).output
    assert "parameters" in CliRunner().invoke(app, ["plan", str(run), "--measure"]).output


def test_where_the_data_say_who_the_clients_are_a_plan_loads_them(tmp_path: Path) -> None:
    run = written(tmp_path, {"privacy": {"noise_multiplier": 1.0}, "data": {"name": "digits", "partition": "user"}})
    answer = CliRunner().invoke(app, ["plan", str(run)])
    assert answer.exit_code != 0
    assert "user" in str(answer.exception or answer.output)
