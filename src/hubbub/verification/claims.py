"""The claims about a run that verification checks: each is computed again from the files of the folder."""

import hashlib
import math
import os
import stat
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hubbub._util import files, strict_json
from hubbub._util.files import refusing
from hubbub.accounting import rounded_up
from hubbub.accounting.statement import no_less
from hubbub.accounting.wording import count
from hubbub.ledger.actual_cost import Breaches, Recorded, Spent, breaches
from hubbub.ledger.chain import Chain, read_chain
from hubbub.ledger.history import History
from hubbub.ledger.ledger import keyed_digest
from hubbub.ledger.participations import cohorts_path
from hubbub.ledger.promise import Promise
from hubbub.noise.lattice import Lattice
from hubbub.training import RunStore
from hubbub.training.clipping import AdaptiveClipping, ClipNorms
from hubbub.training.evaluation import evaluation_promise
from hubbub.training.moments import read_moments
from hubbub.training.run_folder import EVALUATION, NORMALIZATION
from hubbub.training.run_folder.record import Traces, ledger_of, read_metrics
from hubbub.training.run_folder.state import START, Checkpoint, Start, begins_with, metadata, model_digest, parse
from hubbub.training.warm_start import breaks, origin_words

# Other versions of the same formulas may differ by this much.
_TOLERANCE = 1e-9
# Letters of a shown difference.
_SHOWN = 80
_MODEL, _SERVER = "model.safetensors", "state/server.safetensors"
# A claim that is checked: yields what is wrong, in words, and returns what a run without faults has; ``None`` for a run to
# which the claim does not apply.
Claim = Generator[str, None, str | None]


@dataclass(frozen=True)
class Run:
    """A run's folder, and what its ledger says."""

    folder: Path
    chain: Chain
    history: History
    promise: Promise
    cost: Spent
    broken: Breaches

    @property
    def store(self) -> RunStore:
        """The folder's keys, releases and checkpoints."""
        return RunStore(self.folder)


def _rounds(run: Run) -> Claim:
    """There are no more rounds than promised, each with key and clip norm as promised."""
    states = [entry.state for entry in run.history.rounds]
    counted = ", ".join(f"{states.count(state)} {state}" for state in ("committed", "aborted", "begun") if state in states)
    incarnations = count(len(run.history.epochs), "incarnation")
    detail = f"{len(states)} of {run.promise.rounds} rounds recorded ({counted or '0 committed'}) in {incarnations}"
    unkeyed = [t for t, entry in enumerate(run.history.rounds) if entry.epoch is None and not run.promise.simulation]
    without = [f"round {unkeyed[0]} is of no incarnation"] if unkeyed else []
    for broken in (*run.broken.of_rounds, *without):
        yield f"{detail}; ledger.jsonl: {broken}"
        return None
    return detail + ("; simulation, not for release" if run.promise.simulation else "")


def _traces(run: Run) -> Claim:
    """No file tells of more than the ledger."""
    found = list(Traces.of(run.store, digests=False).unknown(run.promise, run.chain, run.history))
    if found:
        more = f"; and {len(found) - 3} more" if found[3:] else ""
        step = "the ledger was rolled back: restore the newest state of the whole folder, and do not resume this one"
        yield f"{'; '.join(found[:3])}{more}; {step}"
    return "no file of the folder tells of more rounds than the ledger"


def _promise(run: Run) -> Claim:
    """The numbers of the promise, computed again from the strategy."""
    promise, stated = run.promise, run.chain.records[0]
    key = stated.get("key")
    if not isinstance(key, str) or len(key) != 64:
        yield f"key = {str(key)[:80]!r}: must be 64 hexadecimal digits"
    yield from _differences({"kind": "promise", "key": key, **promise.record()}, stated)
    if promise.mechanism is None:
        return "nothing is promised: epsilon is infinite"
    again = promise.after(promise.rounds, promise.delta)
    sensitivity = f"sensitivity {rounded_up(again.l2_sensitivity or 0.0)} of {again.sensitivity_of}"
    detail = f"{sensitivity}, noise multiplier {promise.mechanism.noise_multiplier:.6g}, epsilon {rounded_up(again.epsilon)}"
    return f"computed again from the strategy: {detail}"


def _participation(run: Run) -> Claim:
    """Each client's rounds are of the promised pattern."""
    mechanism, unit, joined = run.promise.mechanism, run.promise.privacy_unit, run.history.participations
    if mechanism is None:
        return "nothing is promised"
    if not joined.clients:
        devices = run.promise.terms.pattern_kept_by == "devices"
        who = "each device enforces the pattern itself" if devices else "cohorts are drawn at random, each client in secret"
        unseen = f"not checked: {who}, and the ledger has no list of participants"
        return "nobody took part yet" if run.promise.lists_clients else unseen
    for broken in run.broken.of_clients:
        yield f"{broken}; the actual epsilon is {rounded_up(run.cost.happened.epsilon)}"
    most = count(int(joined.counts.max()), "round")
    return f"{joined.clients} {unit}s, each in at most {most}, kept {mechanism.participation}"


