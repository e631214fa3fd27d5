"""A run by Flower is the run in process: the same releases, the same record, and no client can stop or outweigh it."""

import itertools
import logging
import math
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from hubbub._util.prf import seed_key
from hubbub.errors import ConfigError, ParticipationError, RunFolderError
from hubbub.experiment import config
from hubbub.experiment.build import build
from hubbub.experiment.engine import apps, flower_app
from hubbub.experiment.engine.flower_app import client_app, serve
from hubbub.experiment.engine.folder import RunInFolder
from hubbub.flower.local_grid import LocalGrid
from hubbub.flower.population import GridPopulation, load, trained
from hubbub.ledger.chain import read_chain
from hubbub.training import SimulatedPopulation, release
from hubbub.training import rounds as loop
from hubbub.training.run_folder import store
from hubbub.training.run_folder.record import read_metrics
from recorded_runs import model_of, require_ends
from small_runs import CLIENTS, linear, population

EXAMPLE = Path(__file__).parent.parent / "examples" / "flower_quickstart"
RUN = """
training = {{ rounds = 3, cohort_size = 6, momentum = 0.5, seed = 3 }}
privacy = {{ noise_multiplier = 1.0, delta = 1e-3, noise = "{noise}" }}
data.clients = 100
"""


def run_file(folder: Path, noise: str = "simulation") -> Path:
    path = folder / "run.toml"
    path.write_text(RUN.format(noise=noise))
    return path


def test_a_simulation_on_flower_releases_bit_for_bit_what_it_releases_in_process(tmp_path: Path) -> None:
    file = run_file(tmp_path)
    require_ends("train", file, "--out", tmp_path / "process")
    require_ends("train", file, "--out", tmp_path / "flower", "--engine", "flower")
    assert model_of(tmp_path / "process") == model_of(tmp_path / "flower")
    # Cohorts, sums and releases are in the chain of hashes, too.
    heads = {read_chain(tmp_path / name / "ledger.jsonl").head_of_rounds for name in ("process", "flower")}
    assert len(heads) == 1
    rows = [read_metrics(tmp_path / name / "metrics.jsonl")[0] for name in ("process", "flower")]
    for ours, theirs in zip(*rows, strict=True):
        kept = ours.keys() - {"seconds", "clients_per_second", "phases"}
        assert {key: ours[key] for key in kept} == {key: theirs[key] for key in kept}


@pytest.mark.slow
def test_a_secure_run_on_flower_releases_the_same_under_the_same_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = run_file(tmp_path, "secure")
    for engine in ("process", "flower"):
        numbers = itertools.count(1)
        for module in (release, store):
            monkeypatch.setattr(module, "fresh_key", lambda numbers=numbers: next(numbers).to_bytes(32, "big"))
        # Nodes, and a population in this process, shuffle under a secret key of their own.
        for module in (loop, flower_app):
            monkeypatch.setattr(module, "fresh_key", lambda: seed_key(3))
        require_ends("train", file, "--out", tmp_path / engine, "--set", f"training.engine={engine}")
        require_ends("verify", tmp_path / engine)
    releases = [sorted((tmp_path / name / "state" / "releases").iterdir()) for name in ("process", "flower")]
    assert len(releases[0]) == 3
    assert [path.read_bytes() for path in releases[0]] == [path.read_bytes() for path in releases[1]]
    assert model_of(tmp_path / "process") == model_of(tmp_path / "flower")
    assert not any((tmp_path / "flower" / "app").rglob("*key*"))


def test_rng_6_nodes_of_a_release_shuffle_under_a_secret_key() -> None:
    """Without one client those after it are others' partitions: by a known seed their updates would be others, too."""

    def total(noise: str) -> torch.Tensor:
        flower_app._client_side.cache_clear()
        side = flower_app._client_side(RUN.format(noise=noise).encode(), allow_import=False)
        return side.population.collect([0, 1], side.model, 0.25, 0).open(None)

    for noise, kept in (("simulation", True), ("secure", False)):
        assert torch.equal(total(noise), total(noise)) == kept


