"""Runs whose clip norm moves, whoever forms the sums: hostile clients, settings, commands, and what their folders prove."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know
from typer.testing import CliRunner

from encrypted_runs import encrypted, plan, terms
from flower_arms import Entries, Federation, Model
from hubbub.cli.app import app
from hubbub.experiment import config as configs
from hubbub.flower import GridPopulation
from hubbub.ledger.chain import read_chain
from hubbub.ledger.history import History
from hubbub.mechanism.strategies import Identity
from hubbub.testing import check_population
from hubbub.training import LocalTraining, RunStore, SimulatedPopulation, train
from hubbub.training.clipping import AdaptiveClipping, ClipNorms
from hubbub.verification import verify
from small_runs import CLIENTS, linear

SPLIT = AdaptiveClipping().split(0.9, CLIENTS)
SCALES = (1.0, 1e30, math.nan, math.inf, 1e-30, 0.0)
SETTINGS = {
    "training": {"rounds": 6, "cohort_size": 10, "server_learning_rate": 1.0},
    "privacy": {"noise_multiplier": 0.6, "clipping": "adaptive", "clip_norm": 0.5},
    "data": {"clients": 30},
}


def settings(**changes: dict[str, object]) -> configs.Config:
    return configs.resolve(SETTINGS, changes)


# --- hostile clients ---


def hostile(lattice: bool) -> SimulatedPopulation:
    """Examples that make updates huge, infinite, not a number, tiny and zero; one client has none."""
    generator = torch.Generator().manual_seed(2)
    examples = [(torch.randn(4, 3, generator=generator) * scale, torch.tensor([0, 1, 1, 0])) for scale in SCALES]
    examples.append((torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)))
    return SimulatedPopulation(examples, F.cross_entropy, LocalTraining(batch_size=2), lattice=lattice)


def hostile_grid(lattice: bool) -> GridPopulation:
    """Clients on a grid that send such updates; the last one sends something else."""

    def train(model: Entries, index: int) -> Model:
        if index == len(SCALES):
            return {"weight": model["weight"]}
        return {name: (values + SCALES[index]).astype("float32") for name, values in model.items()}

    grid = Federation(len(SCALES) + 1, train).grid
    return GridPopulation(grid, grid.get_node_ids(), lattice=lattice)


@pytest.mark.parametrize("lattice", [True, False], ids=["lattice", "floating point"])
@pytest.mark.parametrize("made", [hostile, hostile_grid])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_populations_keep_the_contract_of_the_indicator(made, lattice: bool) -> None:
    check_population(made(lattice), linear(), clip_norm=0.25)


@pytest.mark.parametrize("made", [hostile, hostile_grid])
@pytest.mark.parametrize("clip_norm", [1e-10, 0.3, 7.7, 1e10])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_ada_4_no_client_moves_the_joint_sum_by_more_than_the_noise_is_scaled_to(made, clip_norm: float) -> None:
    clients = made(True)
    everyone = list(clients.clients)
    whole = clients.collect(everyone, linear(), clip_norm, 0, SPLIT)
    assert whole.lattice.clip_norm == ClipNorms(AdaptiveClipping(clip_norm), 0.9, CLIENTS).bound(clip_norm)
    for client in everyone:
        others = clients.collect([c for c in everyone if c != client], linear(), clip_norm, 0, SPLIT)
        moved = [int(q) for q in whole.total - others.total]
        # In whole numbers, exactly: what one client adds is at most the radius of the lattice, and that at most the bound.
        assert sum(q * q for q in moved) <= whole.lattice.radius**2
        assert whole.lattice.radius * whole.lattice.step <= SPLIT.joint_norm(clip_norm)


# --- encrypted sums ---


@pytest.mark.parametrize("noise_by", ["server", "holders", "clients"])
def test_an_encrypted_count_moves_the_clip_norm_as_one_in_the_clear(noise_by: str, tmp_path: Path) -> None:
    how, rule = terms(noise_by), AdaptiveClipping(0.01, 0.9, 1.0)
    moving = replace(plan(Identity(6), how), clip_norm=rule)
    store = RunStore(tmp_path / "run")
    results = list(train(moving, encrypted(moving, how, folder=tmp_path), linear(), store))
    assert all(result.released for result in results)
    rounds = History.of_chain(read_chain(store.ledger_path)).rounds
    norms, expected = moving.clip_norms, rule.initial_clip_norm
    for result, entry in zip(results, rounds, strict=True):
        assert result.clip_norm == expected
        assert entry.clip_norm == norms.bound(expected)
        release = store.load_release(result.round_index, entry.release, 9)
        expected = norms.following(expected, release)
    # No update is as short as a hundredth: the clip norm grows.
    assert results[-1].clip_norm > 2 * results[0].clip_norm


# --- commands ---


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("engine", ["process", "flower"])
def test_a_run_by_the_commands_can_be_planned_trained_resumed_and_verified(engine: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(configs.dump(settings(training={"engine": engine})))
    planned = json.loads(invoke("plan", tmp_path / "run.toml", "--json"))
    assert planned["clip_norm_moves"] is True
    folder = tmp_path / "run"
    shown = invoke("train", tmp_path / "run.toml", "--out", folder)
    assert "clip norm 0.5" in shown
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["clip_norm"] == 0.5
    assert len({row["clip_norm"] for row in rows}) == 6
    assert "clip_norm" not in rows[0]["private"]
    assert "clip norm: follows a quantile of the updates' norms" in (folder / "report.md").read_text()
    verified = verify(folder)
    assert verified.ok, verified
    assert any(check.name == "clip norms" and "6 of 6 rounds were followed" in check.detail for check in verified.checks)
    assert verified.epsilon == planned["epsilon"]
    assert "nothing is left to train" in invoke("resume", folder)
    statement = invoke("account", folder, "--statement")
    assert "made of a noised count of the updates that were not clipped" in statement


def test_a_ledger_whose_clip_norms_do_not_follow_from_its_releases_is_no_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = AdaptiveClipping.following
    with monkeypatch.context() as patch:
        patch.setattr(AdaptiveClipping, "following", lambda rule, norm, fraction: 1.01 * following(rule, norm, fraction))
        (tmp_path / "run.toml").write_text(configs.dump(settings()))
        invoke("train", tmp_path / "run.toml", "--out", tmp_path / "run")
    verdict = verify(tmp_path / "run")
    (wrong,) = [check for check in verdict.checks if not check.ok]
    assert wrong.name == "clip norms"
    assert wrong.detail.startswith("round 1 has ")
