"""The noise that a Flower server remembers is kept with its state, so that a restart need not draw it again."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvgM
from hypothesis import given
from hypothesis import strategies as st

from hubbub import Mechanism, MinSeparation, verify
from hubbub._util.prf import sealed, unsealed
from hubbub.errors import RunFolderError
from hubbub.ledger.promise import Promise
from hubbub.mechanism.strategies import Strategy, blt, toeplitz
from hubbub.noise import NoiseStream
from hubbub.noise.lattice import Lattice
from hubbub.training import LatticeSum, ReleasePath, RunStore

DIM, ROUNDS, KEY = 50, 40, bytes(range(32))
BUFFERED = blt.BufferedLinearToeplitz.from_decays(ROUNDS, (0.5, 0.9), (0.3, 0.2))
STRATEGIES: list[Strategy] = [toeplitz.square_root(ROUNDS, bands=6), BUFFERED]


def opened(folder: Path, strategy: Strategy) -> ReleasePath:
    promise = Promise(ROUNDS, Mechanism(strategy, MinSeparation(4, 10), 1.0))
    return ReleasePath(promise, DIM, clients=40, store=RunStore(folder))


def started(folder: Path, until: int, keep: int | None = None, strategy: Strategy = STRATEGIES[0]) -> bytes:
    """A start that makes all rounds up to one, and keeps the noise after another; what it remembers at its end."""
    with RunStore(folder).locked():
        path = opened(folder, strategy)
        path.start()
        while path.next_round < until:
            t = path.next_round
            total = LatticeSum(torch.zeros(DIM, dtype=torch.int64), Lattice(1.0), {})
            ticket = path.begin([4 * i + t % 4 for i in range(3)], total, 1.0)
            path.commit(ticket, total.open(path.row(ticket)))
            if path.next_round == keep:
                path.keep_noise()
        assert path._noise.round_index == until
        return b"".join(path._noise.remembered())


@pytest.mark.parametrize("strategy", STRATEGIES, ids=["banded", "BLT"])
@pytest.mark.parametrize("kept", [1, 10, 13])
def test_a_restart_draws_no_row_again(tmp_path: Path, strategy: Strategy, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    before = started(folder, 13, keep=kept, strategy=strategy)
    shutil.copytree(folder, tmp_path / "bare")
    (tmp_path / "bare" / "state" / "noise.sealed").unlink()
    drawn = []
    right = NoiseStream.next_row
    monkeypatch.setattr(NoiseStream, "next_row", lambda self: (drawn.append(self.round_index), right(self))[1])
    found = []
    for place in (folder, tmp_path / "bare"):
        drawn.clear()
        found.append(started(place, 13, strategy=strategy))
        if place == folder:
            assert all(t >= kept for t in drawn)
        started(place, 16, strategy=strategy)
        assert verify(place).ok
    assert found == [before, before]


def test_what_was_kept_is_no_plain_noise_and_is_gone_with_the_keys(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    rows = np.frombuffer(started(folder, 10, keep=10)).reshape(5, -1)
    content = (folder / "state" / "noise.sealed").read_bytes()
    assert not any(row[:4].tobytes() in content for row in rows)
    RunStore(folder).destroy_secrets()
    assert not (folder / "state" / "noise.sealed").exists()


@pytest.mark.parametrize("damage", ["flipped", "short", "another key", "of later rounds", "of a copy that went on"])
def test_noise_that_was_changed_or_is_of_a_later_ledger_is_refused_and_nothing_is_lost(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "run"
    started(folder, 6, keep=6)
    file = folder / "state" / "noise.sealed"
    content = file.read_bytes()
    shutil.copytree(folder, tmp_path / "later")
    started(tmp_path / "later", 9, keep=9)
    shutil.copytree(folder, tmp_path / "copy")
    for place in (folder, tmp_path / "copy"):
        # Each goes on by itself, under a key of its own.
        if damage == "of a copy that went on":
            started(place, 8, keep=8)
    file.write_bytes(
        {
            "of a copy that went on": (tmp_path / "copy" / "state" / "noise.sealed").read_bytes(),
            "flipped": content[:40] + bytes([content[40] ^ 1]) + content[41:],
            "short": content[:20],
            "another key": b"".join(sealed(KEY, [content[16:-32]])),
            "of later rounds": (tmp_path / "later" / "state" / "noise.sealed").read_bytes(),
        }[damage]
    )
    with RunStore(folder).locked(), pytest.raises(RunFolderError, match=r"noise\.sealed: .*remove noise\.sealed"):
        opened(folder, STRATEGIES[0]).start()
    file.unlink()
    started(folder, 12)
    assert verify(folder).ok


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_what_was_sealed_is_unsealed_and_no_changed_bit_passes(parts: list[bytes]) -> None:
    hidden = b"".join(sealed(KEY, parts))
    assert unsealed(KEY, hidden) == b"".join(parts)
    assert hidden != b"".join(sealed(KEY, parts))
    for place in (0, 15, 16, len(hidden) - 1):
        changed = bytearray(hidden)
        changed[place] ^= 1
        with pytest.raises(ValueError, match="not what this key sealed"):
            unsealed(KEY, bytes(changed))


def test_a_flower_server_keeps_it_every_ten_rounds(tmp_path: Path) -> None:
    from test_flower_strategies import START, grid, separated

    assert isinstance(separated(tmp_path).strategy, FedAvgM)
    separated(tmp_path, rounds=24).start(grid(60), START, num_rounds=11)
    assert (tmp_path / "state" / "noise.sealed").stat().st_mode & 0o777 == 0o600
    made = separated(tmp_path, rounds=24)
    made.start(grid(60), START, num_rounds=2)
    assert made.rounds_charged == 13
    assert verify(tmp_path).ok