def test_a_resumed_run_keeps_its_engine_and_runs_no_code_that_lay_in_its_folder(tmp_path: Path) -> None:
    settings = config.resolve(config.load(run_file(tmp_path)), {"training": {"engine": "flower"}})
    begun = RunInFolder.begun(build(settings), tmp_path / "run")
    planted = begun.folder / "app" / apps.RUN_APP / "client_app.py"
    planted.parent.mkdir(parents=True)
    planted.write_text("raise SystemExit('planted')")
    require_ends("resume", begun.folder)
    assert "planted" not in planted.read_text()
    assert begun.rounds_measured == 3


def honest_grid(population_of: SimulatedPopulation) -> LocalGrid:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = linear()
        load(model, message.content["arrays"])
        told = message.content["config"]
        vector, loss = population_of.train_client(int(context.node_config["partition-id"]), model, told["round-index"])
        assert told["server-round"] == told["round-index"] + 1
        assert told["dpfedavg_clip_norm"] == 0.25
        return Message(trained(model, vector, loss), reply_to=message)

    return LocalGrid(app, num_nodes=CLIENTS)


def test_num_9_num_11_an_empty_cohort_and_one_that_never_answers_have_a_sum_of_zero() -> None:
    grid = honest_grid(population())
    clients = GridPopulation(grid, grid.get_node_ids())
    grid.offline(grid.get_node_ids())
    for cohort in ([], [0, 1, 2]):
        total = clients.collect(cohort, linear(), 0.25, 0)
        assert float(total.open(None).abs().max()) == 0
        assert math.isnan(total.statistics["train_loss"])


def test_a_grid_sums_what_the_process_sums() -> None:
    grid, model = honest_grid(population()), linear()
    for lattice in (True, False):
        clients = GridPopulation(grid, grid.get_node_ids(), lattice=lattice)
        ours = population(lattice=lattice)
        for round_index in range(2):
            there = clients.collect([5, 0, 7, 3], model, 0.25, round_index)
            here = ours.collect([5, 0, 7, 3], model, 0.25, round_index)
            # Steps add up to the same in any order; numbers in floating point nearly do.
            torch.testing.assert_close(there.total, here.total, rtol=0, atol=0 if lattice else 1e-14)
            assert there.statistics == here.statistics


def test_a_grid_population_without_sense_is_refused() -> None:
    grid = LocalGrid(ClientApp(), num_nodes=2)
    with pytest.raises(ConfigError, match="the list is empty"):
        GridPopulation(grid, [])
    with pytest.raises(ConfigError, match="the same node"):
        GridPopulation(grid, {"a": 1001, "b": 1001})
    with pytest.raises(ConfigError, match="the same name"):
        GridPopulation(grid, {"1": 1001, 1: 1002})
    with pytest.raises(ConfigError, match=r"'weight' is of bfloat16.*use float32"):
        GridPopulation(grid, [1001]).collect([0], nn.Linear(3, 2, dtype=torch.bfloat16), 0.25, 0)


SETTINGS = {"round-timeout": 60.0, "wait-for-nodes": 0.0, "keys-enforced": False, "allow-import": False}


def deployed(folder: Path | str, **changes: object) -> Context:
    return Context(1, 1, {}, RecordDict(), {**SETTINGS, "run-folder": str(folder), **changes})


def federation(file: Path, nodes: int = 100, partition: Callable[[int], dict[str, int]] | None = None) -> LocalGrid:
    return LocalGrid(client_app(file), num_nodes=nodes, node_config=partition, run_config={"allow-import": False})


@pytest.mark.slow
def test_a_deployed_server_leaves_the_run_that_the_process_would_have_left(tmp_path: Path) -> None:
    file = run_file(tmp_path)
    require_ends("train", file, "--out", tmp_path / "process")
    # Whose node is whose client is what the nodes say, not the order in which they come.
    grid = federation(file, partition=lambda index: {"partition-id": 99 - index})
    serve(grid, deployed(tmp_path / "served"), file)
    assert model_of(tmp_path / "served") == model_of(tmp_path / "process")
    assert (tmp_path / "served" / "report.md").exists()
    # Again, it has nothing left to do, and charges nothing.
    head = read_chain(tmp_path / "served" / "ledger.jsonl").head
    shutil.copy(tmp_path / "served" / "config.toml", tmp_path / "copied.toml")
    serve(grid, deployed(tmp_path / "served"), tmp_path / "copied.toml")
    assert read_chain(tmp_path / "served" / "ledger.jsonl").head == head


