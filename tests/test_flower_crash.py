"""A federation's process dies at every step of a round, and again as it comes back: nothing uncharged, used twice or lost."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg

from dying import Dying
from flower_arms import Federation
from hubbub import Mechanism, MinSeparation, verify
from hubbub.flower import DPFedAvgAdaptive, DPFedAvgFixed, LocalGrid, MatrixFactorizationDP
from hubbub.flower.server_run import PrivateRun
from hubbub.flower.state import ServerState
from hubbub.flower.strategies import PrivateStrategy
from hubbub.ledger.chain import read_chain
from hubbub.ledger.history import History
from hubbub.mechanism.strategies import toeplitz
from hubbub.training import LatticeSum, ReleasePath

DIM, ROUNDS = 12, 3
START = ArrayRecord({"w": Array(np.linspace(-1, 1, DIM, dtype=np.float32))})
# The functions between which a round may stop.
STEPS: dict[type, tuple[str, ...]] = {
    ReleasePath: ("start", "begin", "row", "commit", "abort"),
    LatticeSum: ("open",),
    PrivateRun: ("resume", "begin", "finish", "_learn", "abort_what_was_left"),
    ServerState: ("restore", "save"),
}


def correlated(folder: Path) -> PrivateStrategy:
    mechanism = Mechanism(toeplitz.square_root(8, bands=3), MinSeparation(3, 4), 1.0)
    settings = {"clip_norm": 1.0, "num_sampled_clients": 3, "keys_enforced": True, "state": folder}
    return MatrixFactorizationDP(FedAvg(), mechanism=mechanism, **settings)


def adaptive(folder: Path) -> PrivateStrategy:
    return DPFedAvgAdaptive(FedAvg(), noise_multiplier=1.0, sampling_probability=0.5, expected_cohort_size=3.0, state=folder)


def grid() -> LocalGrid:
    return Federation(12, lambda model, index: {"w": model["w"] + np.float32(0.01)}).grid


def rounds(make: Callable[[Path], PrivateStrategy], folder: Path, number: int, tell: Callable[..., None]) -> ArrayRecord:
    """So many rounds, as ``start`` makes them; what leaves the process is told."""
    strategy, on = make(folder), grid()
    arrays = strategy.resumed(START, on)
    for _ in range(number):
        messages = list(strategy.configure_train(1, arrays, ConfigRecord(), on))
        tell("messages", strategy.rounds_charged - 1)
        made, _ = strategy.aggregate_train(1, on.send_and_receive(messages))
        arrays = made
        tell("released", strategy.rounds_charged - 1)
    strategy._run.state.close()  # type: ignore[union-attr]
    return arrays


def see(dying: Dying, real: Callable[..., Any], arguments: Sequence[Any], answer: Any) -> None:
    """Tell of the rows of noise that are given out, and of the releases that are made with them."""
    match arguments, real.__name__:
        case (ReleasePath(), ticket), "row":
            dying.tell("row", ticket.round_index, answer.tolist())
        case (LatticeSum(), *_), "open":
            dying.tell("sum", answer.tolist())


@pytest.mark.parametrize("every", [83, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [correlated, pytest.param(adaptive, marks=pytest.mark.slow)])
def test_flw_5_prt_3_a_process_that_dies_anywhere_leaves_nothing_uncharged_or_used_twice(
    make: Callable[[Path], PrivateStrategy], every: int, tmp_path: Path
) -> None:
    whole = Dying(tmp_path / "whole.jsonl", STEPS, see)
    with whole.watching():
        rounds(make, tmp_path / "whole", ROUNDS, whole.tell)
    assert whole.step > 100
    # The rule that the clip norm follows is on record.
    assert ("clip norms" in {check.name for check in verify(tmp_path / "whole").checks}) == (make is adaptive)
    for step in range(1, whole.step + 1, every):
        folder, dying = tmp_path / f"run-{step}", Dying(tmp_path / f"{step}.jsonl", STEPS, see)
        with dying.watching():
            dying.dies(step, lambda: rounds(make, folder, ROUNDS, dying.tell))  # noqa: B023 # done at once
            again = int(np.random.default_rng(step).integers(1, whole.step))
            dying.dies(again, lambda: rounds(make, folder, 2, dying.tell))  # noqa: B023 # done at once
            dying.deadly = 0
            arrays = rounds(make, folder, 1, dying.tell)
        judge(folder, dying, arrays)


def judge(folder: Path, dying: Dying, arrays: ArrayRecord) -> None:
    """Hold what happened against the ledger."""
    states = [entry.state for entry in History.of_chain(read_chain(folder / "ledger.jsonl")).rounds]
    assert dying.told("error") == []
    rows, asked, left = dying.told("row"), dying.told("messages"), dying.told("released")
    for round_index, *_ in [*rows, *asked]:
        assert round_index < len(states), "something left for a round that was not charged"
    assert all(states[round_index] == "committed" for (round_index,) in left)
    assert len({round_index for round_index, _ in rows}) == len(rows), "a round has two rows of noise"
    assert len({tuple(noise) for _, noise in rows}) == len(rows), "a row of noise was used twice"
    # A sum is opened with the row that was given out last.
    released: dict[int, list[float]] = {}
    for row, total in itertools.pairwise(event for event in dying.events() if event[0] in ("row", "sum")):
        if (row[0], total[0]) == ("row", "sum"):
            released[row[1]] = total[1]
    expected = START["w"].numpy().astype(np.float64)
    for number, state in enumerate(states):
        if state == "committed":
            expected = expected + np.array(released[number][:DIM]) / 3
    np.testing.assert_allclose(arrays["w"].numpy(), expected, atol=1e-4)


def test_a_simulation_that_dies_in_its_last_round_is_over(tmp_path: Path) -> None:
    given: dict[str, Any] = {"num_sampled_clients": 3, "rounds": 1, "simulation_seed": 0, "state": tmp_path}
    dying, again = (DPFedAvgFixed(FedAvg(), clip_norm=1.0, noise_multiplier=1.0, **given) for _ in range(2))
    on = grid()
    dying.configure_train(1, dying.resumed(START, on), ConfigRecord(), on)
    again.start(on, START, num_rounds=1)
    assert [record["kind"] for record in read_chain(tmp_path / "ledger.jsonl").records][-2:] == ["abort", "files"]
