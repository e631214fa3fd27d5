"""What is too large is refused before anything is allocated, and what runs short in a round costs that round and no more."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import raising
from hubbub import FixedEpochs, Mechanism, MinSeparation, PoissonSampling, factorization
from hubbub._util import strict_json
from hubbub._util.tensor_proto import read_tensor_proto
from hubbub.errors import ConfigError, DataError, HubbubError, RunFolderError
from hubbub.ledger import Ledger, Promise
from hubbub.mechanism.strategies import BinaryTree, Identity, toeplitz
from hubbub.mechanism.workloads import momentum, prefix_sum
from hubbub.noise import NoiseStream
from hubbub.training import LatticeSum, ReleasePath, RunStore, SimulatedPopulation
from malformed.contents import header_of, npy_of
from refusals import little_memory
from release_paths import ROUNDS, kinds, some_rounds

MILLION = 10**6
MIB = 2**20


TOO_LARGE: dict[str, Callable[[], object]] = {
    "independent": lambda: Identity(MILLION).matrix(),
    "banded": lambda: toeplitz.square_root(MILLION, 8).matrix(),
    "tree": lambda: BinaryTree(MILLION).matrix(),
    "best of all": lambda: factorization.dense.optimize(prefix_sum(MILLION), participation=FixedEpochs(10, MILLION // 10)),
    "best with momentum": lambda: factorization.dense.optimize(momentum(MILLION, 0.9)),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_res_1_a_dense_matrix_of_a_million_rounds_is_refused_before_it_is_allocated(name: str) -> None:
    with little_memory(100 * MIB), pytest.raises(ValueError, match=r"rounds = 1000000.*(use|pattern)"):
        TOO_LARGE[name]()


def test_res_1_a_matrix_file_of_a_billion_entries_is_refused_before_they_are_allocated(tmp_path: Path) -> None:
    path = tmp_path / "C.npy"
    path.write_bytes(npy_of(header_of("'<f8'", "(31623, 31623)"), bytes(100)))
    with little_memory(100 * MIB), pytest.raises(DataError, match=r"C\.npy.*holds 100"):
        read_tensor_proto(path)


def test_res_2_noise_that_no_memory_holds_is_refused_before_the_first_round() -> None:
    rounds, dim = 4096, 10**8
    pattern = MinSeparation(rounds, 1)
    promise = Promise(rounds, Mechanism(toeplitz.square_root(rounds, rounds), pattern, 1.0))
    said = r"4,095 rows of 100,000,000 numbers, 3,051\.0 GiB"
    with little_memory(100 * MIB), pytest.raises(ConfigError, match=said):
        ReleasePath(promise, dim, clients=10)
    with pytest.raises(ConfigError, match="all the memory there is"):
        NoiseStream(promise.mechanism, dim, seed=0)
    # A part of it, on a machine of many, is judged by itself; and independent noise remembers nothing.
    NoiseStream(promise.mechanism, dim, seed=0, part=(0, 1000))
    ReleasePath(Promise(rounds, Mechanism(Identity(rounds), pattern, 1.0)), dim, clients=10)


def test_res_2_noise_that_no_disk_holds_is_refused_before_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=2 * 8 * 8 * 2 - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: full)
    with pytest.raises(RunFolderError, match="noise of two checkpoints"):
        some_rounds(tmp_path / "run", 1)
    assert not (tmp_path / "run/ledger.jsonl").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: full._replace(free=full.free + 1))
    some_rounds(tmp_path / "run", 1)


OUT: dict[str, tuple[Any, str, list[str]]] = {
    "while clients train": (SimulatedPopulation, "collect", ["begin", "commit", "begin", "commit"]),
    "where noise is made": (NoiseStream, "next_row", ["begin", "commit", "begin", "abort", "begin", "commit"]),
    "where it meets the sum": (LatticeSum, "open", ["begin", "commit", "begin", "abort", "begin", "commit"]),
    "where the release is written": (RunStore, "save_release", ["begin", "commit", "begin", "abort", "begin", "commit"]),
    "where it is recorded": (Ledger, "commit", ["begin", "commit", "begin", "commit", "begin", "commit"]),
}


@pytest.mark.parametrize("error", [MemoryError("no memory"), RuntimeError("can't allocate memory: you tried to allocate")])
@pytest.mark.parametrize("where", OUT)
def test_res_3_a_round_that_runs_out_of_memory_is_aborted_or_was_never_charged(
    where: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, expected = OUT[where]
    some_rounds(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raising(error))
        with pytest.raises(type(error)):
            some_rounds(tmp_path, 2)
    some_rounds(tmp_path, 2 if len(expected) == 4 else 3)
    assert [kind for kind in kinds(tmp_path) if kind in ("begin", "commit", "abort")] == expected


def test_res_4_a_process_that_may_open_no_more_files_says_so_and_can_go_on(tmp_path: Path) -> None:
    some_rounds(tmp_path, 1)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] < highest:
        held.append(os.open(os.devnull, os.O_RDONLY))
    messages = []
    for more in range(1, 4):
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + more, before[1]))
        try:
            some_rounds(tmp_path, 3)
        except (HubbubError, OSError) as error:
            messages.append(str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for descriptor in held:
        os.close(descriptor)
    assert messages
    assert all(str(tmp_path) in message and "Too many open files" in message for message in messages)
    some_rounds(tmp_path, ROUNDS)
    assert kinds(tmp_path).count("abort") <= len(messages)


def test_res_4_a_run_needs_no_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "full"))
    some_rounds(tmp_path / "run", ROUNDS)
    assert kinds(tmp_path / "run").count("commit") == ROUNDS


@pytest.mark.parametrize("records", [5_000, pytest.param(MILLION, marks=pytest.mark.slow)])
def test_res_5_a_ledger_of_a_million_records_opens_and_states_its_epsilon(records: int, tmp_path: Path) -> None:
    # Rounds of random cohorts, each begun and committed: two records a round, written in one go.
    rounds, path = records // 2, tmp_path / "ledger.jsonl"
    promise = Promise(rounds, Mechanism(Identity(rounds), PoissonSampling(0.001), 5.0), settings={"clip_norm": 1.0})
    ledger = Ledger(promise, bytes(32))
    ledger.start_epoch(0, bytes(32), "0" * 64)
    for t in range(rounds):
        ledger.commit(ledger.begin(t, (), "sum", 1.0), b"release")
    chain = ledger.chain
    with path.open("wb") as file:
        for body, head in zip(chain.records, chain.hashes, strict=True):
            file.write(b'{"body":' + strict_json.canonical(body) + b',"hash":"' + head.encode() + b'"}\n')
    ledger = Ledger(promise, bytes(32), path)
    assert ledger.next_round == rounds
    assert 0 < ledger.spent(1e-6).epsilon < 100


MANY = """
import resource, sys
import torch
from torch import nn
from torch.nn import functional as F
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import every_round
from hubbub.mechanism.strategies import Identity
from hubbub.training import LocalTraining, RunPlan, SimulatedPopulation, train

clients, dim = int(sys.argv[1]), int(sys.argv[2])
one = (torch.ones(1, dim), torch.ones(1, 1))
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def one_round(clients):
    population = SimulatedPopulation([one] * clients, F.mse_loss, LocalTraining())
    plan = RunPlan(1, every_round(1), clients, Mechanism(Identity(1), every_round(1), 1.0), clip_norm=1.0)
    return list(train(plan, population, nn.Linear(dim, 1, bias=False)))
one_round(200)
before = peak()
(result,) = one_round(clients)
assert result.clients == clients
print((peak() - before) * 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "dim"), [(5_000, 4000), (100_000, 1000)])
def test_res_6_the_memory_of_a_round_does_not_grow_with_its_clients(clients: int, dim: int) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MANY, str(clients), str(dim)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    # All updates would be so many rows of eight bytes a number; beside the names of the clients there is room for one chunk.
    assert int(done.stdout) < 2000 * clients + 64 * MIB < 8 * dim * clients