def test_a_deployed_server_marks_what_was_measured_on_held_out_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = run_file(tmp_path)
    file.write_text(file.read_text().replace("seed = 3", "seed = 3, validation = 0.1"))
    caplog.set_level(logging.INFO, logger="flwr")
    serve(federation(file), deployed(tmp_path / "served"), file)
    told = [record.getMessage() for record in caplog.records if "accuracy" in record.getMessage().lower()]
    assert len(told) >= 2
    assert all("private" in line for line in told)


def test_a_node_too_few_and_two_that_are_one_client_are_refused(tmp_path: Path) -> None:
    file = run_file(tmp_path)
    context = deployed(tmp_path / "run")
    with pytest.raises(ParticipationError, match=r"data.clients = 100: only 99 nodes .* start more SuperNodes"):
        serve(federation(file, nodes=99), context, file)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(ParticipationError, match=r"partition-id = 98: nodes 1099 and 1100 both claim it"):
        serve(federation(file, partition=lambda index: {"partition-id": min(index, 98)}), context, file)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(ParticipationError, match=r"no node says that it is client 0, nor 0 others .*is not in this node's"):
        serve(federation(file, partition=lambda index: {"partition-id": index} if index else {}), context, file)
    shutil.rmtree(tmp_path / "run")
    silent = federation(file)
    silent.reply_filter = lambda reply: Message(RecordDict(), metadata=reply.metadata)
    with pytest.raises(ParticipationError, match="no node says that it is client 0, nor 99 others of 100"):
        serve(silent, context, file)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.slow
def test_a_deployment_refuses_what_it_cannot_keep(tmp_path: Path) -> None:
    file = run_file(tmp_path)
    with pytest.raises(ConfigError, match=r"run-folder = 'runs/x'.*--run-config"):
        serve(federation(file), deployed("runs/x"), file)
    (ftrl := tmp_path / "ftrl.toml").write_text(file.read_text().replace("privacy = {", 'privacy = { mode = "dp-ftrl",'))
    with pytest.raises(ConfigError, match=r"keys-enforced = false: .*MinSeparation.*--enable-supernode-auth"):
        serve(federation(file), deployed(tmp_path / "ftrl"), ftrl)
    serve(federation(ftrl), deployed(tmp_path / "kept", **{"keys-enforced": True}), ftrl)
    with pytest.raises(RunFolderError, match="other settings"):
        serve(federation(file), deployed(tmp_path / "kept"), file)


def written(folder: Path) -> dict[str, str]:
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in files.items() if not re.match("state/|.*__pycache__/", name)}


def test_the_example_in_the_repository_is_what_the_command_writes(tmp_path: Path) -> None:
    require_ends("flower", "new", tmp_path / "flower_quickstart")
    assert len(written(EXAMPLE)) == 10
    assert written(tmp_path / "flower_quickstart") == written(EXAMPLE)


def test_every_setting_of_a_new_app_is_read_by_its_code() -> None:
    config = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    code = "".join(path.read_text() for path in EXAMPLE.rglob("*.py"))
    assert [name for name in config if f'settings["{name}"]' not in code] == []


@pytest.mark.slow
def test_a_new_app_of_another_name_runs_as_its_readme_says(tmp_path: Path) -> None:
    folder = tmp_path / "my_app"
    require_ends("flower", "new", folder)
    assert "flower_quickstart" not in "".join([*written(folder), *written(folder).values()])
    settings = folder / "pyproject.toml"
    text = settings.read_text().replace("server-rounds = 60", "server-rounds = 2").replace("min-nodes = 180", "min-nodes = 18")
    settings.write_text(text)
    assert "run_local.py" in (folder / "README.md").read_text()
    for rounds in (2, 4):
        ended = subprocess.run([sys.executable, "run_local.py"], cwd=folder, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        shown = ended.stdout + ended.stderr
        assert "Test accuracy: " in shown
        assert f"over {rounds} rounds, by independent Gaussian noise with noise multiplier 1.11" in shown
    assert (folder / "state" / "ledger.jsonl").exists()
