"""Server and holders of an encrypted run die at every step: no row of noise meets two sums, and no round is opened twice."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from dying import Dying
from flower_arms import fixed, training_app
from hubbub.flower import LocalGrid, Paillier, encrypting_mod, hold
from hubbub.flower.secagg_server import GridHolders
from hubbub.flower.server_run import PrivateRun
from hubbub.flower.state import ServerState
from hubbub.ledger.chain import read_chain
from hubbub.ledger.history import History
from hubbub.secagg import key_files
from hubbub.secagg.key_holder import Holder
from hubbub.training.encrypted import EncryptedSum, HolderNoise
from hubbub.training.release import ReleasePath
from paillier_nodes import dealt

START = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
# In steps of the lattice; each of two clients moves the model by it.
UPDATE = np.array([512.0, -64.0, 7.0])
STEP = 2.0**-14
# The functions between which processes may stop.
STEPS: dict[type, tuple[str, ...]] = {
    ReleasePath: ("start", "begin", "row", "commit", "abort"),
    EncryptedSum: ("open",),
    PrivateRun: ("resume", "begin", "finish", "_learn", "abort_what_was_left"),
    ServerState: ("restore", "save"),
    GridHolders: ("find", "add_noise", "open"),
    HolderNoise: ("row",),
    Holder: ("noise", "open"),
}


def rounds(folder: Path, count: int) -> ArrayRecord:
    """So many rounds of one start of all processes."""
    secagg = Paillier(dealt(2)[0], noise_by="holders")
    strategy = fixed(2, noise_multiplier=1e-6, secagg=secagg, state=folder / "state")
    app = hold(training_app(lambda model, _: {"w": model["w"] + np.float32(UPDATE * STEP)}, mods=[encrypting_mod]))
    on = LocalGrid(app, 2, lambda index: {"paillier-share": str(folder / f"holder-{index + 1}" / "share.json")})
    arrays = strategy.resumed(START, on)
    for _ in range(count):
        messages = list(strategy.configure_train(1, arrays, ConfigRecord(), on))
        arrays = strategy.aggregate_train(1, on.send_and_receive(messages))[0] or arrays
    strategy._run.state.close()  # type: ignore[union-attr]
    return arrays


def see(dying: Dying, real: Callable[..., Any], arguments: Sequence[Any], answer: Any) -> None:
    """Tell of the noise that holders give, and of the sums that they open."""
    match arguments[:2]:
        case (HolderNoise() as stream, int(round_index)):
            dying.tell("row", str(stream._folder), round_index)
        case (Holder() as holder, request) if real.__name__ == "open":
            dying.tell("opened", holder.name, request.round_index, request.digest.hex())


# When noise was given, or added by all, when one holder or all have opened the sum, and when the release is on disk.
MOMENTS = ("HolderNoise.row", "GridHolders.add_noise", "Holder.open", "EncryptedSum.open", "ReleasePath.commit")


@pytest.mark.slow
@pytest.mark.parametrize("anywhere", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_pai_17_flw_5_processes_that_die_use_no_row_and_open_no_round_twice(tmp_path: Path, anywhere: bool) -> None:
    def made(name: str) -> Path:
        for share in dealt(2)[1]:
            place = tmp_path / name / f"holder-{share.holder}"
            place.mkdir(parents=True)
            key_files.write_share(place / "share.json", share)
        return tmp_path / name

    whole = Dying(tmp_path / "whole.jsonl", STEPS, see)
    with whole.watching():
        rounds(made("whole"), 2)
    assert whole.step > 100
    for step in range(1, whole.step + 1) if anywhere else [whole.after[moment] for moment in MOMENTS]:
        folder, dying = made(f"run-{step}"), Dying(tmp_path / f"{step}.jsonl", STEPS, see)
        with dying.watching():
            dying.dies(step, lambda: rounds(folder, 2))  # noqa: B023 # done at once
            dying.deadly = 0
            arrays = rounds(folder, 1)
        judge(folder, dying, arrays)


def judge(folder: Path, dying: Dying, arrays: ArrayRecord) -> None:
    """Hold what happened against the ledger."""
    states = [entry.state for entry in History.of_chain(read_chain(folder / "state" / "ledger.jsonl")).rounds]
    assert dying.told("error") == []
    rows = Counter(dying.told("row"))
    assert set(rows.values()) == {1}, "a holder gave a row of noise twice"
    assert max(round_index for _, round_index in rows) < len(states), "a round was not charged"
    opened = {(holder, round_index, digest) for holder, round_index, digest in dying.told("opened")}
    assert len({event[:2] for event in opened}) == len(opened), "a holder opened two sums of a round"
    # Each release moved the model by the mean, once.
    assert states[-1] == "committed"
    expected = states.count("committed") * UPDATE * STEP
    np.testing.assert_array_equal(arrays["w"].numpy(), expected.astype(np.float32))
