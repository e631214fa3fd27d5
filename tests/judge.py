"""The judge of a run that lost its power: it knows what the world saw, and reads the folder and the keys itself.

The promises, by the name that a violation has:

    I1  a row of noise meets one sum
    I2  what the world has seen is in the ledger and on the disk
    I3  every round whose noise met a sum is charged
    I4  each start has a key of its own, and earlier noise is drawn again bit for bit
    I5  every participation counts
"""

import hashlib
import itertools
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hubbub.errors import HubbubError
from hubbub.lattice import Lattice
from hubbub.noise import SecureSource
from simulated_disk import Disk
from witness import CLIP_NORM, COHORT, DIM, PARTICIPATIONS, SEPARATION, Case, Met, Published, Started, go

# How a run that cannot go on may say so; anything else is a defect of the test.
FAILURES = (HubbubError, ValueError, OSError)


class Violation(AssertionError):  # noqa: N818 # it is what its message says
    """A promise is broken."""


def require(kept: bool, what: str) -> None:
    if not kept:
        raise Violation(what)


def records(folder: Path) -> list[dict[str, Any]]:
    """The ledger's bodies; a torn last line is left out."""
    path = folder / "ledger.jsonl"
    found = []
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            found.append(json.loads(line)["body"])
        except ValueError:
            break
    return found


def release_of(folder: Path, round_index: int) -> bytes | None:
    path = folder / f"state/releases/{round_index}.safetensors"
    return path.read_bytes() if path.exists() else None


def checkpointed(folder: Path) -> int:
    """How many rounds the checkpoint holds."""
    path = folder / "state/checkpoint.json"
    return json.loads(path.read_bytes())["rounds"] if path.exists() else 0


def require_published(case: Case, folder: Path, events: Sequence[Any]) -> None:
    """I2, before anybody repairs anything."""
    committed = {body["round"]: body["release"] for body in records(folder) if body["kind"] == "commit"}
    releases = {event.round_index: event.release.numpy().tobytes() for event in events if isinstance(event, Met)}
    for event in events:
        if isinstance(event, Published):
            t = event.round_index
            require(t in committed, f"I2: round {t} was seen by the world, and is not committed")
            held = release_of(folder, t)
            if held is None and not case.keep_releases and t < checkpointed(folder):
                continue
            whole = held is not None and held.endswith(releases[t]) and hashlib.sha256(held).hexdigest() == committed[t]
            require(whole, f"I2: the release of round {t} was seen by the world, and is not on disk")


def require_noise_used_once(events: Sequence[Any]) -> None:
    """I1, that a round's noise is not made again, and that each start draws new rows from a key of its own."""
    sums: dict[tuple[bytes, int], bytes] = {}
    rounds: dict[int, bytes] = {}
    owners: dict[bytes, int] = {}
    start = 0
    for event in events:
        start += isinstance(event, Started)
        if isinstance(event, Met):
            t = event.round_index
            require(bool(event.rows), f"I1: round {t} has no noise")
            require(all(sums.setdefault(row, event.digest) == event.digest for row in event.rows), f"I1: twice in round {t}")
            require(rounds.setdefault(t, event.digest) == event.digest, f"I3: round {t} met noise twice, and is charged once")
            require(all(owners.setdefault(key, start) == start for key, _ in event.rows), f"I4: start {start} has no new key")