def _releases(store: RunStore, promise: Promise, history: History) -> Claim:
    """Every committed release has its digest and lies on the lattice."""
    parameters = promise.terms.parameters
    all_kept = promise.terms.keep_releases and not history.forgets
    dim = None if parameters is None else parameters + promise.terms.adaptive
    on_lattice = not promise.simulation and promise.mechanism is not None
    needed = {t for t, entry in enumerate(history.rounds) if entry.state == "committed"}
    kept = set(store.released())
    if all_kept and (missing := needed - kept):
        yield f"the release of round {min(missing)} is missing"
    for t in sorted(kept & needed):
        content, entry = store.release_content(t), history.rounds[t]
        if hashlib.sha256(content).hexdigest() != entry.release:
            yield f"the release of round {t} is not the committed one"
            continue
        release, clip_norm = store.parse_release(t, content, dim), entry.clip_norm
        if on_lattice and (clip_norm is None or not Lattice(clip_norm, promise.lattice_bits).holds(release)):
            yield f"the release of round {t} is off the lattice of its clip_norm = {clip_norm} in ledger.jsonl"
    beyond = f"; {len(kept - needed)} more are of no committed round" if kept - needed else ""
    others = "" if all_kept else " (others were not kept)"
    checked = f"{len(kept & needed)} releases, each as its digest in the ledger{others}"
    return f"{checked if all_kept or kept & needed else 'not checked: none was kept'}{beyond}"


def _clip_norms(run: Run) -> Claim:
    """An adaptive clip norm follows in each round from the releases before, as far as they are kept."""
    rule, mechanism, rounds = run.promise.terms.adaptive_clipping, run.promise.mechanism, run.history.rounds
    if mechanism is None or rule is None:
        return None
    norms = ClipNorms(AdaptiveClipping(**rule), mechanism.noise_multiplier, run.promise.settings["expected_cohort_size"])
    store, clip_norm = run.store, norms.first
    kept, followed = set(store.released()), 0
    for t, entry in enumerate(rounds):
        if clip_norm is None:
            # After a release that was not kept: the clip norm in the ledger.
            clip_norm = (entry.clip_norm or math.nan) / norms.bound(1.0)
        if not _equal(entry.clip_norm, norms.bound(clip_norm)):
            yield f"round {t} has {entry.clip_norm!r} in ledger.jsonl, from the releases {norms.bound(clip_norm)!r}"
            return None
        if entry.state == "committed":
            release = store.parse_release(t, store.release_content(t)) if t in kept else None
            clip_norm = None if release is None else norms.following(clip_norm, release)
            followed += release is not None
    return f"each follows from the releases before it ({followed} of {len(rounds)} rounds were followed)"


def _start(run: Run) -> Claim:
    """The initial model is the one that the promise names."""
    stated = run.promise.terms.initial_model
    if stated is None or not os.path.lexists(run.folder / START):
        return None
    start = Start.read(run.folder)
    # A finished run's model begins every warm start, and no other run.
    if model_digest(start.model) != stated or start.finished != (run.promise.terms.extends is not None):
        yield f"{START} is not the initial model of the ledger"
    return f"{START} is the initial model of the ledger"


def _continuity(run: Run) -> Claim:
    """A warm start has the model of the finished run that it names, and counts that run's cost."""
    if found := origin_words(run.folder, run.promise):
        yield from breaks(run.folder, run.promise)
        return found
    if os.path.lexists(run.folder / START) and (why := begins_with(None, Start.read(run.folder))):
        yield f"{run.folder / START}: {why}"
    return None


def _evaluation(run: Run) -> Claim:
    """The private evaluations are those that the run's cost includes."""
    rounds, own = len(run.history.rounds), run.folder / EVALUATION
    counted, expected = run.promise.evaluations(rounds), evaluation_promise(run.promise, run.chain.hashes[0])
    if counted is None or expected is None:
        if os.path.lexists(own):
            yield f"there is {EVALUATION}, but the run promises no private evaluation"
        return None
    if not (rounds or os.path.lexists(own / "ledger.jsonl")):
        return "no round was begun, and so no evaluation"
    found = read_chain(ledger_of(own))
    stated, past = Promise.from_record(found.records[0], {}), History.of_chain(found)
    if stated.record() != expected.record():
        yield "its ledger is not of this run, or has another promise"
    if len(past.rounds) > counted[1]:
        yield f"{len(past.rounds)} evaluations were started, the {rounds} rounds allow {counted[1]}"
    yield from breaches(stated, past).words
    for trace in Traces.of(RunStore(own), digests=False).unknown(stated, found, past):
        yield f"{trace}: the ledger was rolled back"
    yield from _releases(RunStore(own), stated, past)
    return f"{len(past.rounds)} of {expected.rounds} evaluations, each after its rounds and with its release as on record"


