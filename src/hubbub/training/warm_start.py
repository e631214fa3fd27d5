"""Warm start: a new run that begins with the final model of a finished run, and whose guarantee counts both.

The new run is a mechanism of its own: new keys, new noise, a strategy for its own rounds. It begins with a function of releases
whose cost is recorded, so the two compose as any two runs over the same people. Model and optimizer are recomputed from the
releases on disk, each compared with the ledger; no model file is trusted. If releases were not kept, the last checkpoint
replaces them, provided that the ledger binds it.
"""

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from torch import nn

from hubbub._util.files import refusing
from hubbub.accounting.runs import RunCharge
from hubbub.accounting.wording import Assumption
from hubbub.errors import ConfigError, HubbubError, LedgerError, RunFolderError
from hubbub.ledger.actual_cost import Recorded, cost_of_run
from hubbub.ledger.chain import Chain, read_chain
from hubbub.ledger.history import History
from hubbub.ledger.multi_run import costs_of_ended_runs
from hubbub.ledger.promise import Extends, Promise
from hubbub.training.clipping import AdaptiveClipping
from hubbub.training.plan import RunPlan
from hubbub.training.rounds import server_step
from hubbub.training.run_folder import RunStore
from hubbub.training.run_folder.record import read_run
from hubbub.training.run_folder.state import (
    CHECKPOINT,
    START,
    Checkpoint,
    Segments,
    Start,
    begins_with,
    model_digest,
    optimizer_digest,
    optimizer_state,
)
from hubbub.training.simulation.functional import FlatModel

# The terms that decide, together with the releases, which model a run ends with.
_LEARNING = ("expected_cohort_size", "clip_norm", "adaptive_clipping", "server", "cooldown")


def last_checkpoint(recorded: Recorded) -> tuple[Checkpoint | None, list[int]]:
    """The checkpoint that replaces releases that a finished run did not keep, if any, and the released rounds after it."""
    store = RunStore(Path(recorded.name))
    released = [t for t, entry in enumerate(recorded.history.rounds) if entry.release is not None]
    missing = sorted(set(released).difference(store.released()))
    if not missing:
        return None, released
    forgets = recorded.history.forgets or not recorded.promise.terms.keep_releases
    if forgets and os.path.lexists(store.folder / CHECKPOINT):
        if (recorded.history.files or {}).get(CHECKPOINT) != store.digest(CHECKPOINT):
            # Anything might be in it, the state of the optimizer not the least.
            raise RunFolderError(
                f"{recorded.name}: releases were not kept, and no record of its ledger binds the checkpoint that stands for "
                "them, as 'hubbub train' does at the end of a run; begin with a new model in a run that names this one in "
                "privacy.earlier_runs"
            )
        checkpoint = Checkpoint(store.folder / CHECKPOINT, again=False)
        if missing[-1] < checkpoint.rounds == recorded.chain.rounds_at(checkpoint.head):
            return checkpoint, [t for t in released if t >= checkpoint.rounds]
    raise RunFolderError(
        f"{recorded.name}: the release of round {missing[-1]} is not there, so that nobody can show that the model is made of "
        "releases whose cost is recorded; restore it, or begin with a new model in a run that names this one in "
        "privacy.earlier_runs"
    )


