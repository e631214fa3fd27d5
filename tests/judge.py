"""The judge of a run that was killed or lost its power: it knows what the world saw, and reads the folder and the keys itself.

The promises, by the name that a violation has:

    I1  a row of noise meets one sum
    I2  what the world has seen is in the ledger and on the disk, byte for byte
    I3  every round whose noise met a sum is charged, before it does
    I4  each start has a key of its own, and earlier noise is drawn again bit for bit
    I5  every participation counts
    I6  the clip norm is the function of the releases that was promised
"""

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cohort_file import cohorts
from hubbub import AdaptiveClipping, FixedEpochs, MinSeparation
from hubbub.errors import HubbubError
from hubbub.mechanism.utility import noising_matrix
from hubbub.noise import SecureSource
from hubbub.noise.lattice import Lattice
from simulated_disk import Disk
from ways import DIM, Way
from witness import Again, Asked, Case, Gave, Met, Opened, Published, Shared, Started, go, records, same

# How a run that cannot go on may say so; anything else is a defect of the test.
FAILURES = (HubbubError, ValueError, OSError)
Body = Mapping[str, Any]


class Violation(AssertionError):  # noqa: N818 # it is what its message says
    """A promise is broken."""


def require(kept: bool, what: str) -> None:
    if not kept:
        raise Violation(what)


def release_of(folder: Path, round_index: int) -> bytes | None:
    path = folder / f"state/releases/{round_index}.safetensors"
    return path.read_bytes() if path.exists() else None


def learnt(folder: Path) -> int:
    """How many rounds are in the model that is kept: a checkpoint's, or a federation's."""
    checkpoint, model = folder / "state/checkpoint.json", folder / "state/server.safetensors"
    if model.exists():
        content = model.read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return int(header["__metadata__"]["rounds"])
    return json.loads(checkpoint.read_bytes())["rounds"] if checkpoint.exists() else 0


def of_kind(events: Sequence[Any], kind: type) -> Iterator[Any]:
    return (event for event in events if isinstance(event, kind))


def require_published(case: Case, folder: Path, events: Sequence[Any]) -> None:
    """I2, before anybody repairs anything."""
    committed = {body["round"]: body["release"] for body in records(folder) if body["kind"] == "commit"}
    met = {event.round_index: event for event in of_kind(events, Met)}
    for event in of_kind(events, Published):
        t = event.round_index
        require(t in committed, f"I2: round {t} was seen by the world, and is not committed")
        require(same(met[t].release, met[t]) == committed[t], f"I2: the release of round {t} is another than was committed")
        held = release_of(folder, t)
        if held is None and (case.way.forgets or not case.keep_releases) and t < learnt(folder):
            continue
        whole = held is not None and hashlib.sha256(held).hexdigest() == committed[t]
        require(whole, f"I2: the release of round {t} was seen by the world, and is not on disk")


def require_noise_used_once(way: Way, events: Sequence[Any]) -> None:
    """I1, that a round's noise is not made again, and that each start draws new rows from a key of its own."""
    sums: dict[tuple[bytes, int], bytes] = {}
    rounds: dict[int, bytes] = {}
    owners: dict[bytes, int] = {}
    start = 0
    for event in events:
        start += isinstance(event, Started)
        if isinstance(event, Met):
            t, rows = event.round_index, event.rows if way.noise_by == "server" else ()
            require(bool(rows) or way.noise_by != "server", f"I1: round {t} has no noise")
            require(all(sums.setdefault(row, event.digest) == event.digest for row in rows), f"I1: twice in round {t}")
            require(rounds.setdefault(t, event.digest) == event.digest, f"I3: round {t} met noise twice, and is charged once")
            require(all(owners.setdefault(key, start) == start for key, _ in rows), f"I4: start {start} has no new key")
    gave = Counter((event.holder, event.round_index) for event in of_kind(events, Gave))
    require(set(gave.values()) <= {1}, "I1: a holder gave its noise of a round twice")
    shares = Counter(event.noise for event in of_kind(events, Shared))
    require(set(shares.values()) <= {1}, "I1: a client used its share of the noise twice")
    digests: dict[tuple[str, int], bytes] = {}
    for event in of_kind(events, Opened):
        first = digests.setdefault((event.holder, event.round_index), event.digest)
        require(first == event.digest, f"I1: {event.holder} opened two sums of round {event.round_index}")


def require_charged(case: Case, events: Sequence[Any], bodies: Sequence[Body]) -> None:
    """I3: of what left, of what noise has met, and of what the run says of itself."""
    begun = [body for body in bodies if body["kind"] == "begin"]
    require([body["round"] for body in begun] == list(range(len(begun))), "I3: rounds are not charged once, in order")
    met = 0
    for event in events:
        if isinstance(event, Met):
            met = max(met, event.round_index + 1)
            require(len(begun) >= met, f"I3: round {event.round_index} met its noise, and is not charged")
        if isinstance(event, Met | Asked):
            require(event.charged, f"I3: round {event.round_index} was charged too late")
        if isinstance(event, Asked):
            require(len(begun) > event.round_index, f"I3: round {event.round_index} was asked for, and is not charged")
        if isinstance(event, Published):
            require(event.committed, f"I2: round {event.round_index} left before it was committed")
            require(event.epsilon >= case.epsilons[met], "I3: the stated epsilon is too low")
    ended = sum(body["kind"] == "abort" for body in bodies)
    require(ended < sum(1 for _ in of_kind(events, Started)), "a start aborted more than one round")


