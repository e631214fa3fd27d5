"""The verdict on a run's folder: its claims, heads that were kept elsewhere, and the files that no digest binds."""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hubbub._util import files, strict_json
from hubbub._util.checks import shown
from hubbub._util.ssh_signatures import PublicKey, public_keys, require_signed
from hubbub.accounting.wording import count
from hubbub.errors import ConfigError, HubbubError, LedgerError, RunFolderError
from hubbub.ledger.actual_cost import breaches, spent
from hubbub.ledger.chain import Chain, read_chain, record_hash
from hubbub.ledger.history import History, published_files
from hubbub.ledger.participations import cohorts_path
from hubbub.ledger.promise import Promise
from hubbub.mechanism.strategies import strategy_arrays
from hubbub.training import RunStore
from hubbub.training.head_hook import signed_part
from hubbub.training.run_folder import SEALED_NOISE
from hubbub.training.run_folder.record import ledger_of
from hubbub.training.run_folder.state import CHECKPOINT, START, Checkpoint
from hubbub.verification.claims import CLAIMS, Claim, Run

# The last record of a published run's ledger, with the digests of the published files.
PUBLICATION = "published.json"
# The publisher's signature of it, if there is one.
SIGNATURE = f"{PUBLICATION}.sig"

# How often a run is read that is at work, until no check fails.
_READINGS = 10
# A bare head, and the names in the input of a head hook.
_BARE = re.compile(rb"[0-9a-fA-F]{64}")
_NAMES = {"head", "rounds", "run"}


@dataclass(frozen=True)
class Check:
    """One claim about a run.

    Args:
        name: The claim, in a word.
        ok: Whether it passes.
        detail: The finding, in one line.
        checked: Whether the claim was checked; otherwise the detail says why not, or what no check covers.

    Example:
        >>> Check("model", False, "model.safetensors was changed").ok
        False
    """

    name: str
    ok: bool
    detail: str
    checked: bool = True


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
    try:
        kept = None if heads is None else list(filter(None, map(bytes.strip, Path(heads).read_bytes().splitlines())))
    except OSError as error:
        raise ConfigError(f"heads = {str(heads)!r}: cannot be read ({error.strerror}); name the list that was kept") from error
    now = _standing(folder)
    for _ in range(_READINGS):
        verdict, before, now = _own(folder, ledger_of(folder), head, kept, keys), now, _standing(folder)
        # A run that works meanwhile is ahead of what was read of its ledger, or removes releases.
        if verdict.ok or now == before:
            return verdict
    moved = Check("running", False, "the run went on during each of these readings: verify it again between two rounds")
    return replace(verdict, checks=(*verdict.checks, moved))


def _standing(folder: Path) -> tuple[int, set[Path]]:
    return ledger_of(folder).stat().st_size, set((folder / "state" / "releases").glob("*"))


