"""Verification of a run's folder: each claim is computed again from the files, without running code that they name.

Whoever can write to the folder can forge a consistent one, so a verdict is as good as the head of the ledger that was kept
elsewhere. For a published folder it proves only that the files are those that were published under a head.
"""

import hashlib
import math
import os
import stat
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubbub._util import files, strict_json
from hubbub._util.ssh_signatures import PublicKey, public_keys, require_signed
from hubbub.accounting import rounded_up
from hubbub.accounting.statement import no_less
from hubbub.errors import ConfigError, HubbubError, LedgerError, RunFolderError
from hubbub.ledger.actual_cost import Spent, breaches, spent
from hubbub.ledger.chain import Chain, read_chain, record_hash
from hubbub.ledger.history import History, published_files
from hubbub.ledger.ledger import key_digest
from hubbub.ledger.participations import cohorts_path
from hubbub.ledger.promise import Promise
from hubbub.mechanism.strategies.record import strategy_arrays
from hubbub.noise.lattice import Lattice
from hubbub.training import RunStore
from hubbub.training.clipping import AdaptiveClipping, ClipNorms
from hubbub.training.evaluation import evaluation_promise
from hubbub.training.run_folder import EVALUATION
from hubbub.training.run_folder.record import key_ahead, ledger_of, read_metrics, unknown_releases
from hubbub.training.run_folder.state import START, Checkpoint, Start, begins_with, metadata, model_digest, parse
from hubbub.training.warm_start import breaks, origin_words
from hubbub.verification.kept_heads import compared, kept_lines

__all__ = ["PUBLICATION", "SIGNATURE", "Check", "Verdict", "verify"]

# The last record of a published run's ledger, with the digests of the published files.
PUBLICATION = "published.json"
# The publisher's signature of it, if there is one.
SIGNATURE = f"{PUBLICATION}.sig"

# Other versions of the same formulas may differ by this much.
_TOLERANCE = 1e-9
# Letters of a shown difference.
_SHOWN = 80
_MODEL, _SERVER = "model.safetensors", "state/server.safetensors"
# A claim that is checked: yields what is wrong, in words, and returns what a run without faults has; ``None`` for a run to
# which the claim does not apply.
_Claim = Generator[str, None, str | None]


@dataclass(frozen=True)
class Check:
    """One claim about a run.

    Args:
        name: The claim, in a word.
        ok: Whether it passes.
        detail: The finding, in one line.
    """

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Verdict:
    """The checks of a run.

    Args:
        checks: In the order in which they depend on one another.
        head: The hash of the ledger's last record; ``None`` if the ledger cannot be read.
        epsilon: The cost of the recorded rounds; ``None`` if it cannot be computed from the record.
        delta: The delta of that epsilon.

    Example:
        >>> found = Verdict((Check("ledger", True, "12 records"), Check("model", False, "was changed")), "ab12", 2.0, 1e-5)
        >>> found.ok, [check.name for check in found.checks if not check.ok]
        (False, ['model'])
    """

    checks: tuple[Check, ...]
    head: str | None
    epsilon: float | None
    delta: float | None

    @property
    def ok(self) -> bool:
        """Whether every check passes."""
        return all(check.ok for check in self.checks)


@dataclass(frozen=True)
class _Run:
    """A run's folder, and what its ledger says."""

    folder: Path
    chain: Chain
    history: History
    promise: Promise
    cost: Spent

    @property
    def store(self) -> RunStore:
        return RunStore(self.folder)