def final_state(recorded: Recorded, plan: RunPlan, following: RunPlan, module: nn.Module) -> tuple[Extends, Start, RunPlan]:
    """The final state of a finished run, recomputed from its releases by its ``plan``; its model is written into ``module``.

    Also the following plan, whose adaptive clip norm begins at the last value unless it is given another than ``plan`` has.

    The state of the server's optimizer is dropped if the plan of the following run names another optimizer.
    """
    costs_of_ended_runs([recorded])
    # With another plan the finished run would have computed another model from its releases.
    own, stated = plan.promise().settings, recorded.promise.settings
    for name in _LEARNING:
        if own.get(name) != stated.get(name):
            raise ConfigError(
                f"{name} = {own.get(name)!r}: the run in {recorded.name} had {stated.get(name)!r} by its ledger; give the "
                "plan, or restore the config.toml, that it had"
            )
    if plan.server.cooldown and recorded.promise.mechanism and plan.scheduled_rounds != recorded.promise.mechanism.rounds:
        raise ConfigError(
            f"rounds = {plan.scheduled_rounds}: the run in {recorded.name} was planned for others; give the plan that it had"
        )
    store, model = RunStore(Path(recorded.name)), FlatModel(module)
    if model.dim != (had := recorded.promise.terms.parameters):
        raise ConfigError(
            f"model: has {model.dim} trainable parameters, that of the run in {recorded.name} {had}; a run is "
            "extended with the model that it had"
        )
    start, terms = Start.read(store.folder), recorded.promise.terms
    expected = "" if terms.extends is None else terms.extends.optimizer
    if model_digest(start.model) != terms.initial_model or optimizer_digest(start.optimizer) != expected:
        # The model would depend on something whose cost nobody recorded.
        raise RunFolderError(f"{store.folder / START}: is not what the ledger says that the run began with; restore it")
    optimizer = plan.server.build(model.vector)
    with refusing(store.folder / START, "is of another model", "extend the run with the model that it had"):
        start.restore(model.vector, optimizer)
    clip_norm, (checkpoint, later) = plan.clip_norms.first, last_checkpoint(recorded)
    if checkpoint:
        checkpoint.restore(model.vector, optimizer)
        clip_norm = checkpoint.clip_norm or clip_norm
    for t in later:
        release = store.load_release(t, str(recorded.history.rounds[t].release), model.dim + plan.clip_norms.further)
        clip_norm = server_step(plan, model, optimizer, clip_norm, release, t)
    vector = model.vector.detach().clone()
    state = optimizer_state(optimizer, model.vector) if following.server.name == plan.server.name else {}
    extends = Extends(recorded.chain.hashes[0], recorded.chain.head, model_digest(vector), optimizer_digest(state))
    return extends, Start(vector, state, finished=True), _moved(plan, following, clip_norm)


def _moved(plan: RunPlan, following: RunPlan, clip_norm: float | None) -> RunPlan:
    if clip_norm is None or not isinstance(following.clip_norm, AdaptiveClipping) or following.clip_norm != plan.clip_norm:
        return following
    return replace(following, clip_norm=replace(following.clip_norm, initial_clip_norm=clip_norm))


def extending(following: RunPlan, extends: Extends) -> RunPlan:
    """The plan with the promise that it extends a finished run.

    A simulation gets a seed of its own. With the seed of the finished run, or of another run that extends it, it would draw
    the same noise and cohorts again.
    """
    if not any(run.first == extends.ledger and run.head == extends.head for run in following.earlier):
        raise ConfigError(
            f"extends: the run of ledger {extends.ledger[:16]} at head {extends.head[:16]} is not among the earlier runs of "
            "the plan, and a run that begins with its model counts its cost; name it in privacy.earlier_runs (earlier=)"
        )
    seed, heads = following.seed, " ".join((extends.head, *(run.head for run in following.earlier)))
    if following.noise == "simulation":
        seed = int.from_bytes(hashlib.sha256(f"{seed} {heads}".encode()).digest()[:7], "big")
    ledger = extends.ledger[:16]
    further = (
        Assumption(
            f"the model that this run begins with is made of the releases of the run of ledger {ledger} alone, whose "
            "cost is counted here, over the same people; each of the two has its own noise and its own participation pattern, "
            "and no separation is counted on from the rounds of one to those of the other",
            "software",
        ),
        Assumption(
            f"every other run that extended the run of ledger {ledger}, or one before it, before this run began is named here",
            "operator",
        ),
    )
    settings = {**following.settings, "extends": asdict(extends)}
    return replace(following, settings=settings, seed=seed, further=(*following.further, *further))


