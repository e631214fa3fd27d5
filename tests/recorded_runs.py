"""Runs as records and as folders, for the tests of what runs cost."""

import io
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from cohort_file import bound
from hubbub import Mechanism, RunStore, verify
from hubbub.accounting.runs import RunCharge
from hubbub.cli import main
from hubbub.ledger import Chain, Ledger, Promise, read_chain, run_charges
from hubbub.ledger.history import History
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, PoissonSampling
from hubbub.mechanism.strategies import Identity, Strategy, strategy_arrays, toeplitz
from hubbub.training.run_folder.record import read_run

ROUNDS = 8
BANDED = toeplitz.square_root(ROUNDS, 3)
PATTERN = MinSeparation(3, 2)
DIGEST = "0" * 64


def promise_of(strategy: Strategy, participation: Participation, z: float = 1.0, **more: object) -> Promise:
    return Promise(strategy.rounds, Mechanism(strategy, participation, z), settings={"clip_norm": 1.0}, **more)


def history_of(cohorts: list[set[int]], key: str | None = DIGEST, clip_norm: float | None = 1.0) -> History:
    """What records say, whoever wrote them: nothing is refused here."""
    history = History()
    history.apply({"kind": "epoch", "epoch": 0, "first_row": 0, "key": key, "sampler": DIGEST})
    for t, cohort in enumerate(cohorts):
        kept = history.participations.block(t, np.array(sorted(cohort), dtype=np.uint64))
        history.apply({"kind": "begin", "round": t, "epoch": 0, **bound(kept), "sum": DIGEST, "clip_norm": clip_norm}, kept)
        history.apply({"kind": "abort", "round": t})
    return history


def recorded(folder: Path, promise: Promise, cohorts: list[list[str]], secret: int = 0, close: bool = False) -> Path:
    """A run's folder with a ledger of these rounds."""
    folder.mkdir(exist_ok=True)
    store = RunStore(folder)
    store.save_strategy(strategy_arrays(promise.mechanism.strategy) if promise.mechanism else {})
    ledger = Ledger(promise, bytes([secret]) * 32, folder / "ledger.jsonl")
    start = len(ledger.rounds)
    ledger.start_epoch(start, None if promise.simulation else bytes([start]) * 32, DIGEST)
    for t, cohort in enumerate(cohorts, start=start):
        ledger.commit(ledger.begin(t, cohort, f"sum {t} {secret}", 1.0), b"release")
    if close:
        ledger._append({"kind": "close"})  # what end_run writes
    return folder


def hubbub(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code or 0


def require_ends(*arguments: object, expect: int = 0) -> None:
    assert hubbub(*arguments) == expect


def invoke(*arguments: object, status: int = 0) -> str:
    """What a command prints that ends with this status."""
    with redirect_stdout(io.StringIO()) as printed:
        ended = hubbub(*arguments)
    assert ended == status, printed.getvalue()
    return printed.getvalue()


@contextmanager
def interrupted_at(number: int) -> Iterator[None]:
    """Ctrl-C when a round is about to be begun for the ``number``-th time."""
    begin, begun = Ledger.begin, itertools.count(1)

    def stopped(ledger: Ledger, *arguments: Any) -> object:
        if next(begun) == number:
            raise KeyboardInterrupt
        return begin(ledger, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "begin", stopped)
        yield


# Settings of a run that trains in no time.
SMALL = """
training = { rounds = 4, cohort_size = 10 }
privacy = { clip_norm = 0.5, noise_multiplier = 2.0 }
data = { name = "digits", clients = 40 }
"""


def trained(place: Path, settings: str = SMALL, status: int = 0) -> Path:
    """The folder of a run with these settings, which the command line trained."""
    (place / "run.toml").write_text(settings)
    invoke("train", place / "run.toml", "--out", place / "run", status=status)
    return place / "run"


def answer(*arguments: object, status: int = 0) -> dict:
    """What it answers to a program."""
    return json.loads(invoke(*arguments, "--json", status=status), parse_constant=pytest.fail)


BAND = promise_of(BANDED, PATTERN, 2.0)
EVEN = promise_of(Identity(6), FixedEpochs(3, 2), 3.0)
COIN = promise_of(Identity(5), PoissonSampling(0.2), 1.5)
THREE = [["a"], ["b"], ["c"]]


def charges(*folders: Path) -> tuple[RunCharge, ...]:
    return run_charges([read_run(folder) for folder in folders])


def read_back(promise: Promise) -> Promise:
    record = {"kind": "promise", **json.loads(json.dumps(promise.record()))}
    return Promise.from_record(record, strategy_arrays(promise.mechanism.strategy))


def rewritten(folder: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """A ledger with other records and a chain that fits them: what a forger who owns the folder can write."""
    path = folder / "ledger.jsonl"
    records = [dict(record) for record in read_chain(path).records]
    change(records)
    path.unlink()
    chain = Chain(path)
    for record in records:
        chain.append(record)


def rebound(folder: Path, *, files: bool = True) -> None:
    """A ledger that binds what lies in the folder now, or nothing."""

    def change(records: list[dict[str, Any]]) -> None:
        last = records.pop()
        assert last["kind"] == "files"
        if files:
            records.append({"kind": "files", "files": {name: RunStore(folder).digest(name) for name in last["files"]}})

    rewritten(folder, change)


def unproved(folder: Path) -> list[str]:
    """What verify names as bound by no digest."""
    said = next(check.detail for check in verify(folder).checks if check.name == "coverage")
    found = re.search("no digest binds these: ([^;]*)", said)
    return found[1].split(", ") if found else []


def require_noticed(folder: Path, *, bits: int, names: str = "*") -> list[str]:
    """Flip single bits of every file: each shows, where the file is not named as one that no digest binds."""
    left, chance = unproved(folder), random.Random(5)  # noqa: S311 # places for a test
    for path in sorted(path for path in folder.rglob(names) if path.is_file()):
        name, content = path.relative_to(folder).as_posix(), path.read_bytes()
        if any(name == one or (one.endswith("/") and name.startswith(one)) for one in left):
            continue
        # The end of a ledger is where a crash would be forgiven.
        places = {0, len(content) - 1, *(chance.randrange(len(content)) for _ in range(bits - 2))}
        for place in places:
            bit = 1 << chance.randrange(8)
            path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
            assert not verify(folder).ok, f"bit {bit} of byte {place} of {len(content)} of {name} was flipped"
        path.write_bytes(content)
    assert verify(folder).ok
    return left


def model_of(folder: Path) -> dict[str, bytes]:
    """Each tensor of a run's model."""
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(folder / "model.safetensors").items()}