def verify(
    folder: str | Path, head: str | None = None, *, heads: str | Path | None = None, signer: str | Path | None = None
) -> Verdict:
    """The verdict on a run's folder, or on a published one; the folder is not changed.

    Args:
        folder: A run's folder, running, interrupted, finished or closed; or the output of ``hubbub publish``.
        head: A head of the ledger that was kept elsewhere; for a published folder the one that ``hubbub publish`` printed.
        heads: A file of lines from a head hook, or of bare heads; for a run's folder only.
        signer: A file of public keys, one of which must have signed each line of ``heads``, or the publication.

    Raises:
        RunFolderError: The folder is neither a run nor published.
        ConfigError: Heads for a published folder, a signer without heads, or a list that cannot be read.
        KeyFileError: The signer's file is not a list of public keys.

    Example:
        >>> import tempfile, torch, hubbub
        >>> mechanism = hubbub.calibrate(rounds=2, participation=hubbub.PoissonSampling(0.5), epsilon=4.0, delta=1e-5)
        >>> clients = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long)) for _ in range(20)]
        >>> population = hubbub.SimulatedPopulation(clients, torch.nn.functional.cross_entropy)
        >>> store = hubbub.RunStore(Path(tempfile.mkdtemp()) / "run")
        >>> *_, last = hubbub.train(hubbub.Plan(mechanism, 1.0, 1e-5), population, torch.nn.Linear(3, 2), store)
        >>> verdict = verify(store.folder, head=last.head)
        >>> verdict.ok, verdict.epsilon <= 4.0
        (True, True)
    """
    folder, keys = Path(folder), None if signer is None else public_keys(Path(signer))
    if not os.path.lexists(folder / "ledger.jsonl") and os.path.lexists(folder / PUBLICATION):
        if heads is not None:
            raise ConfigError(
                f"heads = {str(heads)!r}: are compared with a run's own folder, and {folder} was published from one"
            )
        return _published(folder, head, keys)
    if keys is not None and heads is None:
        raise ConfigError(f"signer = {str(signer)!r}: checks signatures of kept heads or of a publication; name heads, too")
    kept = None if heads is None else kept_lines(Path(heads))
    ledger, checks = ledger_of(folder), list[Check]()
    try:
        chain = read_chain(ledger)
        torn = f"; a crash left {len(chain.torn)} bytes behind them, which resume removes" if chain.torn else ""
        found = f"{len(chain.records)} records, each bound to all before it, head {chain.head}{torn}"
        checks.append(Check("chain", True, found))
        if head is not None:
            checks += _checked("head", _kept_head(chain, head))
        history = History.of_chain(chain)
        if kept is not None:
            checks += _checked("heads", _kept_heads(chain, RunStore(folder).evaluation().ledger_path, kept, keys))
        promise = Promise.from_record(chain.records[0], RunStore(folder).load_strategy())
        run = _Run(folder, chain, history, promise, spent(promise, history))
        for name, claim in _CLAIMS.items():
            checks += _checked(name, claim(run))
        checks.append(Check("coverage", True, _coverage(run, compared=head is not None or kept is not None)))
    except (HubbubError, ValueError, TypeError, OverflowError) as error:
        where = "" if "ledger.jsonl" in str(error) or "safetensors" in str(error) else "ledger.jsonl: "
        checks.append(Check("record", False, f"{where}{error}; checks that depend on it were not made"))
        return Verdict(tuple(checks), None, None, None)
    return Verdict(tuple(checks), chain.head, run.cost.guarantee.epsilon, promise.delta)


def _checked(name: str, claim: _Claim) -> Iterator[Check]:
    """The check of a claim, if it applies; a file that cannot be read is a fault."""
    faults, found = list[str](), None
    try:
        while True:
            faults.append(next(claim))
    except StopIteration as end:
        found = end.value
    except HubbubError as error:
        faults.append(str(error))
    if faults or found is not None:
        yield Check(name, not faults, "; ".join(faults[:3]) or str(found))


def _kept_head(chain: Chain, head: str) -> _Claim:
    """The kept head is in the chain."""
    try:
        chain.require_head(head)
    except LedgerError as error:
        yield str(error)
        return None
    since = len(chain.hashes) - 1 - chain.hashes.index(head.lower())
    return f"the kept head is in the ledger, {since} records before its end"


def _kept_heads(chain: Chain, evaluations: Path, kept: Sequence[bytes], keys: Collection[PublicKey] | None) -> _Claim:
    """The heads from a hook are in the chain, or in that of the private evaluations, and signed."""
    chains = [chain, *([read_chain(evaluations)] if os.path.lexists(evaluations) else [])]
    faults, reached = compared(chains, kept, keys)
    yield from faults
    by = "no signature was checked (--signer)" if keys is None else "each is signed by a given key"
    ends = zip(reached, chains, ("rounds", "evaluations"), strict=False)
    of = "the last after " + " and ".join(f"{last} of {own.rounds_at(own.head)} {what}" for last, own, what in ends)
    return f"{_count(len(kept), 'kept head')} in the ledger, in order, {of}; {by}"