def require_participation_kept(way: Way, events: Sequence[Any], folder: Path) -> None:
    """I5: by the names in the ledger, which stand for clients one to one; aborted rounds count."""
    participation = way.mechanism.participation
    if not isinstance(participation, MinSeparation | FixedEpochs):
        return
    begun = cohorts(folder / "ledger.jsonl")
    named, took_part = dict[str, set[int]](), dict[int | str, set[int]]()
    for event in of_kind(events, Met):
        require(len(begun[event.round_index]) == len(event.cohort), "I5: a participation is not counted")
        for name, client in zip(begun[event.round_index], event.cohort, strict=True):
            named.setdefault(name, set()).add(event.round_index)
            took_part.setdefault(client, set()).add(event.round_index)
    # One to one: as many names as clients, and the same sets of rounds.
    require(sorted(map(sorted, named.values())) == sorted(map(sorted, took_part.values())), "I5: names are not clients")
    for event in of_kind(events, Asked):
        require(len(begun[event.round_index]) == event.clients, "I5: somebody was asked whose participation is not counted")
    joined: dict[str, list[int]] = {}
    for t, clients in enumerate(begun):
        for name in clients:
            joined.setdefault(name, []).append(t)
    for rounds in joined.values():
        gaps = {later - earlier for earlier, later in itertools.pairwise(rounds)}
        if isinstance(participation, MinSeparation):
            kept = len(rounds) <= participation.max_participations and min(gaps, default=10**9) >= participation.min_separation
        else:
            kept = len(rounds) <= participation.epochs and all(gap % participation.rounds_per_epoch == 0 for gap in gaps)
        require(kept, f"I5: a client took part in rounds {rounds}")


def require_clip_norms(way: Way, events: Sequence[Any], bodies: Sequence[Body]) -> None:
    """I6, by the formulas of Andrew et al. 2021, https://arxiv.org/abs/1905.03871; an aborted round moves nothing."""
    releases = {event.round_index: event.release for event in of_kind(events, Met)}
    norms = {event.round_index: event.clip_norm for event in of_kind(events, Met)}
    committed = {body["round"] for body in bodies if body["kind"] == "commit"}
    rule = way.clipping
    clip_norm = rule.initial_clip_norm if isinstance(rule, AdaptiveClipping) else rule
    for body in (body for body in bodies if body["kind"] == "begin"):
        t, bound, scale = body["round"], clip_norm, 0.0
        if isinstance(rule, AdaptiveClipping):
            z = way.mechanism.noise_multiplier
            deviation = max(way.cohort / 20, z)
            of_updates = (z**-2 - (2 * deviation) ** -2) ** -0.5
            scale, bound = of_updates * clip_norm / deviation, clip_norm * of_updates / z
        require(math.isclose(body["clip_norm"], bound, rel_tol=1e-12), f"I6: clip norm {body['clip_norm']} in round {t}")
        require(norms.get(t, body["clip_norm"]) == body["clip_norm"], f"I6: round {t} was charged for another clip norm")
        if isinstance(rule, AdaptiveClipping) and t in committed:
            fraction = min(max(float(releases[t][-1]) / scale / way.cohort + 0.5, 0.0), 1.0)
            clip_norm *= math.exp(-rule.clip_norm_learning_rate * (fraction - rule.target_quantile))


@cache
def z_row(key: bytes, index: int, dim: int) -> np.ndarray:
    return SecureSource(key).row(index, dim).numpy()


@cache
def _noising(case: Case) -> np.ndarray:
    """From z to the noise of sums, per unit of clip norm."""
    return case.way.mechanism.stddev * noising_matrix(case.way.mechanism.strategy)


def drawn_again(case: Case, keys: Sequence[bytes], firsts: Sequence[int], rounds: int, dim: int) -> np.ndarray:
    """The noise of the first rounds from the keys of the starts and the first row of each, per unit of clip norm."""
    N = _noising(case)[:rounds]
    needed = np.flatnonzero(N.any(axis=0))
    owners = [max(e for e, first in enumerate(firsts) if first <= i) for i in needed]
    z = np.array([z_row(keys[owner], int(i), dim) for owner, i in zip(owners, needed, strict=True)]).reshape(-1, dim)
    return N[:, needed] @ z


