"""A federation at the size of a keyboard, against limits: what the server holds, what a reply costs, what a ledger costs.

No phone is needed: a grid in this process answers as the clients of a round would, each reply made when it is pulled. Replies
are 10^6 float32 numbers; what making them costs is measured alone, and taken off. The ledger is one of a pattern, of rounds of
6,500 clients, written round by round as a run does.
"""

import contextlib
import gc
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import _runner

DIM, COHORT, FEW = 10**6, 6500, 650
ROUNDS, WRITTEN = 2000, 20
CLIP_NORM = 1.0
# Limits: bytes over an idle server, between few and all, CPU nanoseconds a number and client.
PEAK, APART, NANOSECONDS = 1.5e9, 1.1, 4.0
OPENED, MEMORY, EACH, ROUND = 3.0, 400e6, 16.0, {10**6: 0.15, 10**7: 1.5}


def _round(count: int) -> Callable[[], tuple[float, float]]:
    """A round of so many clients: bytes over the idle server, and CPU seconds without what making the replies takes."""
    from flwr.app import Array, ArrayRecord, ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from _clients import Clients
    from hubbub.flower import DPFedAvgFixed
    from hubbub.flower.summing import Streaming

    logging.getLogger("flwr").setLevel(logging.ERROR)
    grid = Clients(count, DIM, 0.8 * CLIP_NORM)
    strategy = DPFedAvgFixed(
        FedAvg(min_available_nodes=1), clip_norm=CLIP_NORM, noise_multiplier=1.0, num_sampled_clients=count, simulation_seed=1
    )
    start = ArrayRecord({"w": Array(np.zeros(DIM, np.float32))})
    messages = list(strategy.configure_train(1, start, ConfigRecord(), grid))

    def call() -> tuple[float, float]:
        gc.collect()
        idle, begin = _runner._peak_bytes(), time.process_time()
        made, _ = strategy.aggregate_train(1, Streaming(grid).send_and_receive(messages))
        spent = time.process_time() - begin - grid.making
        if made is None:
            raise SystemExit("the round was discarded")
        return _runner._peak_bytes() - idle, spent

    return call


def replies_rows(seconds: float) -> Sequence[_runner.Row]:
    """What a server holds and spends."""
    cohort = COHORT if seconds > _runner.QUICK else COHORT // 4
    few, many = (_runner.alone(partial(_round, count)).answer for count in (FEW, cohort))
    name = f"{cohort} replies of 10^6 float32"
    return [
        _runner.Row(f"{name}: memory over an idle server; peer: the limit", many[0], PEAK, 1, unit="bytes"),
        _runner.Row(f"{name}: memory; peer: that of {FEW}, times {APART}", many[0], APART * few[0], 1, unit="bytes"),
        _runner.Row(
            f"{name}: CPU a number and client; peer: the limit",
            many[1] / cohort / DIM * 1e9,
            NANOSECONDS,
            1,
            unit="nanoseconds",
        ),
    ]


def _run(clients: int) -> tuple[Any, Any]:
    """A promise and a pattern of so many clients."""
    from hubbub.ledger.promise import Promise
    from hubbub.mechanism import Mechanism
    from hubbub.mechanism.participation import MinSeparation
    from hubbub.mechanism.strategies import Identity

    pattern = MinSeparation(min_separation=min(140, clients // COHORT - 1), max_participations=ROUNDS)
    return Promise(ROUNDS, Mechanism(Identity(ROUNDS), pattern, noise_multiplier=300.0), simulation=True), pattern


def _fill(folder: Path, clients: int) -> None:
    """A ledger of all rounds."""
    from hubbub.ledger.ledger import Ledger

    promise, _ = _run(clients)
    ledger = Ledger(promise, bytes(32), folder / "ledger.jsonl")
    names = np.arange(clients)
    for t in range(ROUNDS):
        cohort = names[(t * COHORT) % (clients - clients % COHORT) :][:COHORT]
        ledger.commit(ledger.begin(t, cohort.tolist(), "sum", 1.0), b"release")


def _opened(folder: Path) -> Callable[[], tuple[float, float]]:
    """Open a ledger: bytes over the idle process, and seconds."""
    from hubbub.ledger.ledger import Ledger

    promise, _ = _run(10**6)

    def call() -> tuple[float, float]:
        idle, begin = _runner._peak_bytes(), time.perf_counter()
        ledger = Ledger(promise, bytes(32), folder / "ledger.jsonl")
        spent = time.perf_counter() - begin
        if len(ledger.rounds) != ROUNDS:
            raise SystemExit(f"the ledger has {len(ledger.rounds)} rounds")
        return _runner._peak_bytes() - idle, spent

    return call


def _rounds(clients: int) -> Callable[[], float]:
    """Rounds that are chosen, checked and recorded: the median of their seconds, the first aside."""
    from hubbub.ledger.ledger import Ledger
    from hubbub.training.cohorts import CohortKeys, draw

    promise, pattern = _run(clients)

    def call() -> float:
        with tempfile.TemporaryDirectory() as place:
            ledger, keys = Ledger(promise, bytes(32), Path(place) / "ledger.jsonl"), CohortKeys(bytes(32), bytes(32))
            spent = []
            for t in range(WRITTEN):
                begin = time.perf_counter()
                cohort = draw(pattern, t, range(clients), COHORT, keys=keys, ledger=ledger)
                ticket = ledger.begin(t, cohort, "sum", 1.0)
                spent.append(time.perf_counter() - begin)
                ledger.commit(ticket, b"release")
            return float(np.median(spent[1:]))

    return call


def ledger_rows(seconds: float) -> Sequence[_runner.Row]:
    """What a ledger of 13 million participations costs, and a round of a million clients, or of ten."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _fill(folder, 10**6)
        size = sum(file.stat().st_size for file in folder.iterdir()) / (ROUNDS * COHORT)
        memory, opened = _runner.alone(partial(_opened, folder)).answer
    name = f"a ledger of {ROUNDS * COHORT:,} participations"
    rows = [
        _runner.Row(f"{name}: bytes a participation; peer: the limit", size, EACH, 1, unit="bytes"),
        _runner.Row(f"{name}: opened; peer: the limit", opened, OPENED, 1, unit="seconds"),
        _runner.Row(f"{name}: memory to open it; peer: the limit", memory, MEMORY, 1, unit="bytes"),
    ]
    for clients, limit in ROUND.items():
        if clients == 10**6 or seconds > _runner.QUICK:
            spent = _runner.alone(partial(_rounds, clients)).answer
            name = f"{COHORT:,} of {clients:,} clients chosen, checked and recorded; peer: the limit"
            rows.append(_runner.Row(name, spent, limit, 1, unit="seconds"))
    return rows


if __name__ == "__main__":
    _runner.main(__doc__, replies_rows, ledger_rows)