def _rounds(run: _Run) -> _Claim:
    """There are no more rounds than promised, each with key and clip norm as promised."""
    states = [entry.state for entry in run.history.rounds]
    counted = ", ".join(f"{states.count(state)} {state}" for state in ("committed", "aborted", "begun") if state in states)
    incarnations = _count(len(run.history.epochs), "incarnation")
    detail = f"{len(states)} of {run.promise.rounds} rounds recorded ({counted or '0 committed'}) in {incarnations}"
    for broken in breaches(run.promise, run.history).of_rounds:
        yield f"{detail}; ledger.jsonl: {broken}"
        return None
    return detail + ("; simulation, not for release" if run.promise.simulation else "")


def _promise(run: _Run) -> _Claim:
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
    detail = f"{sensitivity}, noise {promise.mechanism.stddev:.6g}, epsilon {rounded_up(again.epsilon)}"
    return f"computed again from the strategy: {detail}"


def _participation(run: _Run) -> _Claim:
    """Each client's rounds are of the promised pattern."""
    mechanism, unit, joined = run.promise.mechanism, run.promise.privacy_unit, run.history.participations
    if mechanism is None:
        return "nothing is promised"
    if not joined.clients:
        devices = run.promise.terms.pattern_kept_by == "devices"
        who = "each device enforces the pattern itself" if devices else "cohorts are drawn at random"
        return "nobody took part yet" if run.promise.lists_clients else f"{who}, and the ledger has no list of participants"
    broken = joined.breaking(mechanism.participation)
    for client in broken[:1]:
        yield (
            f"{len(broken)} {unit}s broke {mechanism.participation}, such as {joined.tag(client)} in rounds "
            f"{list(joined.rounds_of(client))}; the actual epsilon is {rounded_up(run.cost.happened.epsilon)}"
        )
    most = _count(int(joined.counts.max()), "round")
    return f"{joined.clients} {unit}s, each in at most {most}, kept {mechanism.participation}"


def _releases(store: RunStore, promise: Promise, history: History) -> _Claim:
    """Every committed release has its digest and lies on the lattice, and there are no others."""
    parameters = promise.terms.parameters
    all_kept = promise.terms.keep_releases and not history.forgets
    dim = None if parameters is None else parameters + promise.terms.adaptive
    on_lattice = not promise.simulation and promise.mechanism is not None
    needed = {t for t, entry in enumerate(history.rounds) if entry.state == "committed"}
    kept = set(store.released())
    if all_kept and (missing := needed - kept):
        yield f"the release of round {min(missing)} is missing"
    if unknown := unknown_releases(kept, [entry.state for entry in history.rounds]):
        yield f"there is a release of round {unknown[0]}, which the ledger does not have as committed"
    for t in sorted(kept & needed):
        content, entry = store.release_content(t), history.rounds[t]
        if hashlib.sha256(content).hexdigest() != entry.release:
            yield f"the release of round {t} is not the committed one"
            continue
        release, clip_norm = store.parse_release(t, content, dim), entry.clip_norm
        if on_lattice and (clip_norm is None or not Lattice(clip_norm, promise.lattice_bits).holds(release)):
            yield f"the release of round {t} is off the lattice of its clip_norm = {clip_norm} in ledger.jsonl"
    return f"{len(kept)} releases, each as its digest in the ledger{'' if all_kept else ' (others were not kept)'}"


def _clip_norms(run: _Run) -> _Claim:
    """An adaptive clip norm follows in each round from the releases before, as far as they are kept."""
    rule, mechanism, rounds = run.promise.terms.adaptive_clipping, run.promise.mechanism, run.history.rounds
    if mechanism is None or not isinstance(rule, Mapping):
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


def _start(run: _Run) -> _Claim:
    """The initial model is the one that the promise names."""
    stated = run.promise.terms.initial_model
    if stated is None or not os.path.lexists(run.folder / START):
        return None
    start = Start.read(run.folder)
    # A finished run's model begins every warm start, and no other run.
    if model_digest(start.model) != stated or start.finished != (run.promise.terms.extends is not None):
        yield f"{START} is not the initial model of the ledger"
    return f"{START} is the initial model of the ledger"


def _continuity(run: _Run) -> _Claim:
    """A warm start has the model of the finished run that it names, and counts that run's cost."""
    if found := origin_words(run.folder, run.promise):
        yield from breaks(run.folder, run.promise)
        return found
    if os.path.lexists(run.folder / START) and (why := begins_with(None, Start.read(run.folder))):
        yield f"{run.folder / START}: {why}"
    return None