def _normalization(run: Run) -> Claim:
    """The means and variances of its inputs were released by an earlier run that is counted."""
    named, own = run.promise.settings.get("data.normalization"), run.folder / NORMALIZATION
    counted = tuple(earlier for earlier in run.promise.earlier if earlier.first == named)
    if named is not None and not counted:
        yield f"the cost of the run of ledger {str(named)[:16]}, which released means and variances, is not counted"
    elif os.path.lexists(own):
        held: list[Recorded] = []
        # Since it was counted it may have been closed.
        (cost,) = read_moments(own, held.append).charges
        if [replace(earlier, head=cost.head) for earlier in counted if earlier.head in held[0].chain.hashes] != [cost]:
            yield f"{NORMALIZATION} holds another run than the one that is counted"
    return None if named is None else "by means and variances of a run of its own, whose cost is counted"


def _secrets(run: Run) -> Claim:
    """Keys are those of the ledger, readable by their owner only; a closed run has none."""
    store, history, ledger = run.store, run.history, run.store.ledger_path
    kept = store.secret_files()
    for path in filter(os.path.lexists, (*kept, ledger, cohorts_path(ledger))):
        if stat.S_IMODE(path.lstat().st_mode) & 0o077:
            yield f"{path.relative_to(store.folder)} is readable by others; change its mode to 0600"
            return None
    if history.closed:
        for path in kept[:1]:
            yield f"{path.relative_to(store.folder)} is still there; close the run again"
        return "the keys were destroyed"
    drawn = [epoch.key for epoch in history.epochs if epoch.key is not None]
    if len(set(drawn)) != len(drawn):
        yield "two incarnations used one noise key"
    if store.has_keys():
        yield from _keys(store, run.chain, history)
    keys = f"{count(len(drawn), 'noise key')}, a new one in each incarnation"
    files_kept = f"{keys}; {len(kept)} secret files that only the owner reads"
    if run.promise.simulation or run.store.has_keys() or history.next_round >= run.promise.rounds:
        return files_kept
    return f"{files_kept}; state/keys/run is gone, and without it this run cannot be resumed: restore it, or close the run"


def _keys(store: RunStore, chain: Chain, history: History) -> Iterator[str]:
    """Keys that are not those of the ledger, in words."""
    secret = store.secret()
    if keyed_digest(secret, "key", secret) != chain.records[0].get("key"):
        yield "state/keys/run is not the key of the ledger"
        return
    for number, epoch in enumerate(history.epochs):
        if epoch.key is not None and keyed_digest(secret, "key", store.noise_key(number)) != epoch.key:
            yield f"state/keys/epoch-{number} is not the noise key of that incarnation"
    store.unseal_noise(secret, chain)


def _checkpoint(run: Run) -> Claim:
    """The checkpoint is complete; a closed run does not resume and needs none."""
    path, kept = run.folder / "state" / "checkpoint.json", run.store.released()
    if run.history.closed:
        return None
    if os.path.lexists(path):
        return f"{path.relative_to(run.folder)} holds the state after {count(Checkpoint(path, again=False).rounds, 'round')}"
    gone = any(entry.state == "committed" and t not in kept for t, entry in enumerate(run.history.rounds))
    if gone and not os.path.lexists(run.folder / _SERVER):
        yield f"{path.relative_to(run.folder)} is missing, and not every release before it is there; restore it"
    return None


def _epsilon(run: Run) -> Claim:
    """The cost of what happened is at most the promise, and guarantee and metrics state the costs of the ledger."""
    promise, begun, guarantee = run.promise, len(run.history.rounds), run.folder / "guarantee.json"
    there = os.path.lexists(guarantee)
    promised = promise.after(promise.rounds, promise.delta)
    if run.cost.worse:
        yield from run.cost.warnings()[:1]
    # A run by ``train`` alone has no such file; others have it from the start.
    stated_once = any(record.get("kind") == "files" for record in run.chain.records)
    if there or stated_once or any(os.path.lexists(run.folder / name) for name in ("config.toml", _SERVER)):
        with refusing(guarantee, "is no guarantee"):
            stated = strict_json.loads(files.read(guarantee, at_most=2**20))
            versions = stated.get("versions") if isinstance(stated, Mapping) else None
            # Versions may be others than today's.
            named = isinstance(versions, Mapping) and all(isinstance(v, str) and v.isprintable() for v in versions.values())
            computed = promised.as_json() | {"versions": versions if named else "names and versions of libraries"}
            yield from (f"guarantee.json: {difference}" for difference in _differences(computed, stated))
    rows, _ = read_metrics(run.folder / "metrics.jsonl")
    for row in rows[-1:]:
        shown, last = row["epsilon"], row["round_index"]
        after = promise.after(min(last + 1, promise.rounds), promise.delta).epsilon
        if not _equal(math.inf if shown is None else shown, after):
            yield f"metrics.jsonl: epsilon = {shown!r} after round {last}, computed again it is {after!r}"
    so_far, whole = rounded_up(run.cost.guarantee.epsilon), rounded_up(promised.epsilon)
    together = f" and {count(len(promise.earlier), 'earlier run')}" if promise.earlier else ""
    spent_so_far = f"{so_far} for the {begun} recorded rounds{together}"
    as_stated = "as stated" if there else "and no guarantee.json states another"
    return f"{spent_so_far}, {whole} for all {promise.rounds}, at delta {no_less(promise.delta)}, {as_stated}"