def require_right_noise(case: Case, folder: Path, events: Sequence[Any], bodies: Sequence[Body]) -> None:
    """I4: every release is its sum plus the noise that the keys give."""
    met = {event.round_index: event for event in of_kind(events, Met)}
    committed = {body["round"]: body["release"] for body in bodies if body["kind"] == "commit"}
    require(set(committed) <= set(met), "I4: a round was committed without noise")
    for t, digest in committed.items():
        held = release_of(folder, t)
        kept = held is None or hashlib.sha256(held).hexdigest() == digest
        require(kept and same(met[t].release, met[t]) == digest, f"I2: the release of round {t} was changed")
    for event in of_kind(events, Again):
        t = event.round_index
        require(t in committed and same(event.release, met[t]) == committed[t], f"I2: round {t} came back as another release")
    epochs = [body["first_row"] for body in bodies if body["kind"] == "epoch"]
    keys = [(folder / f"state/keys/epoch-{number}").read_bytes() for number in range(len(epochs))]
    require(len(set(keys)) == len(keys), "I4: two starts have one key")
    match case.way.noise_by:
        case "server":
            dim = DIM + isinstance(case.way.clipping, AdaptiveClipping)
            noise = drawn_again(case, keys, epochs, max(met, default=-1) + 1, dim)
            for t in committed:
                added = _steps(met[t]) - met[t].total.numpy()
                off = np.abs(added - noise[t] * met[t].clip_norm / _step(met[t])).max()
                # Rounded to whole steps; the order of additions moves the last bits of what is rounded.
                require(off <= 0.5 + 1e-4, f"I4: the release of round {t} is not its sum and the noise of its keys")
        case "holders":
            _require_noise_of_holders(case, folder, events, {t: met[t] for t in committed})
        case "clients":
            shares = Counter(event.round_index for event in of_kind(events, Shared))
            for t in committed:
                require(np.array_equal(_steps(met[t]), met[t].total.numpy()), f"I4: round {t} is not the sum of what was sent")
                require(shares[t] >= len(met[t].cohort), f"I4: a share of the noise is missing in round {t}")


def _require_noise_of_holders(case: Case, folder: Path, events: Sequence[Any], met: Mapping[int, Met]) -> None:
    gave = {(event.holder, event.round_index): np.array(event.steps) for event in of_kind(events, Gave)}
    places = sorted(path.parent for path in folder.with_name("parties").rglob("noise.json"))
    require(len(places) == 3, f"I4: {len(places)} holders keep noise")
    for number, place in enumerate(places, start=1):
        told = json.loads((place / "noise.json").read_bytes())
        keys = [(place / f"keys/epoch-{i}").read_bytes() for i in range(len(told["first_rows"]))]
        require(len(set(keys)) == len(keys), "I4: two starts of a holder have one key")
        noise = drawn_again(case, keys, told["first_rows"], max(met, default=-1) + 1, DIM)
        for t, event in met.items():
            off = np.abs(gave[f"holder {number}", t] - noise[t] * event.clip_norm / _step(event)).max()
            require(off <= 0.5 + 1e-4, f"I4: holder {number} gave other noise in round {t} than its keys give")
    for t, event in met.items():
        added = sum(gave[f"holder {number}", t] for number in (1, 2, 3))
        require(np.array_equal(_steps(event) - event.total.numpy(), added), f"I4: round {t} lacks the noise of a holder")


def _step(met: Met) -> float:
    return Lattice(met.clip_norm, met.bits).step


def _steps(met: Met) -> np.ndarray:
    return met.release.numpy() / _step(met)


def require_learnt(way: Way, model: Sequence[float] | np.ndarray, events: Sequence[Any], bodies: Sequence[Body]) -> None:
    """The model is what the committed releases make of the first one, which is 0."""
    releases = {event.round_index: event.release.numpy()[:DIM] for event in of_kind(events, Met)}
    made = sum((releases[body["round"]] for body in bodies if body["kind"] == "commit"), np.zeros(DIM)) / way.cohort
    require(np.allclose(model, made, rtol=1e-4, atol=1e-4), "the model is not what the releases make")


def judge(case: Case, folder: Path, events: Sequence[Any], model: Sequence[float] | np.ndarray) -> None:
    """Hold all that happened, and the model of the last start, against the folder."""
    bodies = records(folder)
    require_published(case, folder, events)
    require_noise_used_once(case.way, events)
    require_charged(case, events, bodies)
    require_participation_kept(case.way, events, folder)
    require_clip_norms(case.way, events, bodies)
    require_right_noise(case, folder, events, bodies)
    require_learnt(case.way, model, events, bodies)


def judged(case: Case, root: Path, run: str, events: Sequence[Any], seed: int, rounds: int = 2) -> bool:
    """Go on with a run on a disk that lost its power, and judge it; ``False`` where it refused, before noise met a sum."""
    folder = root / run
    require_published(case, folder, events)
    after = list(events)
    try:
        model = go(case, Disk(root), folder, seed, after.append, rounds)
    except FAILURES as error:
        if any(of_kind(events, Met)):
            raise Violation(f"the run cannot go on: {error}") from error
        return False
    judge(case, folder, after, model)
    return True