def _evaluation(run: _Run) -> _Claim:
    """The private evaluations are those that the run's cost includes."""
    rounds, own = len(run.history.rounds), run.folder / EVALUATION
    counted, expected = run.promise.evaluations(rounds), evaluation_promise(run.promise, run.chain.hashes[0])
    if counted is None or expected is None:
        if os.path.lexists(own):
            yield f"there is {EVALUATION}, but the run promises no private evaluation"
        return None
    found = read_chain(ledger_of(own))
    stated, past = Promise.from_record(found.records[0], {}), History.of_chain(found)
    if stated.record() != expected.record():
        yield "its ledger is not of this run, or has another promise"
    if len(past.rounds) > counted[1]:
        yield f"{len(past.rounds)} evaluations were started, the {rounds} rounds allow {counted[1]}"
    yield from _releases(RunStore(own), stated, past)
    return f"{len(past.rounds)} of {expected.rounds} evaluations, each after its rounds and with its release as on record"


def _secrets(run: _Run) -> _Claim:
    """Keys are those of the ledger, readable by their owner only; a closed run has none."""
    store, history, ledger = run.store, run.history, run.folder / "ledger.jsonl"
    kept = store.secret_files()
    of_operator = [*kept, ledger, *(path for path in [cohorts_path(ledger)] if os.path.lexists(path))]
    for path in of_operator:
        if stat.S_IMODE(path.lstat().st_mode) & 0o077:
            yield f"{path.relative_to(run.folder)} is readable by others; change its mode to 0600"
            return None
    if history.closed:
        for path in kept[:1]:
            yield f"{path.relative_to(run.folder)} is still there; close the run again"
        return "the keys were destroyed"
    drawn = [epoch.key for epoch in history.epochs if epoch.key is not None]
    if len(set(drawn)) != len(drawn):
        yield "two incarnations used one noise key"
    yield from _keys(store, run.chain.records[0].get("key"), history)
    keys = f"{_count(len(drawn), 'noise key')}, a new one in each incarnation"
    return f"{keys}; {len(kept)} secret files that only the owner reads"


def _keys(store: RunStore, own: object, history: History) -> Iterator[str]:
    """Keys that are not those of the ledger, in words; a folder without its keys has none to compare."""
    if ahead := key_ahead(store.epochs(), len(history.epochs)):
        yield f"{ahead} is there, the ledger has {_count(len(history.epochs), 'incarnation')}: it was rolled back"
    if not store.has_keys():
        return
    secret = store.secret()
    if key_digest(secret, secret) != own:
        yield "state/keys/run is not the key of the ledger"
        return
    for number, epoch in enumerate(history.epochs):
        if epoch.key is not None and key_digest(secret, store.noise_key(number)) != epoch.key:
            yield f"state/keys/epoch-{number} is not the noise key of that incarnation"


def _checkpoint(run: _Run) -> _Claim:
    """The checkpoint is complete and belongs to this ledger; a closed run does not resume and needs none."""
    path = run.folder / "state" / "checkpoint.json"
    if run.history.closed or not os.path.lexists(path):
        return None
    checkpoint = Checkpoint(path, again=False)
    holds = f"{path.relative_to(run.folder)} holds the state after {checkpoint.rounds} rounds, "
    if run.chain.rounds_at(checkpoint.head) != checkpoint.rounds:
        yield f"{holds}under a head that this ledger does not have: it was rolled back"
    return f"{holds}under a head of this ledger"


def _epsilon(run: _Run) -> _Claim:
    """The cost of what happened is at most the promise, and guarantee and metrics state the costs of the ledger."""
    promise, begun, guarantee = run.promise, len(run.history.rounds), run.folder / "guarantee.json"
    promised = promise.after(promise.rounds, promise.delta)
    if run.cost.worse:
        yield from run.cost.warnings()[:1]
    try:
        stated = strict_json.loads(files.read(guarantee, at_most=2**20))
        versions = stated.get("versions") if isinstance(stated, Mapping) else None
        # Versions may be others than today's.
        named = isinstance(versions, Mapping) and all(isinstance(v, str) and v.isprintable() for v in versions.values())
        computed = promised.as_json() | {"versions": versions if named else "names and versions of libraries"}
        yield from (f"guarantee.json: {difference}" for difference in _differences(computed, stated))
    except FileNotFoundError as error:
        # A run by ``train`` alone has no such file; others have it from the start.
        stated_once = any(record.get("kind") == "files" for record in run.chain.records)
        if stated_once or any(os.path.lexists(run.folder / name) for name in ("config.toml", _SERVER)):
            yield f"guarantee.json: cannot be read ({error.strerror})"
    except OSError as error:
        yield f"guarantee.json: cannot be read ({error.strerror})"
    except (ValueError, TypeError) as error:
        yield f"guarantee.json: {error}"
    yield from _shown(run)
    so_far, whole = rounded_up(run.cost.guarantee.epsilon), rounded_up(promised.epsilon)
    together = f" and {_count(len(promise.earlier), 'earlier run')}" if promise.earlier else ""
    spent_so_far = f"{so_far} for the {begun} recorded rounds{together}"
    as_stated = "as stated" if guarantee.exists() else "and no guarantee.json states another"
    return f"{spent_so_far}, {whole} for all {promise.rounds}, at delta {no_less(promise.delta)}, {as_stated}"