def require_charged(case: Case, events: Sequence[Any], bodies: Sequence[dict[str, Any]]) -> None:
    """I3 and I5: of what noise has met, and of what the run says of itself."""
    begun = [body for body in bodies if body["kind"] == "begin"]
    require([body["round"] for body in begun] == list(range(len(begun))), "I3: rounds are not charged once, in order")
    met = 0
    for event in events:
        if isinstance(event, Met):
            met = max(met, event.round_index + 1)
            require(len(begun) >= met, f"I3: round {event.round_index} met its noise, and is not charged")
            require(len(begun[event.round_index]["clients"]) == len(event.cohort), "I5: a participation is not counted")
        if isinstance(event, Published):
            require(event.epsilon >= case.epsilons[met], "I3: the stated epsilon is too low")
    names: dict[int, str] = {}
    joined: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, Met):
            for client, name in zip(event.cohort, begun[event.round_index]["clients"], strict=True):
                require(names.setdefault(client, name) == name, "I5: a client has two names")
                joined.setdefault(client, []).append(event.round_index)
    for rounds in joined.values():
        apart = all(later - earlier >= SEPARATION for earlier, later in itertools.pairwise(rounds))
        require(apart and len(rounds) <= PARTICIPATIONS, f"I5: a client took part in rounds {rounds}")
    ended = sum(body["kind"] == "burn" for body in bodies)
    require(ended < sum(isinstance(event, Started) for event in events), "a start burned more than one round")


@cache
def z_row(key: bytes, index: int) -> np.ndarray:
    return SecureSource(key).row(index, DIM).numpy()


def require_right_noise(case: Case, folder: Path, events: Sequence[Any], bodies: Sequence[dict[str, Any]]) -> None:
    """I4: every release is its sum plus the noise that the keys give."""
    epochs = [body["first_row"] for body in bodies if body["kind"] == "epoch"]
    keys = [(folder / f"state/keys/epoch-{number}").read_bytes() for number in range(len(epochs))]
    require(len(set(keys)) == len(keys), "I4: two starts have one key")
    met = {event.round_index: event for event in events if isinstance(event, Met)}
    committed = [body["round"] for body in bodies if body["kind"] == "commit"]
    require(set(committed) <= set(met), "I4: a round was committed without noise")
    N = case.noising[: max(met, default=-1) + 1]
    needed = np.flatnonzero(N.any(axis=0))
    owners = [max(e for e, first in enumerate(epochs) if first <= i) for i in needed]
    z = np.array([z_row(keys[owner], int(i)) for owner, i in zip(owners, needed, strict=True)]).reshape(-1, DIM)
    expected = np.rint(N[:, needed] @ z)
    for t in committed:
        held = release_of(folder, t)
        require(held is None or held.endswith(met[t].release.numpy().tobytes()), f"I2: the release of round {t} was changed")
        steps = met[t].release.numpy() / Lattice(CLIP_NORM).step
        # The order of additions may move a number over the border of two steps.
        near = np.abs(steps - met[t].total.numpy() - expected[t]).max() <= 1
        require(near, f"I4: the release of round {t} is not its sum and the noise of its keys")


def require_learnt(module: nn.Module, events: Sequence[Any], bodies: Sequence[dict[str, Any]]) -> None:
    """The model is what the committed releases make of the first one."""
    releases = {event.round_index: event.release.numpy() for event in events if isinstance(event, Met)}
    learnt = sum((releases[body["round"]] for body in bodies if body["kind"] == "commit"), np.zeros(DIM)) / COHORT
    held = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()
    require(np.allclose(held, learnt, rtol=1e-4, atol=1e-4), "the model is not what the releases make")


def judged(case: Case, root: Path, run: str, events: Sequence[Any], seed: int, rounds: int = 2) -> bool:
    """Go on with a run on a disk that lost its power, and judge it; ``False`` where it refused, before noise met a sum."""
    folder = root / run
    require_published(case, folder, events)
    after = list(events)
    try:
        module = go(case, Disk(root), folder, seed, after.append, rounds)
    except FAILURES as error:
        if any(isinstance(event, Met) for event in events):
            raise Violation(f"the run cannot go on: {error}") from error
        return False
    bodies = records(folder)
    require_published(case, folder, after)
    require_noise_used_once(after)
    require_charged(case, after, bodies)
    require_right_noise(case, folder, after, bodies)
    require_learnt(module, after, bodies)
    return True
