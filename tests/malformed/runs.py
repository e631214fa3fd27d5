"""The files of a run: each damaged by the laws of its format, forged under digests that are right, or not there."""

import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cohort_file import block, blocks, bound
from malformed import laws, place
from malformed.contents import canonical, sha256, tensors, tensors_file
from malformed.place import RESUME, VERIFY, Case, Command, Damage, Run, Word, becoming, forged, holding, together, without

CHECKPOINT, NOISE, LAST = "state/checkpoint-6.safetensors", "state/noise.sealed", "state/releases/7.safetensors"
KEYS = ("state/keys/run", "state/keys/epoch-0", "state/keys/epoch-1")
BY_LEDGER = (VERIFY, RESUME, place.LEDGER, place.CLOSE, place.COUNTED, place.EARLIER)
# Who must refuse a file whatever is wrong with it. Anybody else refuses it, or says what is said of the whole run.
READ_BY: dict[str, tuple[Command, ...]] = {
    "ledger.jsonl": BY_LEDGER,
    "ledger.cohorts": (VERIFY, place.LEDGER, RESUME, place.CLOSE),
    "strategy.safetensors": (VERIFY, place.LEDGER),
    "guarantee.json": (VERIFY,),
    "config.toml": (RESUME,),
    "state/checkpoint.json": (RESUME,),
    CHECKPOINT: (RESUME,),
    NOISE: (RESUME,),
    **dict.fromkeys(KEYS, (RESUME,)),
    # Those before the checkpoint are not needed to go on.
    **{f"state/releases/{t}.safetensors": (VERIFY, RESUME) if t >= 6 else (VERIFY,) for t in (0, 1, 2, 3, 5, 6, 7)},
}


def named(name: str) -> Word:
    """How a refusal may name a file: a ledger and its cohorts are one thing to people, and a release is one of a round."""
    file = Path(name).name
    if "ledger" in name:
        return ("ledger", "cohort")
    if "releases" in name:
        return (f"release {file[0]}", f"round {file[0]}", f"releases/{file[0]}")
    # Of settings that say nothing it is said what is missing.
    return (file, "key" if "keys" in name else "noise_multiplier" if "config" in name else file.partition(".")[0])


def case(name: str, what: str, damage: Damage, *words: Word, commands: tuple[Command, ...] | None = None) -> Case:
    """Unless it is said who must refuse it, all others are tried as well."""
    must = commands or READ_BY[name]
    others = () if commands else tuple(command for command in place.EVERY if command not in must)
    return Case(f"{name}: {what}", must, (named(name), *words), damage, others)


def damaged_files(run: Run) -> Iterator[Case]:
    """Every file of the run cut, of another kind, missing or exchanged, and bits of it flipped where a digest binds them."""
    for number, (name, commands) in enumerate(READ_BY.items()):
        content = run.files[name]
        flips = 0 if name in ("config.toml", "guarantee.json") else 150 if name == NOISE else 120 if "ledger" in name else 20
        # The end of the last line of a ledger may be lost: the line tells that it is whole.
        end = b"\n" if name == "ledger.jsonl" else b""
        for what, odd in laws.of_bytes(content.removesuffix(end), flips=flips, seed=number):
            # Settings that are cut are settings, and a ledger that is cut was torn, or rolled back.
            if not what.startswith("cut") or name not in ("ledger.jsonl", "config.toml"):
                damage = holding(f"run/{name}", odd + end if what.startswith("bit") else odd)
                yield case(name, what, damage)
        # Without a manifest the state is made again from the releases, and noise from the keys.
        if name not in ("state/checkpoint.json", NOISE):
            yield case(name, "missing", without(f"run/{name}"), commands=commands)
        if name != "ledger.jsonl":
            other = run.files[KEYS[0] if name in KEYS[1:] else CHECKPOINT if name == NOISE else NOISE]
            yield case(name, "another file", holding(f"run/{name}", other), commands=commands)


