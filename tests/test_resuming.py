"""A run that goes on from its folder is the run that was interrupted, and goes on from no other folder."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.errors import LedgerError, RunFolderError
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import MinSeparation, SingleParticipation
from hubbub.mechanism.strategies import BinaryTree, Dense, Identity, toeplitz
from hubbub.mechanism.utility import noising_matrix
from hubbub.noise import SecureSource
from hubbub.training import LocalTraining, RunPlan, RunStore, SimulatedPopulation, train
from hubbub.training.rounds import RunState
from small_runs import CLIENTS, PLANS, linear, plan_with, population


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_resumed_simulation_equals_the_uninterrupted_one_bit_for_bit(plan: RunPlan, stop: int, tmp_path: Path) -> None:
    whole = linear()
    expected = list(train(plan, population(), whole))
    first = train(plan, population(), linear(), RunStore(tmp_path))
    for _ in range(stop):
        next(first)
    first.close()
    resumed = linear()
    rest = list(train(plan, population(), resumed, RunStore(tmp_path)))
    assert [r.round_index for r in rest] == list(range(stop, 6))
    assert [r.epsilon for r in rest] == [r.epsilon for r in expected[stop:]]
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_checkpoint_of_a_long_run_is_enough(plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.training.rounds.CHECKPOINT_EVERY", 2)
    whole = linear()
    list(train(plan, population(), whole))
    for stop in range(1, 7):
        model = linear()
        for result in train(plan, population(), model, RunStore(tmp_path)):
            if result.round_index + 1 == stop:
                break
    for a, b in zip(whole.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("strategy", [Identity(6), toeplitz.square_root(6, 3), BinaryTree(6)], ids=lambda s: type(s).__name__)
def test_the_noise_of_a_resumed_real_run_is_one_stream_of_n_times_z(strategy: Identity, tmp_path: Path) -> None:
    # Clients without examples release the noise alone, rounded to the lattice.
    silent = SimulatedPopulation(
        [(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))] * 12, F.cross_entropy, LocalTraining()
    )
    plan = replace(plan_with(strategy, MinSeparation(3, 2)), noise="secure")
    first_rows, store = [], RunStore(tmp_path)
    for stop in (2, 3, 5):
        for result in train(plan, silent, linear(), store):
            if result.round_index + 1 == stop:
                break
    for line in (tmp_path / "ledger.jsonl").read_text().splitlines():
        body = json.loads(line)["body"]
        if body["kind"] == "epoch":
            first_rows.append(body["first_row"])
    keys = [store.noise_key(epoch) for epoch in range(3)]
    assert len(set(keys)) == 3
    rows = strategy.matrix().shape[0]
    epoch_of = [max(e for e in range(3) if first_rows[e] <= row) for row in range(rows)]
    z = torch.stack([SecureSource(keys[epoch_of[row]]).row(row, 8) for row in range(rows)])
    expected = plan.mechanism.stddev * plan.clip_norm * torch.from_numpy(noising_matrix(strategy)) @ z
    for t in range(5):
        released = store.parse_release(t, store.release_content(t))
        # To the nearest of the whole multiples of 2^-25.
        torch.testing.assert_close(released, expected[t], rtol=0, atol=2**-26 + 1e-12)


def interrupted(tmp_path: Path) -> RunPlan:
    plan = replace(PLANS["banded, separated"], noise="secure")
    run = train(plan, population(), linear(), RunStore(tmp_path))
    for _ in range(3):
        next(run)
    run.close()
    return plan


def test_cra_5_cra_15_a_lost_checkpoint_is_made_again_from_the_releases_and_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.training.rounds.CHECKPOINT_EVERY", 2)
    plan = interrupted(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    (tmp_path / "copy" / "state" / "checkpoint.json").unlink()
    whole, again = (RunState.start(plan, linear(), RunStore(tmp_path / name), clients=CLIENTS) for name in ("run", "copy"))
    assert torch.equal(whole.model.vector, again.model.vector)
    for ours, theirs in zip(whole.path.noise.state_dict()["memory"], again.path.noise.state_dict()["memory"], strict=True):
        assert torch.equal(ours, theirs)
    assert whole.path.noise.drawn == again.path.noise.drawn == 3


def test_cra_6_a_run_resumes_under_its_own_matrix_only(tmp_path: Path) -> None:
    # The same norms of columns and the same stated sensitivity to one participation, another matrix.
    own, other = Dense([[1.0, 0.0], [0.0, 1.0]]), Dense([[0.6, 0.0], [0.8, 1.0]])
    plans = [
        RunPlan(2, SingleParticipation(), 4.0, Mechanism(strategy, SingleParticipation(), 1.0), 1.0)
        for strategy in (own, other)
    ]
    assert plans[0].mechanism.l2_sensitivity == plans[1].mechanism.l2_sensitivity
    run = train(plans[0], population(), linear(), RunStore(tmp_path))
    next(run)
    run.close()
    with pytest.raises(LedgerError, match=r"strategy\.C\.sha256"):
        next(train(plans[1], population(), linear(), RunStore(tmp_path)))


def test_cra_8_two_processes_do_not_work_on_one_run(tmp_path: Path) -> None:
    first = train(PLANS["banded, separated"], population(), linear(), RunStore(tmp_path))
    next(first)
    with pytest.raises(RunFolderError, match=f"process {os.getpid()} is at work"):
        next(train(PLANS["banded, separated"], population(), linear(), RunStore(tmp_path)))
    first.close()
    next(train(PLANS["banded, separated"], population(), linear(), RunStore(tmp_path)))