def _shown(run: _Run) -> Iterator[str]:
    """The difference between the last epsilon of the metrics and the cost of as many rounds, in words."""
    promise, begun = run.promise, len(run.history.rounds)
    rows, _ = read_metrics(run.folder / "metrics.jsonl")
    if not rows:
        return
    last, shown = rows[-1]["round_index"], rows[-1]["epsilon"]
    after = promise.after(min(last + 1, promise.rounds), promise.delta).epsilon
    if last >= begun:
        yield f"metrics.jsonl: goes to round {last}, the ledger has {begun} rounds"
    elif not _equal(math.inf if shown is None else shown, after):
        yield f"metrics.jsonl: epsilon = {shown!r} after round {last}, computed again it is {after!r}"


def _model(run: _Run) -> _Claim:
    """The model is complete, and names a head of the ledger."""
    if not os.path.lexists(run.folder / _MODEL):
        return None
    try:
        content = files.read(run.folder / _MODEL, at_most=2**36)
        parse(content)
        if metadata(content).get("ledger_head") not in run.chain.hashes:
            yield f"{_MODEL} was released under no head of this ledger"
    except (OSError, ValueError) as error:
        why = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else error
        yield f"{_MODEL}: {why}"
    return f"{_MODEL} was released under a head of this ledger"


def _files(run: _Run) -> _Claim:
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
        return f"the run {ended}: no record of the ledger binds model, settings or guarantee"
    yield from run.store.changed(bound)
    return f"byte for byte what the ledger binds: {', '.join(sorted(bound))}"


# By name, in the order in which they depend on one another.
_CLAIMS: Mapping[str, Callable[[_Run], _Claim]] = {
    "rounds": _rounds,
    "promise": _promise,
    "participation": _participation,
    "releases": lambda run: _releases(run.store, run.promise, run.history),
    "clip norms": _clip_norms,
    "start": _start,
    "continuity": _continuity,
    "evaluation": _evaluation,
    "secrets": _secrets,
    "checkpoint": _checkpoint,
    "epsilon": _epsilon,
    "model": _model,
    "files": _files,
}


def _coverage(run: _Run, *, compared: bool) -> str:
    """The files that no check covers, in words."""
    folder, store, history, mechanism = run.folder, run.store, run.history, run.promise.mechanism
    cohorts = cohorts_path(folder / "ledger.jsonl")
    covered = {"ledger.jsonl", *(history.files or {})}
    if os.path.lexists(cohorts) and cohorts.lstat().st_size == history.cohorts_size:
        covered.add(cohorts.name)
    covered |= {f"state/releases/{t}.safetensors" for t, entry in enumerate(history.rounds) if entry.state == "committed"}
    if mechanism and strategy_arrays(mechanism.strategy):
        covered.add("strategy.safetensors")
    if "initial_model" in run.promise.settings:
        covered.add(START)
    if not history.closed and store.has_keys():
        keyed = (number for number, epoch in enumerate(history.epochs) if epoch.key is not None)
        covered |= {"state/keys/run", *(f"state/keys/epoch-{number}" for number in keyed)}
    if not history.closed:
        with suppress(RunFolderError):
            named = Checkpoint(folder / "state" / "checkpoint.json", again=False).names
            covered |= {"state/checkpoint.json", *(f"state/{name}" for name in named)}
    left = _left(folder, covered)
    said = f"no digest binds these: {', '.join(left)}" if left else "every file was compared with the ledger"
    forged = "; whoever can write to the folder can forge all of it: compare the head with one that was kept elsewhere"
    return said if compared else said + forged