def kinds_of_file(run: Run) -> Iterator[Case]:
    """A folder, a pipe, a link or a device in the place of a file, and of a folder."""
    made = holding("run/model.safetensors", tensors_file({}, b""))
    files = {**READ_BY, "metrics.jsonl": (VERIFY, RESUME), "state/lock": (RESUME,), "model.safetensors": (VERIFY,)}
    for name, commands in files.items():
        for kind in place.KINDS:
            # A link to the very file is as good as the file where only its content counts.
            if (name, kind) != ("config.toml", "link"):
                damage = becoming(f"run/{name}", kind)
                yield case(name, kind, together(made, damage) if name == "model.safetensors" else damage, commands=commands)
    for name, commands in {"state": (VERIFY, RESUME), "state/keys": (RESUME,), "state/releases": (VERIFY, RESUME)}.items():
        for kind in ("file", "pipe", "link", "endless", "dangling"):
            yield Case(f"{name}: {kind}", commands, (("run/" + name, "release", name),), becoming(f"run/{name}", kind))
    for kind in ("file", "pipe", "endless", "dangling"):
        yield Case(f"the run: {kind}", place.EVERY, ("run",), becoming("run", kind))
    for kind in place.KINDS:
        if kind != "link":
            yield Case(f"a config: {kind}", (place.PLAN, ("train", "plan.toml")), ("plan.toml",), becoming("plan.toml", kind))


def modes(run: Run) -> Iterator[Case]:
    """Files that others may read or write."""
    for name, mode in itertools.product((*KEYS, "ledger.jsonl", NOISE), (0o644, 0o640, 0o604, 0o666, 0o620, 0o601, 0o777)):
        commands = (VERIFY, RESUME) if name in KEYS else (VERIFY,)
        yield case(name, f"mode {mode:o}", place.having_mode(f"run/{name}", mode), "mode", commands=commands)


# Ledgers under hashes that are right.

# What a record may hold: any text for a unit, no mechanism, no shares (this run has none), a bound on participations that no
# client reaches, and a clip norm of the same lattice.
FREE = frozenset(
    {"privacy_unit: text", "mechanism.participation.max_participations: huge", "mechanism: null", "mechanism.shares: null",
     "shares: null", "clip_norm: 1.5", "settings: table"}
)  # fmt: skip
RECORDS = {"promise": 0, "epoch": 1, "begin": 2, "commit": 3, "abort": 11}


def forged_records(run: Run) -> Iterator[Case]:
    """Each value of each kind of record of another type or missing, and records that are no strict JSON."""
    bodies = run.bodies
    for kind, index in RECORDS.items():
        for what, record in laws.of_record(run.records()[index], FREE):
            path = what.partition(":")[0].split(".")
            if path[0] == "settings" and len(path) > 1:
                continue
            # A stated number may be wrong in the type or in the value; that of another name then no longer fits.
            other = ("stddev", "epsilon", "l2_sensitivity") if path[0] == "mechanism" else ()
            # Where no round begins, the metrics show it first; of a head that never was the checkpoint or the noise tells.
            field: Word = (*path, f"line {index + 1}", "metrics.jsonl", "clipped", "checkpoint.json", "noise.sealed", *other)
            damage = forged([*bodies[:index], canonical(record), *bodies[index + 1 :]])
            yield Case(f"{kind}: {what}", (VERIFY, RESUME), (("ledger", "promise"), field), damage)
        for what, odd in laws.of_json(bodies[index]):
            if what not in ("a name more", "empty object"):
                damage = forged([*bodies[:index], odd, *bodies[index + 1 :]])
                yield case("ledger.jsonl", f"{kind}: {what}", damage, f"line {index + 1}")