def _own(
    folder: Path, ledger: Path, head: str | None, kept: Sequence[bytes] | None, keys: Collection[PublicKey] | None
) -> Verdict:
    """The verdict on a run's own folder."""
    checks = list[Check]()
    try:
        chain = read_chain(ledger)
        torn = f"; a crash left {len(chain.torn)} bytes behind them, which resume removes" if chain.torn else ""
        found = f"{len(chain.records)} records, each bound to all before it, head {chain.head}{torn}"
        checks.append(Check("chain", True, found))
        if head is not None:
            checks += _checked("head", _kept_head(chain, head))
        history = History.of_chain(chain)
        if kept is not None:
            checks += _checked("heads", _kept_heads(chain, RunStore(folder), kept, keys))
        promise = Promise.from_record(chain.records[0], RunStore(folder).load_strategy())
        run = Run(folder, chain, history, promise, spent(promise, history), breaches(promise, history))
        for name, claim in CLAIMS.items():
            checks += _checked(name, claim(run))
        checks.append(Check("coverage", True, _coverage(run, compared=head is not None or kept is not None), checked=False))
    except (HubbubError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        where = "" if "ledger.jsonl" in str(error) or "safetensors" in str(error) else "ledger.jsonl: "
        checks.append(Check("record", False, f"{where}{error}; checks that depend on it were not made"))
        return Verdict(tuple(checks), None, None, None)
    return Verdict(tuple(checks), chain.head, run.cost.guarantee.epsilon, promise.delta)


def _checked(name: str, claim: Claim) -> Iterator[Check]:
    """The check of a claim, if it applies; a file that cannot be read is a fault."""
    faults, found = list[str](), None
    try:
        while True:
            faults.append(next(claim))
    except StopIteration as end:
        found = end.value
    except HubbubError as error:
        faults.append(str(error))
    except Exception as error:  # noqa: BLE001 # whatever is in a file that was changed, there is a verdict
        faults.append(f"could not be checked ({type(error).__name__}: {error})")
    if faults or found is not None:
        yield Check(name, not faults, "; ".join(faults[:3]) or str(found), checked=not str(found).startswith("not checked"))


def _kept_head(chain: Chain, head: str) -> Claim:
    """The kept head is in the chain."""
    try:
        chain.require_head(head)
    except LedgerError as error:
        yield str(error)
        return None
    since = len(chain.hashes) - 1 - chain.hashes.index(head.lower())
    return f"the kept head is in the ledger, {since} records before its end"


def _kept_heads(chain: Chain, store: RunStore, kept: Sequence[bytes], keys: Collection[PublicKey] | None) -> Claim:
    """The heads from a hook are in the chain, or in that of the private evaluations or of the normalization, and signed.

    A line is the input of a head hook, or a bare head. Lines may repeat: a hook gets each head at least once.
    """
    inner = {"evaluations": store.evaluation(), "releases of means and variances": store.normalization()}
    paths = {what: own.ledger_path for what, own in inner.items() if os.path.lexists(own.ledger_path)}
    counted = {"rounds": chain, **{what: read_chain(path) for what, path in paths.items()}}
    chains = list(counted.values())
    places = {head: (number, place) for number, own in enumerate(chains) for place, head in enumerate(own.hashes)}
    rounds_of = {head: rounds for own in chains for rounds, head in own.round_heads()}
    seen, last = set[bytes](), [0] * len(chains)
    if not kept:
        yield "no head was kept"
    for number, line in enumerate(kept, start=1):
        try:
            run, head, rounds = _stated([own.hashes[0] for own in chains], line, keys)
            which, place = places.get(head, (-1, -1))
            if which < 0 or run not in (None, which):
                raise ValueError(f"head {shown(head)} is not in the ledger, which was rolled back or is of another run")
            if rounds is not None and rounds_of.get(head) != rounds:
                raise ValueError(f"says {rounds} rounds, and the ledger had {rounds_of.get(head)} with this head")
            if line not in seen and place < last[which]:
                raise ValueError("was received after a later head")
            seen.add(line)
            last[which] = max(last[which], place)
        except ValueError as error:
            yield f"line {number} of the kept heads: {error}"
    by = "no signature was checked (--signer)" if keys is None else "each is signed by a given key"
    ends = zip(last, chains, counted, strict=True)
    reached = (f"{own.rounds_at(own.hashes[place]) or 0} of {own.begun} {what}" for place, own, what in ends)
    of = "the last after " + " and ".join(reached)
    return f"{count(len(kept), 'kept head')} in the ledger, in order, {of}; {by}"


def _stated(runs: Sequence[str], line: bytes, keys: Collection[PublicKey] | None) -> tuple[int | None, str, int | None]:
    """The place of a line's run among the given ones, its head, and its number of rounds; ``None`` if a bare head."""
    if _BARE.fullmatch(line):
        if keys is not None:
            raise ValueError("has no signature")
        return None, line.decode().lower(), None
    body = strict_json.loads(line)
    if not isinstance(body, dict) or body.keys() - {"signature"} != _NAMES or type(body["rounds"]) is not int:
        raise ValueError("is neither a head nor what a hook is given")
    if body["run"] not in runs:
        raise ValueError(f"is of run {shown(body['run'])}, this ledger is of {runs[0]}; compare each run with its lines")
    if keys is not None:
        if not isinstance(body.get("signature"), str):
            raise ValueError("has no signature")
        require_signed(signed_part(body), body["signature"], keys)
    return runs.index(body["run"]), str(body["head"]), body["rounds"]


def _coverage(run: Run, *, compared: bool) -> str:
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
        covered |= {SEALED_NOISE, "state/keys/run", *(f"state/keys/epoch-{number}" for number in keyed)}
    if not history.closed:
        with suppress(RunFolderError):
            covered |= {CHECKPOINT, f"state/{Checkpoint(folder / CHECKPOINT, again=False).file.name}"}
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
    return Verdict((*checks, Check("coverage", True, reach, checked=False)), own, None, None)


def _signature(path: Path, content: bytes, keys: Collection[PublicKey]) -> Claim:
    """A file is a signature of the content by one of the keys."""
    try:
        require_signed(content, files.read(path, at_most=2**12).decode("ascii", "replace"), keys)
    except OSError as error:
        yield f"{path.name} cannot be read ({error.strerror})"
    except ValueError as error:
        yield f"{path.name}: {error}"
    return f"{SIGNATURE} is the signature of {PUBLICATION} by a given key"