def _model(run: Run) -> Claim:
    """The model is complete, and names a head of the ledger."""
    if not os.path.lexists(run.folder / _MODEL):
        return None
    with refusing(run.folder / _MODEL, "is no model"):
        content = files.read(run.folder / _MODEL, at_most=2**36)
        parse(content)
        head = metadata(content).get("ledger_head")
    if head not in run.chain.hashes:
        yield f"{_MODEL} was released under no head of this ledger"
    return f"{_MODEL} was released under a head of this ledger"


def _files(run: Run) -> Claim:
    """Model, settings and guarantee are those whose digests the ledger has."""
    folder, history = run.folder, run.history
    bound, made = history.files or {}, [name for name in (_MODEL, _SERVER) if os.path.lexists(folder / name)]
    # The model of a federation is written after each round, and bound after the last one of an incarnation.
    unbound = [name for name in made if name not in bound and (name == _MODEL or history.next_round >= run.promise.rounds)]
    if unbound:
        again = f"hubbub resume {folder}" if unbound == [_MODEL] else "start its ServerApp again"
        yield f"{unbound[0]} is bound by no record of the ledger; {again} makes the record"
    if history.files is None:
        ended = "was closed before it had a model" if history.closed else "has not made its model yet"
        if history.next_round >= run.promise.rounds and not history.closed:
            ended = "is over, and its own loop keeps the model"
        return f"the run {ended}: no record of the ledger binds model, settings or guarantee"
    yield from run.store.changed(bound)
    return f"byte for byte what the ledger binds: {', '.join(sorted(bound))}"


# By name, in the order in which they depend on one another.
CLAIMS: Mapping[str, Callable[[Run], Claim]] = {
    "rounds": _rounds,
    "traces": _traces,
    "promise": _promise,
    "participation": _participation,
    "releases": lambda run: _releases(run.store, run.promise, run.history),
    "clip norms": _clip_norms,
    "start": _start,
    "continuity": _continuity,
    "evaluation": _evaluation,
    "normalization": _normalization,
    "secrets": _secrets,
    "checkpoint": _checkpoint,
    "epsilon": _epsilon,
    "model": _model,
    "files": _files,
}


def _differences(computed: Any, stated: Any, name: str = "") -> Iterator[str]:
    """The differences between stated and computed values: numbers to nine digits, all else exactly."""
    if isinstance(computed, Mapping) and isinstance(stated, Mapping):
        for key in sorted({*computed, *stated}, key=str):
            yield from _differences(computed.get(key), stated.get(key), f"{name}.{key}" if name else str(key))
        return
    if isinstance(computed, list | tuple) and isinstance(stated, list) and len(computed) == len(stated):
        for number, (own, theirs) in enumerate(zip(computed, stated, strict=True)):
            yield from _differences(own, theirs, f"{name}[{number}]")
        return
    alike = type(computed) is type(stated) and computed == stated
    if alike or (isinstance(computed, float) and _equal(stated, computed)):
        return
    theirs, own = str(stated), str(computed)
    # Long values from a little before the first difference.
    same = next((i for i, pair in enumerate(zip(theirs, own, strict=False)) if pair[0] != pair[1]), min(len(theirs), len(own)))
    start = max(0, same - 20) if max(len(theirs), len(own)) > _SHOWN else 0
    theirs, own = (("…" if start else "") + text[start : start + _SHOWN] for text in (theirs, own))
    yield f"{name or 'it'} is stated as {theirs!r}, computed again it is {own!r}"


def _equal(stated: object, computed: float) -> bool:
    """Whether a number equals the computed one to nine digits; JSON may have an integer in place of a float."""
    if isinstance(stated, bool) or not isinstance(stated, int | float):
        return False
    try:
        return stated == computed or math.isclose(stated, computed, rel_tol=_TOLERANCE)
    except OverflowError:
        return False