def moved_lines(run: Run) -> Iterator[Case]:
    """Lines removed, moved, doubled, or written in another way."""
    lines = run.lines
    for i in range(len(lines)):
        made: dict[str, list[bytes]] = {
            "twice": [*lines[:i], lines[i], *lines[i:]],
            "again at the end": [*lines, lines[i]],
            "and a blank line": [*lines[: i + 1], b"\n", *lines[i + 1 :]],
        }
        if i + 1 < len(lines):
            made["gone"] = lines[:i] + lines[i + 1 :]
            made["after the next"] = [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]
        for what, odd in made.items():
            yield case("ledger.jsonl", f"line {i + 1} {what}", holding("run/ledger.jsonl", b"".join(odd)), "line")
    for what, odd in {
        "Windows line ends": [line[:-1] + b"\r\n" for line in lines],
        "a byte order mark": [b"\xef\xbb\xbf", *lines],
        "spaces": [line.replace(b'":', b'": ') for line in lines],
    }.items():
        yield case("ledger.jsonl", what, holding("run/ledger.jsonl", b"".join(odd)), "line")


def rolled_back(run: Run) -> Iterator[Case]:
    """The last k records are gone; by one record the folder may have been left by a crash."""
    lines, head = run.lines, json.loads(run.lines[-1])["hash"]
    kept = (("verify", "run", "--head", head), (*RESUME, "--head", head))
    for k in range(1, len(lines)):
        less = holding("run/ledger.jsonl", b"".join(lines[:-k]))
        begun = sum(b'"kind":"begin"' in line for line in lines[:-k])
        late = [f"run/{name}" for name in run.files if "releases" in name and int(Path(name).stem) >= begun]
        bare = together(less, without(*late))
        yield Case(f"by {k}, the head is known", kept, (("head", "metrics.jsonl"), "rolled back"), less)
        yield Case(f"by {k}, all else is gone", kept[:1], ("head",), together(bare, without("run/metrics.jsonl")))
        if k > 1:
            torn = holding("run/ledger.jsonl", b"".join(lines[:-k]) + lines[-k][:50])
            words: Word = ("release", "metrics.jsonl", "cohorts", "checkpoint", "key")
            for what, damage in {"": less, ", with its releases": bare}.items():
                yield Case(f"by {k}{what}", (VERIFY, RESUME), (words,), damage)
            yield Case(f"by {k} and a half", (VERIFY,), (words,), torn)
            yield Case(f"by {k}, of an earlier run", (place.COUNTED, place.EARLIER), (words,), less)
        if begun < 6:
            gone = together(bare, without("run/metrics.jsonl"))
            yield Case(f"by {k}, with releases and metrics", (RESUME,), ("run", "rolled back"), gone)