def extended(finished: RunStore, plan: RunPlan, following: RunPlan, model: nn.Module, into: RunStore) -> RunPlan:
    """The plan of a new run that extends a finished one; pass it to :func:`.train` with ``model`` and ``into``.

    For a new run that was interrupted, returns the plan to resume with.

    Args:
        finished: The folder of the finished run.
        plan: Its plan.
        following: The plan of the new run; its ``earlier`` is empty, or all of :func:`charged_with`. The adaptive clip norm of
            ``plan`` begins at its last value, another one as it says.
        model: A module of the same kind; the final model is written into it.
        into: The folder of the new run.

    Raises:
        LedgerError: The finished run may still begin rounds, or its record is damaged.
        RunFolderError: Its folder does not prove its model, or the cost of another run that extends it cannot be counted.
        ConfigError: The plans do not fit the run or one another, or a run whose cost must be counted is not named.

    Example:
        >>> import tempfile, torch, hubbub
        >>> from hubbub.training import charged_with
        >>> everyone = hubbub.MinSeparation(1, 2)
        >>> data = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long)) for _ in range(4)]
        >>> population = hubbub.SimulatedPopulation(data, nn.functional.cross_entropy)
        >>> mechanism = hubbub.calibrate(rounds=2, participation=everyone, epsilon=2.0, delta=1e-5)
        >>> plan, model = RunPlan(2, everyone, 4, mechanism, clip_norm=1.0, delta=1e-5), nn.Linear(3, 2)
        >>> first, second = (RunStore(Path(tempfile.mkdtemp()) / name) for name in ("one", "two"))
        >>> *_, last = hubbub.train(plan, population, model, first)
        >>> spent = charged_with(first.folder)
        >>> more = hubbub.calibrate(rounds=2, participation=everyone, prior=spent, epsilon=4.0, delta=1e-5)
        >>> following = replace(plan, mechanism=more)
        >>> *_, both = hubbub.train(extended(first, plan, following, model, second), population, model, second)
        >>> last.epsilon <= 2.0 < both.epsilon <= 4.0  # of both runs together
        True
    """
    if into.ledger_path.exists():
        promise = read_run(into.folder).promise
        extends = promise.terms.extends
        if extends is None:
            raise RunFolderError(f"{into.folder}: holds a run that began by itself; choose another folder")
        began = promise.settings.get("adaptive_clipping", {}).get("initial_clip_norm")
        return extending(replace(_moved(plan, following, began), earlier=promise.earlier), extends)
    require_new(finished.folder, into.folder)
    recorded = read_run(finished.folder)
    require_alike(recorded, plan, following)
    charged = charged_with(finished.folder, into.folder)
    if following.earlier and (missing := [run for run in charged if run not in following.earlier]):
        raise ConfigError(f"earlier: the run of ledger {missing[0].first[:16]} is not among them; give all of charged_with()")
    extends, start, following = final_state(recorded, plan, following, model)
    answer = extending(replace(following, earlier=following.earlier or charged), extends)
    with into.locked():
        start.write(into.folder)
        register(finished.folder, into.folder, [run.first for run in answer.earlier])
    return answer


def require_alike(recorded: Recorded, plan: RunPlan, following: RunPlan) -> None:
    """Refuse two runs that no one guarantee covers: kind of noise, unit and relation must be the same."""
    promise, other, name = recorded.promise, following.promise(), recorded.name
    if promise.simulation != other.simulation:
        was, now = ("simulation" if p.simulation else "secure" for p in (promise, other))
        raise ConfigError(
            f"noise = {now!r}: the run in {name} had {was!r}; what extends a simulation is a simulation, and what "
            "extends a real run is real"
        )
    for unit in {plan.privacy_unit, other.privacy_unit} - {promise.privacy_unit}:
        raise ConfigError(f"privacy_unit = {unit!r}: the run in {name} hid each {promise.privacy_unit!r}; say that")
    if (promise.mechanism is None) != (other.mechanism is None):
        raise ConfigError(f"mechanism: {name} or the run that extends it has none, and then nothing bounds both together")
    before, after = (p.after(0, p.delta).neighboring_relation for p in (promise, other))
    if before != after:
        raise ConfigError(f"neighboring_relation = {after!r}: the run in {name} stated {before!r}; say that for both together")


def charged_with(finished: Path, into: Path | None = None) -> tuple[RunCharge, ...]:
    """The privacy cost that a run that extends a finished one must count: of that run, its earlier runs and other extensions.

    Args:
        finished: The folder of the finished run.
        into: The folder of the new run, if it is known already.

    Raises:
        LedgerError: One of them may still begin rounds, or was rolled back.
        RunFolderError: A run that extends it is not there.

    Example:
        >>> import tempfile, torch, hubbub
        >>> everyone = hubbub.MinSeparation(1, 2)
        >>> data = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long)) for _ in range(4)]
        >>> population = hubbub.SimulatedPopulation(data, nn.functional.cross_entropy)
        >>> mechanism = hubbub.calibrate(rounds=2, participation=everyone, epsilon=2.0, delta=1e-5)
        >>> store = RunStore(Path(tempfile.mkdtemp()) / "one")
        >>> _ = list(hubbub.train(hubbub.Plan(mechanism, 1.0, 1e-5), population, nn.Linear(3, 2), store))
        >>> [(run.rounds, run.planned) for run in charged_with(store.folder)]
        [(2, 2)]
    """
    return costs_of_ended_runs([read_run(folder) for folder in related(finished, into)])


