"""A run that goes on from its folder is the run that was interrupted, and goes on from no other folder.

What comes between two starts: damaged checkpoints, other settings, other clocks, signals, lost keys.
"""

import datetime
import errno
import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conftest import raising
from hubbub import Mechanism, MinSeparation, SingleParticipation
from hubbub.errors import HubbubError, LedgerError, RunFolderError
from hubbub.ledger.chain import read_chain
from hubbub.mechanism.strategies import BinaryTree, Dense, Identity, toeplitz
from hubbub.mechanism.utility import noising_matrix
from hubbub.noise import SecureSource
from hubbub.training import LatticeSum, RunPlan, RunStore, ServerOptimizer, SimulatedPopulation, train
from hubbub.training.rounds import RunState
from release_paths import CLIENTS, PATTERN, ROUNDS, kinds, plan, silent, some_rounds
from small_runs import PLANS, flat, linear, plan_with, population, until

PLAN = plan(toeplitz.square_root(ROUNDS, 3))


def started(folder: Path, planned: RunPlan = PLAN, model: nn.Module | None = None) -> RunState:
    return RunState.start(planned, model or nn.Linear(3, 2), RunStore(folder), clients=range(CLIENTS))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of three rounds, with a checkpoint after the second."""
    monkeypatch.setattr("hubbub.training.rounds.CHECKPOINT_EVERY", 2)
    some_rounds(tmp_path / "run", 3)
    return tmp_path / "run"


def test_cra_5_a_checkpoint_that_was_removed_is_made_again_from_the_releases(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy/state/checkpoint-2.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunFolderError, match=r"remove checkpoint\.json, and the state is computed again from the releases"):
        started(tmp_path / "copy")
    (tmp_path / "copy/state/checkpoint.json").unlink()
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    for model, place in zip(models, (folder, tmp_path / "copy"), strict=True):
        started(place, model=model)
    assert torch.equal(*map(flat, models))


def rows(folder: Path) -> list[torch.Tensor]:
    """What the stream remembers when the run goes on."""
    return started(folder).path._noise.state_dict()["memory"]


@pytest.mark.parametrize("fault", ["lost", "of an earlier checkpoint"])
def test_cra_15_noise_that_is_lost_or_stale_is_made_again_bit_for_bit(fault: str, folder: Path, tmp_path: Path) -> None:
    stale = (folder / "state/noise.sealed").read_bytes()
    some_rounds(folder, 5)
    shutil.copytree(folder, tmp_path / "copy")
    kept = tmp_path / "copy/state/noise.sealed"
    if fault == "lost":
        kept.unlink()
    else:
        kept.write_bytes(stale)
    ours, again = rows(folder), rows(tmp_path / "copy")
    assert len(ours) == len(again) == 2
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))


def mechanism(C: object = None, pattern: MinSeparation = PATTERN, z: float = 0.8) -> dict[str, object]:
    strategy = toeplitz.square_root(ROUNDS, 3) if C is None else Dense(C)
    return {"mechanism": Mechanism(strategy, pattern, z), "participation": pattern}


ROOT = toeplitz.square_root(ROUNDS, 3).matrix()
OTHER = ROOT.copy()
OTHER[4, 2] *= 1 + 1e-9
OTHERS: dict[str, tuple[dict[str, object], str]] = {
    "matrix": (mechanism(OTHER), "mechanism.strategy"),
    "noise": (mechanism(z=0.79999), r"mechanism\.noise_multiplier was 0\.8, is 0\.79999"),
    "clip norm": ({"clip_norm": 0.6}, r"settings\.clip_norm was 0\.5, is 0\.6"),
    "separation": (mechanism(pattern=MinSeparation(4, 2)), r"participation\.min_separation was 3, is 4"),
    "participations": (mechanism(pattern=MinSeparation(3, 1)), r"participation\.max_participations was 2, is 1"),
    "delta": ({"delta": 1e-4}, r"delta was 1e-05, is 0\.0001"),
    "unit": ({"privacy_unit": "example"}, "privacy_unit was 'client', is 'example'"),
    "relation": ({"neighboring_relation": "replace-one"}, "neighboring_relation was 'zero-out', is 'replace-one'"),
    "rounds": ({"rounds": 5}, "rounds was 6, is 5"),
    "cohort": ({"expected_cohort_size": 2}, "expected_cohort_size was 3, is 2"),
    "optimizer": ({"server": ServerOptimizer("fedavgm", 0.5)}, r"settings\.server"),
    "shuffles": ({"seed": 1}, r"settings\.seed was 0, is 1"),
    "lattice": ({"lattice_bits": 20}, r"settings\.lattice_bits"),
    "simulation": ({"noise": "simulation"}, "noise was 'secure'"),
    "data": ({"settings": {"data": "others"}}, r"settings\.data"),
    "trust": ({"setting": "who sees what"}, "setting"),
}


@pytest.mark.parametrize("field", OTHERS)
def test_cra_6_a_run_goes_on_with_each_of_its_settings_or_not_at_all(field: str, folder: Path) -> None:
    changes, words = OTHERS[field]
    before = (folder / "ledger.jsonl").read_bytes()
    with pytest.raises(LedgerError, match=rf"written for another promise: .*{words}"):
        started(folder, replace(PLAN, **changes))
    assert (folder / "ledger.jsonl").read_bytes() == before


def test_cra_6_a_run_goes_on_with_its_own_model_only(folder: Path) -> None:
    with pytest.raises(RunFolderError, match=r"initial\.safetensors: holds a model of \(8,\)"):
        started(folder, model=nn.Linear(4, 2))
    with pytest.raises(RunFolderError, match=r"torch\.float64"):
        started(folder, model=nn.Linear(3, 2).double())


@pytest.mark.parametrize("years", [-60, 300])
def test_cra_12_no_clock_and_no_folder_decides_anything(years: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, whole = replace(PLAN, noise="simulation"), nn.Linear(3, 2)
    broken = deepcopy(whole)
    list(train(planned, silent(), whole, RunStore(tmp_path / "whole")))
    shift = years * 365.25 * 86400
    for clock in ("time", "perf_counter", "monotonic"):
        real = getattr(time, clock)
        monkeypatch.setattr(time, clock, lambda real=real: real() + shift)
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    monkeypatch.chdir(tmp_path)
    next(run := train(planned, silent(), broken, RunStore("run")))
    monkeypatch.chdir("/")
    until(run, 3)
    for path in (tmp_path / "run").rglob("*"):
        # Files of the future, and of before there was Unix.
        os.utime(path, (datetime.datetime.now().timestamp(),) * 2 if years < 0 else (1, 1))
    monkeypatch.undo()
    time.tzset()
    rest = list(train(planned, silent(), broken, RunStore(tmp_path / "run")))
    assert [result.round_index for result in rest] == [3, 4, 5]
    assert torch.equal(flat(whole), flat(broken))
    ledgers = [(tmp_path / name / "ledger.jsonl").read_bytes() for name in ("whole", "run")]
    assert read_chain(tmp_path / "run/ledger.jsonl").records[0] == read_chain(tmp_path / "whole/ledger.jsonl").records[0]
    assert all(b"time" not in ledger for ledger in ledgers)


@pytest.mark.parametrize("when", ["while clients train", "between the charge and the noise", "between the file and its record"])
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: signal.Signals(number).name
)
def test_cra_13_a_signal_lets_a_round_finish_or_abort_later(number: signal.Signals, when: str, tmp_path: Path) -> None:
    some_rounds(tmp_path, 1)
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for name in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(name, signal.SIG_DFL)
            _raise_at(when, number)
            some_rounds(tmp_path, 3)
        except KeyboardInterrupt:
            os._exit(130)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (130 if number == signal.SIGINT else -number)
    begun = kinds(tmp_path).count("begin")
    assert begun == (1 if when == "while clients train" else 2)
    some_rounds(tmp_path, 3)
    ends = [kind for kind in kinds(tmp_path) if kind in ("commit", "abort")]
    assert ends == ["commit", "abort" if when == "between the charge and the noise" else "commit", "commit"]


def _raise_at(when: str, number: int) -> None:
    """In the child: send the signal to itself at a point of its first round."""
    signalling: Callable[..., Any] = lambda *_, **__: signal.raise_signal(number)  # noqa: E731
    if when == "while clients train":
        SimulatedPopulation.collect = signalling
    elif when == "between the charge and the noise":
        LatticeSum.open = signalling
    else:
        save = RunStore.save_release

        def saved(store: RunStore, *more: Any) -> bytes:
            content = save(store, *more)
            signal.raise_signal(number)
            return content

        RunStore.save_release = saved


def test_cra_16_a_crash_while_clients_train_charges_nothing(tmp_path: Path) -> None:
    dying = silent()
    dying.collect = raising(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        list(train(PLAN, dying, nn.Linear(3, 2), RunStore(tmp_path)))
    assert kinds(tmp_path) == ["promise", "epoch"]
    some_rounds(tmp_path, ROUNDS)
    assert kinds(tmp_path).count("commit") == ROUNDS


KEY_FAULTS: dict[str, Callable[[Path], None]] = {
    "lost": Path.unlink,
    "others may read it": lambda path: path.chmod(0o644),
    "another key": lambda path: path.write_bytes(bytes(32)),
}


@pytest.mark.parametrize("fault", KEY_FAULTS)
@pytest.mark.parametrize("name", ["run", "epoch-0"])
def test_cra_14_a_key_that_is_lost_or_damaged_ends_the_run_and_draws_no_noise(name: str, fault: str, folder: Path) -> None:
    path, before = folder / "state/keys" / name, (folder / "ledger.jsonl").read_bytes()
    KEY_FAULTS[fault](path)
    with pytest.raises(HubbubError, match=rf"keys/{name}|ledger was written under another key") as refused:
        started(folder)
    assert (folder / "ledger.jsonl").read_bytes() == before
    if fault == "lost":
        assert "start a new run" in str(refused.value)
        assert "whose privacy cost adds to that of this one" in str(refused.value)


def test_cra_14_a_key_that_the_disk_does_not_give_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def opened(path: Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).name == "epoch-0":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(RunFolderError, match=r"keys/epoch-0: cannot be read \(Input/output error\)"):
        started(folder)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("stop", [3, *(pytest.param(stop, marks=pytest.mark.slow) for stop in (1, 5))])
def test_a_resumed_simulation_equals_the_uninterrupted_one_bit_for_bit(plan: RunPlan, stop: int, tmp_path: Path) -> None:
    whole = linear()
    expected = list(train(plan, population(), whole))
    until(train(plan, population(), linear(), RunStore(tmp_path)), stop)
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
        until(train(plan, population(), model, RunStore(tmp_path)), stop)
    for a, b in zip(whole.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("strategy", [Identity(6), toeplitz.square_root(6, 3), BinaryTree(6)], ids=lambda s: type(s).__name__)
def test_the_noise_of_a_resumed_real_run_is_one_stream_of_n_times_z(strategy: Identity, tmp_path: Path) -> None:
    # Clients without examples release the noise alone, rounded to the lattice.
    plan = replace(plan_with(strategy, MinSeparation(3, 2)), noise="secure")
    first_rows, store = [], RunStore(tmp_path)
    for stop in (2, 3, 5):
        until(train(plan, silent(), linear(), store), stop)
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


def test_cra_5_cra_15_releases_and_keys_replace_a_lost_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.training.rounds.CHECKPOINT_EVERY", 2)
    plan = replace(PLANS["banded, separated"], noise="secure")
    until(train(plan, population(), linear(), RunStore(tmp_path / "run")), 3)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for name in ("checkpoint.json", "noise.sealed"):
        (tmp_path / "copy" / "state" / name).unlink()
    stores = [RunStore(tmp_path / name) for name in ("run", "copy")]
    whole, again = (RunState.start(plan, linear(), store, clients=range(CLIENTS)) for store in stores)
    assert torch.equal(whole.model.vector, again.model.vector)
    for ours, theirs in zip(whole.path._noise.state_dict()["memory"], again.path._noise.state_dict()["memory"], strict=True):
        assert torch.equal(ours, theirs)
    assert whole.path._noise.drawn == again.path._noise.drawn == 3


def test_cra_6_a_run_resumes_under_its_own_matrix_only(tmp_path: Path) -> None:
    # The same norms of columns and the same stated sensitivity to one participation, another matrix.
    matrices, once = ([[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.0], [0.8, 1.0]]), SingleParticipation()
    plans = [RunPlan(2, once, 4.0, Mechanism(Dense(matrix), once, 1.0), 1.0) for matrix in matrices]
    assert plans[0].mechanism.l2_sensitivity == plans[1].mechanism.l2_sensitivity
    until(train(plans[0], population(), linear(), RunStore(tmp_path)), 1)
    with pytest.raises(LedgerError, match=r"strategy\.C\.sha256"):
        next(train(plans[1], population(), linear(), RunStore(tmp_path)))


def test_cra_8_two_processes_do_not_work_on_one_run(tmp_path: Path) -> None:
    first = train(PLANS["banded, separated"], population(), linear(), RunStore(tmp_path))
    next(first)
    with pytest.raises(RunFolderError, match=f"process {os.getpid()} is at work"):
        next(train(PLANS["banded, separated"], population(), linear(), RunStore(tmp_path)))
    # As of a DataLoader, whose workers outlive the run.
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
    worker.start()
    first.close()
    next(train(PLANS["banded, separated"], population(), linear(), RunStore(tmp_path)))
    worker.kill()