def _sequences(run: Run) -> Iterator[tuple[str, list[dict[str, Any]], Word]]:
    """Records that are whole, in an order that cannot be; and what the refusal names."""
    records = run.records
    begin, commit, abort, epoch = ({**records()[i]} for i in (2, 3, 11, 12))
    end = len(records())

    def after(index: int, *more: dict[str, Any]) -> list[dict[str, Any]]:
        return [*records()[:index], *more, *records()[index:]]

    later = {**begin, "round": 8, "epoch": 1, "clients": None, "cohort": None}
    done, close, made = {**commit, "round": 8}, {"kind": "close"}, {"kind": "files", "files": {"model.safetensors": "0" * 64}}
    line, second = f"line {end + 1}", f"line {end + 2}"
    for number in (-1, 0, 7, 9, 11, 12, 10**6):
        yield f"begin of round {number}", after(end, {**later, "round": number}), line
        yield f"commit of round {number}", after(end, later, {**done, "round": number}), second
        yield f"abort of round {number}", after(end, later, {**abort, "round": number}), second
        yield f"epoch {number}", after(end, {**epoch, "epoch": number}), line
    for kind in ("", "Begin", "begin ", "promise", "rollback", "__init__", "\x1b[31m"):
        yield f"kind {kind!r}", after(end, {**abort, "kind": kind}), line
    for what, odd in {
        "commit without begin": done,
        "abort without begin": {**abort, "round": 8},
        "publish without files": {**made, "kind": "publish"},
        "a second promise": records()[0],
        "rows of noise that go back": {**epoch, "epoch": 2, "first_row": 4},
        "begin in the epoch before": {**later, "epoch": 0},
        "begin in a later epoch": {**later, "epoch": 2},
        "begin in epoch true": {**later, "epoch": True},
        "a cohort that the file does not have": {**later, **bound(block(8, [0], []))},
        "a cohort that is not counted": {**later, "cohort": "0" * 64},
        "clients without a cohort": {**later, "clients": 0},
        **{f"files {odd!r}": {**made, "files": odd} for odd in (None, {"../x": "0" * 64}, {"/x": "0" * 64}, {"x.json": 5})},
    }.items():
        yield what, after(end, odd), line
    for what, pair in {
        "a close in a round": (later, close),
        "a round after the close": (close, later),
        "two closes": (close, close),
        "files in a round": (later, made),
        "files twice": (made, made),
        **{f"release {odd!r}": (later, {**done, "release": odd}) for odd in ("", commit["release"].upper(), "\u0660" * 64)},
    }.items():
        yield what, after(end, *pair), (second, "closed")
    for what, index, odd in (
        ("commit twice", 4, commit),
        ("abort after commit", 4, {**abort, "round": 0}),
        ("begin twice", 3, begin),
        ("an epoch in a round", 3, {**epoch, "epoch": 1}),
        ("an epoch twice", 2, records()[1]),
    ):
        yield what, after(index, odd), f"line {index + 1}"
    yield "a begin before the first epoch", [records()[0], begin, *records()[1:]], "line 2"
    yield "a round that names no cohort", after(end, later, done), ("rounds", "cohort")
    many = [{**later, "round": 8 + i // 2} if i % 2 == 0 else {**abort, "round": 8 + i // 2} for i in range(10)]
    yield "more rounds than were promised", after(end, *many), "rounds"


def forged_order(run: Run) -> Iterator[Case]:
    for name, records, word in _sequences(run):
        where = ("ledger", "participation", "rounds", "run")
        yield Case(name, (VERIFY, RESUME), (where, word), forged(canonical(record) for record in records))


def forged_cohorts(run: Run) -> Iterator[Case]:
    """Cohorts under digests and hashes that are right: what cannot be one, and what breaks the promise."""
    first = struct.unpack_from("<Q", run.files["ledger.cohorts"], 12)[0]
    broken: Word = ("participation", "took part", "broke")
    odd: dict[str, tuple[dict[int, bytes], Word]] = {
        "a client twice": ({7: block(7, [1, 1], [])}, "line"),
        "clients in disorder": ({7: block(7, [2, 1], [])}, "line"),
        "a client that there is not": ({7: block(7, [10**6], [])}, "line"),
        "a tag twice": ({7: block(7, [], [5, 5])}, "line"),
        "another round's": ({7: block(6, [1], [])}, "line"),
        "a client as a new one": ({7: block(7, [], [first])}, "cohorts"),
    }
    for rounds in ([0, 1], [0, 2], [2, 3], [5, 6], [0, 3, 5], [0, 3, 6, 7], list(range(8))):
        # All are named in the first round, and one of them again.
        later = {t: block(t, [0] if t in rounds else [], []) for t in range(1, 8)}
        odd[f"a client in rounds {rounds}"] = ({0: block(0, [], [1, 2, 3]), **later}, broken)
    for name, (cohorts, word) in odd.items():
        records, kept = run.records(), blocks(run.files["ledger.cohorts"])
        for record in records:
            if record["kind"] == "begin":
                kept[record["round"]] = cohorts.get(record["round"], kept[record["round"]])
                record.update(bound(kept[record["round"]]))
        damage = together(forged(map(canonical, records)), holding("run/ledger.cohorts", b"".join(kept)))
        yield Case(name, (VERIFY, RESUME), (("ledger", "participation", "run"), word), damage)


PARTICIPATIONS: tuple[dict[str, Any], ...] = (
    {"name": "SingleParticipation"},
    {"name": "PoissonSampling", "sampling_probability": 0.01},
    {"name": "FixedSizeSampling", "cohort_size": 1, "population": 1000},
    {"name": "TruncatedPoissonSampling", "sampling_probability": 0.01, "max_cohort_size": 3, "population": 1000},
    {"name": "CyclicPoissonSampling", "sampling_probability": 0.01, "cycle_length": 12},
    {"name": "BallsInBinsSampling", "bins": 10**7},
    {"name": "FixedEpochs", "epochs": 10**9, "rounds_per_epoch": 10**9},
    {"name": "MinSeparation", "min_separation": 1, "max_participations": 4},
    {"name": "MinSeparation", "min_separation": 4, "max_participations": 4},
    {"name": "MinSeparation", "min_separation": 3, "max_participations": 3},
    {"name": "Nobody"},
)  # fmt: skip
STRATEGIES: tuple[dict[str, Any], ...] = (
    {"name": "Identity", "rounds": 12},
    {"name": "Identity", "rounds": 10**18},
    {"name": "BinaryTree", "rounds": 12},
    {"name": "BinaryTree", "rounds": 10**18},
    {"name": "Columns", "rounds": 12, "bands": 1, "squared_norm": 1e-12},
    {"name": "Dense"},
    {"name": "Described", "class": "malformed.Line", "rounds": 12},
    {"name": "malformed:people", "rounds": 12},
)


def forged_promises(run: Run) -> Iterator[Case]:
    """A promise whose numbers do not fit each other, its strategy or what happened: verify says so, resume refuses it."""
    promise = run.records()[0]
    false: list[tuple[str, tuple[str, ...], Any]] = []
    for name in ("noise_multiplier", "stddev", "l2_sensitivity", "epsilon"):
        for factor in (0.0, 1e-300, 0.5, 0.999999, 1.000001, 2.0, 1e6, -1.0):
            false.append((f"{name} times {factor}", ("mechanism", name), promise["mechanism"][name] * factor))
    false += [(f"participation {odd}", ("mechanism", "participation"), odd) for odd in PARTICIPATIONS]
    false += [(f"strategy {odd}", ("mechanism", "strategy"), odd) for odd in STRATEGIES]
    for path, odds in {
        ("mechanism", "neighboring_relation"): ("", "none", "add-or-remove-one", "replace-one", "\x1b[31m"),
        ("mechanism", "strategy", "rounds"): (0, 7, 11, 10**18),
        ("rounds",): (0, 7, 11, 10**18),
        ("schema",): (0, 1, 3, 7, 9, 99, "8", [8]),
        ("delta",): (0.0, 1.0, -1e-5, 1e-300, 0.5),
        ("accountant",): ("", "loose", "TIGHT", "\x1b[31m"),
        ("noise",): ("", "none", "Secure", "\x1b[31m"),
    }.items():
        false += [(f"{'.'.join(path)}: {odd!r}", path, odd) for odd in odds]
    words = ("ledger", "promise")
    for name, path, odd in false:
        damage = forged([canonical(laws.with_value(promise, path, odd)), *run.bodies[1:]])
        yield Case(name, (VERIFY, RESUME), (words,), damage)
    for key, value in promise["settings"].items():
        other = value + 1 if isinstance(value, int | float) else value + "x"
        damage = forged([canonical(laws.with_value(promise, ("settings", key), other)), *run.bodies[1:]])
        yield Case(f"settings.{key}", (RESUME,), ("ledger", key), damage)


# What stands beside the ledger, under digests that are right.


def with_digest(run: Run, content: bytes) -> Damage:
    """The file of the checkpoint, and a manifest that says that it is right."""
    manifest = json.loads(run.files["state/checkpoint.json"]) | {"sha256": sha256(content)}
    return together(holding(f"run/{CHECKPOINT}", content), holding("run/state/checkpoint.json", canonical(manifest)))


def released(run: Run, content: bytes) -> Damage:
    """Another release of the last round, and a ledger that says that it is right."""
    records = run.records()
    records[-1]["release"] = sha256(content)
    return together(holding(f"run/{LAST}", content), forged(map(canonical, records)))


def bound_model(run: Run, content: bytes) -> Damage:
    record = {"kind": "files", "files": {"model.safetensors": sha256(content)}}
    return together(forged([*run.bodies, canonical(record)]), holding("run/model.safetensors", content))


def model_of(head: object) -> bytes:
    """A model that says under which head of the ledger it was released."""
    arrays = tensors(weight=np.ones(6), bias=np.ones(2))
    length = int.from_bytes(arrays[:8], "little")
    header: Mapping[str, Any] = {"__metadata__": {"ledger_head": head}, **json.loads(arrays[8 : 8 + length])}
    return tensors_file(header, arrays[8 + length :])


def forged_tensors(run: Run) -> Iterator[Case]:
    """Files of tensors of the wrong format, or of the right one that hold something else."""
    for what, content in laws.of_safetensors_and_arrays(run.files[CHECKPOINT]):
        yield case(CHECKPOINT, what, with_digest(run, content))
    for what, content in laws.of_safetensors_and_arrays(run.files[LAST]):
        yield case(LAST, what, released(run, content), commands=(VERIFY,))
    for what, content in laws.of_safetensors_and_arrays(run.files["strategy.safetensors"]):
        # A half is a half in any precision, and an array that nobody asked for is not looked at.
        if what not in ("coefficients: half precision", "one array more"):
            yield case("strategy.safetensors", what, holding("run/strategy.safetensors", content))
    head = json.loads(run.lines[-1])["hash"]
    for what, content in laws.of_safetensors(model_of(head)):
        yield Case(f"model: {what}", (VERIFY,), ("model.safetensors",), bound_model(run, content))
    for other in ("", "0" * 64, head[:-1], None, 5, [head], {head: head}, "\x1b[31m"):
        yield Case(f"model of head {other!r}", (VERIFY,), ("model.safetensors",), bound_model(run, model_of(other)))


# Of a statement, what is so, and what is for people.
VERSIONS = {f"versions.{name}: nothing" for name in ("hubbub", "numpy", "scipy", "torch")}
TRUE = {"private: true", "sensitivity_exact: true", *VERSIONS}


def documents(run: Run) -> Iterator[Case]:
    """The manifest of the checkpoint, and the statement of the guarantee: each value of them, and what is no strict JSON."""
    for name, free in (("state/checkpoint.json", set[str]()), ("guarantee.json", TRUE)):
        whole = json.loads(run.files[name])
        odd = [(what, canonical(record)) for what, record in laws.of_record(whole, free)]
        # To a statement anything may be added.
        more = "a name more" if name == "guarantee.json" else ""
        odd += [(f"JSON: {what}", content) for what, content in laws.of_json(canonical(whole)) if what != more]
        if name == "guarantee.json":
            odd += [(f"epsilon times {x}", canonical({**whole, "epsilon": whole["epsilon"] * x})) for x in (0.0, 0.999, 1.001)]
        else:
            odd += [(f"{rounds} rounds", canonical({**whole, "rounds": rounds})) for rounds in (0, 3, 7, 9, 12)]
        for what, content in odd:
            yield case(name, what, holding(f"run/{name}", content), commands=READ_BY[name])


def metrics(run: Run) -> Iterator[Case]:
    """The last row and one in the middle."""
    lines = run.files["metrics.jsonl"].splitlines(keepends=True)
    good = json.loads(lines[-1])

    def row(what: str, odd: bytes, commands: tuple[Command, ...]) -> Case:
        content = b"".join([*lines[:-1], odd + b"\n"])
        return Case(f"last row: {what}", commands, ("metrics.jsonl",), holding("run/metrics.jsonl", content), (place.LEDGER,))

    for what, odd in laws.of_json(lines[-1].strip()):
        if what != "a name more":
            yield row(what, odd, (RESUME,))
            third = b"".join([*lines[:2], odd + b"\n", *lines[3:]])
            yield Case(f"third row: {what}", (RESUME,), ("metrics.jsonl",), holding("run/metrics.jsonl", third))
    for what, record in laws.of_record(good):
        # Accuracy and loss are for people: nothing was promised about them.
        if what.startswith("round_index") or (what.startswith("epsilon") and what != "epsilon: nothing"):
            yield row(what, json.dumps(record).encode(), (VERIFY,))
    for factor in (0.0, 0.5, 2.0):
        yield row(f"epsilon times {factor}", json.dumps({**good, "epsilon": good["epsilon"] * factor}).encode(), (VERIFY,))
    moved = {"backwards": lines[::-1], "a row twice": [*lines, lines[-1]], "the first twice": lines[:1] + lines}
    for what, rows in moved.items():
        yield Case(what, (RESUME,), ("metrics.jsonl",), holding("run/metrics.jsonl", b"".join(rows)))


def extra_releases(run: Run) -> Iterator[Case]:
    """Releases of rounds that there were not."""
    for t in (4, 8, 9, 11, 12, 10**6, 10**200):
        commands = (VERIFY,) if t == 4 else (VERIFY, RESUME)
        damage = holding(f"run/state/releases/{t}.safetensors", run.files[LAST])
        yield Case(f"of round {str(t)[:9]}", commands, ("release", str(t)), damage)


def whole(run: Run) -> Iterable[Case]:
    """What the cases are made from, made by the same hands: it is taken."""
    head = json.loads(run.lines[-1])["hash"]
    manifest = json.dumps(json.loads(run.files["state/checkpoint.json"]), indent=1).encode()
    for name, damage in {
        "a run": holding("run/ledger.jsonl", run.files["ledger.jsonl"]),
        "a ledger": forged(run.bodies),
        "a manifest": holding("run/state/checkpoint.json", manifest),
        "a checkpoint": with_digest(run, run.files[CHECKPOINT]),
        "a release": released(run, run.files[LAST]),
    }.items():
        yield Case(name, (VERIFY, RESUME, place.LEDGER), (), damage)
    yield Case("a model", (VERIFY,), (), bound_model(run, model_of(head)))
    yield Case("its head", (("verify", "run", "--head", head.upper()), (*RESUME, "--head", head)), (), lambda: None)


# Lines of the run's own settings, what else they may say, and what is said of it.
EDITED = {
    "rounds = 12": ("rounds = 13", "rounds was 12, is 13"),
    "noise_multiplier = 1.0": ("noise_multiplier = 0.5", "noise_multiplier was 1.0, is 0.5"),
    "min_separation = 3": ("min_separation = 4", "min_separation was 3, is 4"),
    "bands = 3": ("bands = 2", "another promise"),
    'noise = "secure"': ('noise = "simulation"', "noise was 'secure'"),
    "clients = 12": ("clients = 11", "clients"),
    "clip_norm = 1.0": ("clip_norm = 9.0", "clip_norm"),
    "learning_rate = 0.05": ("learning_rate = 5.0", "learning_rate"),
    "seed = 0": ("seed = 1", "seed"),
    'partition = "iid"': ('partition = "dirichlet"', "partition"),
}


def edited_settings(run: Run) -> Iterator[Case]:
    """Settings of the run that were changed since it began; and own code, which is imported by permission alone."""
    text = run.files["config.toml"].decode()
    for old, (new, word) in EDITED.items():
        assert f"\n{old}\n" in text, old
        damage = holding("run/config.toml", text.replace(f"\n{old}\n", f"\n{new}\n").encode())
        yield Case(new, (RESUME,), (word,), damage)
    yield Case("no permission", (("resume", "run"), ("train", "plan.toml")), ("--allow-import",), lambda: None)