def related(finished: Path, into: Path | None = None) -> tuple[Path, ...]:
    """The folder of a run, then those of the run that it extends and of all runs that extend any of these.

    The new run, ``into``, is left out.

    Raises:
        RunFolderError: One of them is not where the folder of another says.
    """
    own = None if into is None else into.resolve()
    found, waiting = list[Path](), [finished.resolve()]
    while waiting:
        folder = waiting.pop(0)
        if folder in found or folder == own:
            continue
        found.append(folder)
        segments, (_, extends) = Segments.of(folder), _begun(folder)
        if extends and (segments.goes_on_from or not (folder / "segments.json").exists()):
            origin = Path(segments.goes_on_from or folder / "segments.json")
            if _begun(origin)[0] != extends.ledger:
                raise RunFolderError(
                    f"{folder}: extends the run of ledger {extends.ledger[:16]}, which is not in {origin}, and the cost of all "
                    "else that extends that run counts, too; put it back or write its new place as goes_on_from into "
                    f"{folder / 'segments.json'}, or null if nothing else extends it"
                )
            waiting.append(origin)
        for other in map(Path, segments.went_on_in):
            if other != own:
                _require_known(folder, other)
                waiting.append(other)
    return tuple(found)


def require_new(finished: Path, into: Path) -> None:
    """Refuse the folder of an extension that was emptied since: the cost of what it released is recorded nowhere."""
    known = Segments.of(finished).went_on_in
    if str(into.resolve()) in known and not os.path.lexists(into / START):
        raise RunFolderError(
            f"{finished}: was extended in {into}, of which nothing is left, so that its cost cannot be counted; put it back, "
            f"or, if it never released anything, take it out of {finished / 'segments.json'}"
        )


def register(finished: Path, into: Path, charged: Collection[str]) -> None:
    """Record in both folders that a new run extends a finished one, before its first round."""
    finished, into = finished.resolve(), into.resolve()
    with RunStore(finished).locked():
        known = Segments.of(finished)
        for other in related(finished, into)[1:]:
            if _begun(other)[0] not in charged:
                what = "was extended in" if str(other) in known.went_on_in else "is related to the run in"
                raise RunFolderError(
                    f"{finished}: {what} {other} already, whose cost is not counted here; name it in "
                    f"privacy.earlier_runs as well, or say 'hubbub extend {finished}', which does"
                )
        replace(Segments.of(into), goes_on_from=str(finished)).write(into)
        if str(into) not in known.went_on_in:
            replace(known, went_on_in=(*known.went_on_in, str(into))).write(finished)


def _require_known(folder: Path, other: Path) -> None:
    """Refuse a run that ``folder`` lists as an extension if its cost cannot be read."""
    first, extends = _begun(other)
    if first is not None and extends is not None and extends.ledger == _begun(folder)[0]:
        return
    what = "has not begun its first round" if (other / "config.toml").is_file() and first is None else "is not there"
    raise RunFolderError(
        f"{folder}: was extended in {other}, which {what}, so that its cost cannot be counted; put it back or resume it "
        f"('hubbub resume {other}'), or, if it never released anything, take it out of {folder / 'segments.json'}"
    )


def _begun(folder: Path) -> tuple[str | None, Extends | None]:
    """The hash of the first record of a run's ledger and the finished run that the record names; ``None`` each without one."""
    path = folder / "ledger.jsonl"
    if not path.is_file():
        return None, None
    chain = read_chain(path)
    settings = chain.records[0].get("settings")
    try:
        return chain.hashes[0], Extends.of(settings) if isinstance(settings, Mapping) else None
    except ValueError as error:
        raise LedgerError(f"{path}, line 1: the promise cannot be read ({error})") from error