def _left(folder: Path, covered: Collection[str]) -> list[str]:
    """The files that are not covered, sorted; a folder without any covered file has one entry."""
    found = set[str]()
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if not path.is_symlink() and path.is_dir():
            continue
        if name.as_posix() not in covered:
            top = [above.as_posix() for above in reversed(name.parents) if above.name and above.as_posix() != "state"]
            alone = next((above for above in top if not any(one.startswith(f"{above}/") for one in covered)), None)
            found.add(ascii(f"{alone}/" if alone else name.as_posix())[1:-1])
    return sorted(found)


def _published(folder: Path, head: str | None, keys: Collection[PublicKey] | None) -> Verdict:
    """The verdict on a published folder: its files are those of a record, which has the given head and signature."""
    try:
        content = files.read(folder / PUBLICATION, at_most=2**20)
        stated = strict_json.loads_canonical(content)
        if not isinstance(stated, dict) or set(stated) != {"before", "head", "record"}:
            raise ValueError("it must name before, head and record")
        before, own, record = stated["before"], stated["head"], stated["record"]
        if not isinstance(before, str) or not isinstance(record, dict) or record_hash(before, record) != own:
            raise ValueError("its head does not follow from its record")
        bound = published_files(record)
    except (OSError, ValueError, TypeError, KeyError) as error:
        why = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else error
        return Verdict((Check("record", False, f"{PUBLICATION}: {why}"),), None, None, None)
    checks = [Check("record", True, f"{PUBLICATION} is the record of a ledger with head {own}")]
    if head is not None:
        same = head.lower() == own
        checks.append(Check("head", same, f"the head is {'' if same else 'not '}the given one, {head[:80]!r}"))
    if keys is not None:
        checks += _checked("signature", _signature(folder / SIGNATURE, content, keys))
    changed = list(RunStore(folder).changed(bound))
    same_files = f"byte for byte what that record binds: {', '.join(sorted(bound))}"
    checks.append(Check("files", not changed, "; ".join(changed[:3]) or same_files))
    left = _left(folder, {PUBLICATION, *([] if keys is None else [SIGNATURE]), *bound})
    said = f"no digest binds these: {', '.join(left)}; " if left else ""
    if not head and not keys:
        said += "compare the head with the one that the publisher states, since all of it can be forged together; "
    reach = f"{said}only the run proves the guarantee: hubbub verify RUN --head {own}"
    return Verdict((*checks, Check("coverage", True, reach)), own, None, None)


def _signature(path: Path, content: bytes, keys: Collection[PublicKey]) -> _Claim:
    """A file is a signature of the content by one of the keys."""
    try:
        require_signed(content, files.read(path, at_most=2**12).decode("ascii", "replace"), keys)
    except OSError as error:
        yield f"{path.name} cannot be read ({error.strerror})"
    except ValueError as error:
        yield f"{path.name}: {error}"
    return f"{SIGNATURE} is the signature of {PUBLICATION} by a given key"


def _differences(computed: Any, stated: Any, name: str = "") -> list[str]:
    """The differences between stated and computed values: numbers to nine digits, all else exactly."""
    if isinstance(computed, Mapping) and isinstance(stated, Mapping):
        return [
            difference
            for key in sorted({*computed, *stated}, key=str)
            for difference in _differences(computed.get(key), stated.get(key), f"{name}.{key}" if name else str(key))
        ]
    if isinstance(computed, list | tuple) and isinstance(stated, list) and len(computed) == len(stated):
        pairs = enumerate(zip(computed, stated, strict=True))
        return [difference for number, (own, theirs) in pairs for difference in _differences(own, theirs, f"{name}[{number}]")]
    alike = type(computed) is type(stated) and computed == stated
    if alike or (isinstance(computed, float) and _equal(stated, computed)):
        return []
    theirs, own = str(stated), str(computed)
    # Long values from a little before the first difference.
    same = next((i for i, pair in enumerate(zip(theirs, own, strict=False)) if pair[0] != pair[1]), min(len(theirs), len(own)))
    start = max(0, same - 20) if max(len(theirs), len(own)) > _SHOWN else 0
    theirs, own = (("…" if start else "") + text[start : start + _SHOWN] for text in (theirs, own))
    return [f"{name or 'it'} is stated as {theirs!r}, computed again it is {own!r}"]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' if number != 1 else ''}"


def _equal(stated: object, computed: float) -> bool:
    """Whether a number equals the computed one to nine digits; JSON may have an integer in place of a float."""
    if isinstance(stated, bool) or not isinstance(stated, int | float):
        return False
    try:
        return stated == computed or math.isclose(stated, computed, rel_tol=_TOLERANCE)
    except OverflowError:
        return False