def origin_words(folder: Path, promise: Promise) -> str:
    """The finished run that a run extends, in words; empty if it extends none."""
    extends = promise.terms.extends
    if extends is None:
        return ""
    which = f"warm start from the model of the run of ledger {extends.ledger[:16]} as of head {extends.head[:16]}"
    if (origin := _origin_of(folder)) is None:
        return f"{which}, whose cost is counted; its folder is not there, so that only what this ledger holds of it was checked"
    return f"{which}, whose cost is counted as its own ledger in {origin} says"


def _origin_of(folder: Path) -> Path | None:
    """The folder of the finished run that a run extends, if its ledger is still there."""
    origin = Segments.of(folder).goes_on_from
    return Path(origin) if origin is not None and (Path(origin) / "ledger.jsonl").is_file() else None


def breaks(folder: Path, promise: Promise) -> Iterator[str]:
    """Contradictions between a run's promise to extend a finished run and what the two folders hold, in words.

    If the folder of the finished run is not there, only the new run's own folder is checked.
    """
    extends = promise.terms.extends
    if extends is None:
        return
    charge = next((run for run in promise.earlier if run.first == extends.ledger), None)
    if charge is None or charge.head != extends.head:
        yield f"the cost of the run of ledger {extends.ledger[:16]}, which this run extends, is not counted"
        return
    if promise.terms.initial_model != extends.model:
        yield "initial_model in ledger.jsonl is not the model that the finished run ended with"
    try:
        if why := begins_with(extends, Start.read(folder)):
            yield f"{START} {why}"
        if origin := _origin_of(folder):
            yield from _origin(origin, folder, promise, extends)
    except (HubbubError, ValueError, TypeError) as error:
        yield str(error)


def _origin(folder: Path, into: Path, promise: Promise, extends: Extends) -> Iterator[str]:
    """Contradictions with the ledger of the finished run."""
    chain = read_chain(folder / "ledger.jsonl")
    if chain.hashes[0] != extends.ledger:
        yield f"{folder} holds another run than the one that this run extends; put that back"
        return
    if extends.head not in chain.hashes:
        yield (
            f"{folder / 'ledger.jsonl'} never had head {extends.head[:16]}, at which this run extended it: it was changed "
            "or rolled back since; restore it"
        )
        return
    charged = {run.first: run for run in promise.earlier}
    charge = charged[extends.ledger]
    until = chain.hashes.index(extends.head) + 1
    then = Chain(chain.path, chain.records[:until], chain.hashes[:until])
    own = Promise.from_record(chain.records[0], RunStore(folder).load_strategy())
    if cost_of_run(then, own, History.of_chain(then)).record() != charge.record():
        yield f"the cost of the run in {folder} is not counted as its ledger says"
    if any(record.get("kind") == "begin" for record in chain.records[until:]):
        yield f"the run in {folder} has begun rounds since this run extended it, and their cost is not counted"
    for before in own.earlier:
        run = charged.get(before.first)
        if run is None:
            yield f"the run of ledger {before.first[:16]}, whose cost the run in {folder} counts, is not counted here"
        elif run != before and (run.head == before.head or run.rounds < before.rounds):
            yield f"the run of ledger {before.first[:16]}, whose cost that in {folder} counts, is counted otherwise here"
    yield from _since(folder, into, charged, extends, chain.rounds_at(extends.head))


def _since(folder: Path, into: Path, charged: Collection[str], extends: Extends, rounds: int | None) -> Iterator[str]:
    """Contradictions with the other files of the finished run, if they are still there."""
    branches, own_name = Segments.of(folder).went_on_in, str(into.resolve())
    # Extensions that began before this run.
    for other in map(Path, branches[: branches.index(own_name)] if own_name in branches else ()):
        if (first := _begun(other)[0]) is not None and first not in charged:
            yield f"the run in {folder} was extended in {other} before, whose cost is not counted here"
    try:
        checkpoint = Checkpoint(folder / CHECKPOINT, again=False)
    except RunFolderError:
        # A finished run whose releases are there needs none.
        return
    if checkpoint.rounds == rounds and model_digest(checkpoint.model) != extends.model:
        yield f"{folder / 'state'} holds another model than the one that this run began with"
