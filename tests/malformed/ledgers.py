"""Ledgers that are damaged, rolled back, or forged by somebody who knows how the hashes are made."""

import itertools
import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from cohort_file import block, blocks, bound
from malformed.base import CLOSE, EVERY, LEDGER, RESUME, VERIFY, Case, Command, Run, Word, round_of
from malformed.contents import DEEP, canonical, changed, flipped, leaves, some
from malformed.damages import forged, holding, together, without


def ledger_bits(run: Run) -> Iterator[Case]:
    content = run.files["ledger.jsonl"]
    commands = itertools.cycle([(VERIFY,), (LEDGER,), (VERIFY,), (RESUME,), (VERIFY,), (CLOSE,)])
    # The end of the last line may be lost: the line before it tells that it is whole.
    for bit in some(300, 8 * (len(content) - 1), seed=6):
        words = ("run/ledger.jsonl", "line")
        yield Case(f"bit {bit}", next(commands), words, holding("run/ledger.jsonl", flipped(content, bit)))


def ledger_lines(run: Run) -> Iterator[Case]:
    def case(name: str, lines: Iterable[bytes], commands: tuple[Command, ...]) -> Case:
        return Case(name, commands, ("run/ledger.jsonl", "line"), holding("run/ledger.jsonl", b"".join(lines)))

    lines, content = run.lines, run.files["ledger.jsonl"]
    last = len(lines) - 1
    two = itertools.cycle([(VERIFY,), (RESUME,), (LEDGER,), (CLOSE,)])
    for i in range(last):
        yield case(f"without line {i + 1}", lines[:i] + lines[i + 1 :], next(two))
        yield case(f"lines {i + 1} and {i + 2} swapped", [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]], next(two))
    for i, line in enumerate(lines):
        yield case(f"line {i + 1} twice", [*lines[:i], line, *lines[i:]], next(two))
        yield case(f"line {i + 1} again at the end", [*lines, line], next(two))
        # A blank line at the very end is one, too.
        yield case(f"a blank line after line {i + 1}", [*lines[: i + 1], b"\n", *lines[i + 1 :]], next(two))
    for begin in some(30, len(content) - len(lines[-1]) - 60, seed=71):
        span = 1 + begin % 50
        yield case(f"without bytes {begin} to {begin + span}", [content[:begin], content[begin + span :]], next(two))
    yield case("backwards", lines[::-1], EVERY)
    yield case("twice", lines * 2, EVERY)
    yield case("Windows line ends", [line[:-1] + b"\r\n" for line in lines], EVERY)
    yield case("a byte order mark", [b"\xef\xbb\xbf", *lines], EVERY)
    yield case("spaces", [line.replace(b'":', b'": ') for line in lines], EVERY)
    yield case("compressed", [zlib.compress(content)], EVERY)


def rolled_back(run: Run) -> Iterator[Case]:
    """The last k records are gone; by one record the folder may have been left by a crash."""
    lines, head = run.lines, json.loads(run.lines[-1])["hash"]
    kept = (("verify", "run", "--head", head), ("resume", "run", "--allow-import", "--head", head))
    turns = itertools.cycle([VERIFY, RESUME])
    for k in range(1, len(lines)):
        less = holding("run/ledger.jsonl", b"".join(lines[:-k]))
        begun = sum(b'"kind":"begin"' in line for line in lines[:-k])
        late = [f"run/{name}" for name in run.files if round_of(name) is not None and round_of(name) >= begun]
        yield Case(f"by {k}, the head is known", kept, (("head", "metrics.jsonl"), "rolled back"), less)
        yield Case(
            f"by {k}, all else is gone", kept[k % 2 :][:1], ("head",), together(less, without(*late, "run/metrics.jsonl"))
        )
        torn = holding("run/ledger.jsonl", b"".join(lines[:-k]) + lines[-k][:50])
        if k > 1:
            yield Case(f"by {k}", (VERIFY, RESUME), (("release", "metrics.jsonl", "cohorts"),), less)
            yield Case(f"by {k} and a half", (next(turns),), (("release", "metrics.jsonl", "cohorts"),), torn)
            bare = together(less, without(*late))
            yield Case(f"by {k}, with its releases", (next(turns),), (("metrics.jsonl", "cohorts"),), bare)
        if begun < 6:
            gone = together(less, without(*late, "run/metrics.jsonl"))
            yield Case(f"by {k}, with releases and metrics", (RESUME,), ("run", "rolled back"), gone)
    yield Case("by all", EVERY, ("run/ledger.jsonl",), holding("run/ledger.jsonl", b""))


WRONG = {
    "null": None,
    "true": True,
    "-1": -1,
    "1.5": 1.5,
    "text": "\x1b[31m[/red]",
    "list": [1],
    "table": {"a": 1},
    "huge": 10**30,
}
# What a record may hold: any text for a unit, any settings, no mechanism, no shares (this run has none), a bound on
# participations that no client reaches, and a clip norm of the same lattice.
FREE = {
    ("privacy_unit", "text"),
    ("max_participations", "huge"),
    ("settings", "table"),
    ("mechanism", "null"),
    ("shares", "null"),
    ("clip_norm", "1.5"),
}
KINDS_OF_RECORD = {"promise": 0, "epoch": 1, "begin": 2, "commit": 3, "abort": 11}


def forged_types(run: Run) -> Iterator[Case]:
    """Each value of each kind of record, missing or of another type, under hashes that are right."""
    bodies, number = run.bodies, itertools.count()
    for kind, index in KINDS_OF_RECORD.items():
        for path in leaves(run.records()[index]):
            values: dict[str, tuple[Any, ...]] = {"nothing": ()} | {name: (value,) for name, value in WRONG.items()}
            # A stated number may be wrong in the type or in the value; that of another name then no longer fits.
            other = ("stddev", "epsilon", "l2_sensitivity") if path[0] == "mechanism" else ()
            # Where no round begins, the metrics show it first.
            field = (path[-1], f"line {index + 1}", "metrics.jsonl") if kind != "promise" else (*path, *other)
            for name, value in values.items():
                if (path[-1], name) not in FREE:
                    body = changed(run.records()[index], path, *value)
                    commands = (VERIFY, RESUME) if next(number) % 4 == 0 else (VERIFY,)
                    words: tuple[Word, ...] = (("ledger", "promise"), field)
                    damage = forged([*bodies[:index], body, *bodies[index + 1 :]])
                    yield Case(f"{kind}: {'.'.join(path)}: {name}", commands, words, damage)


def forged_json(run: Run) -> Iterator[Case]:
    """Records that are no strict JSON, under hashes that are right."""
    bodies = run.bodies
    for index in KINDS_OF_RECORD.values():
        body = bodies[index]
        begin, inner = body[:1], body[1:]
        for name, odd in {
            "NaN": begin + b'"a":NaN,' + inner,
            "Infinity": begin + b'"a":-Infinity,' + inner,
            "1e999": begin + b'"a":1e999,' + inner,
            "twice": begin + inner[:-1] + b"," + inner,
            "kind twice": begin + b'"kind":"close",' + inner,
            "deep": begin + b'"a":' + b"[" * DEEP + b"]" * DEEP + b"," + inner,
            "long number": begin + b'"a":' + b"9" * DEEP + b"," + inner,
            "control character": begin + b'"a":"\x01",' + inner,
            "no UTF-8": begin + b'"a":"\xff",' + inner,
            "torn": body[: len(body) // 2],
            "empty": b"",
            "null": b"null",
            "list": b"[" + body + b"]",
            "text": b'"promise"',
            "two": body + body,
            "comment": body + b"/* */",
            "single quotes": body.replace(b'"', b"'"),
        }.items():
            damage = forged([*bodies[:index], odd, *bodies[index + 1 :]])
            commands = (VERIFY,) if index else EVERY
            yield Case(f"line {index + 1}: {name}", commands, ("run/ledger.jsonl", f"line {index + 1}"), damage)


def _sequences(run: Run) -> Iterator[tuple[str, list[dict[str, Any]], Word]]:
    """Records that are whole, in an order that cannot be; and what the refusal names."""
    records = run.records
    begin, commit, abort, epoch = ({**records()[i]} for i in (2, 3, 11, 12))
    end = len(records())

    def after(index: int, *more: dict[str, Any]) -> list[dict[str, Any]]:
        return [*records()[:index], *more, *records()[index:]]

    later = {**begin, "round": 8, "epoch": 1, "clients": None, "cohort": None}
    done = {**commit, "round": 8}
    line = f"line {end + 1}"
    for number in (-1, 0, 7, 9, 11, 12, 10**6):
        yield f"begin of round {number}", after(end, {**later, "round": number}), line
        yield f"commit of round {number}", after(end, later, {**done, "round": number}), f"line {end + 2}"
        yield f"abort of round {number}", after(end, later, {**abort, "round": number}), f"line {end + 2}"
        yield f"epoch {number}", after(end, {**epoch, "epoch": number}), line
    for kind in ("", "Begin", "begin ", "promise", "rollback", "__init__", "\x1b[31m"):
        yield f"kind {kind!r}", after(end, {**abort, "kind": kind}), line
    yield "commit without begin", after(end, done), line
    yield "abort without begin", after(end, {**abort, "round": 8}), line
    yield "commit twice", after(4, commit), "line 5"
    yield "abort after commit", after(4, {**abort, "round": 0}), "line 5"
    yield "begin twice", after(3, begin), "line 4"
    yield "an epoch in a round", after(3, {**epoch, "epoch": 1}), "line 4"
    yield "an epoch twice", after(2, records()[1]), "line 3"
    yield "a begin before the first epoch", [records()[0], begin, *records()[1:]], "line 2"
    yield "a close in a round", after(end, later, {"kind": "close"}), f"line {end + 2}"
    yield "a round after the close", after(end, {"kind": "close"}, later), f"line {end + 2}"
    yield "two closes", after(end, {"kind": "close"}, {"kind": "close"}), (f"line {end + 2}", "closed")
    made = {"kind": "files", "files": {"model.safetensors": "0" * 64}}
    yield "files in a round", after(end, later, made), f"line {end + 2}"
    yield "files twice", after(end, made, made), f"line {end + 2}"
    yield "publish without files", after(end, {**made, "kind": "publish"}), line
    for odd in (None, [], {}, {"../x.json": "0" * 64}, {"/x.json": "0" * 64}, {"x.json": "0"}, {"x.json": 5}, "x.json"):
        yield f"files {odd!r}", after(end, {**made, "files": odd}), line
    yield "a second promise", after(end, records()[0]), line
    yield "rows of noise that go back", after(end, {**epoch, "epoch": 2, "first_row": 4}), line
    yield "begin in the epoch before", after(end, {**later, "epoch": 0}), line
    yield "begin in a later epoch", after(end, {**later, "epoch": 2}), line
    yield "begin in epoch true", after(end, {**later, "epoch": True}), line
    yield "a cohort that the file does not have", after(end, {**later, **bound(block(8, [0], []))}), line
    yield "a cohort that is not counted", after(end, {**later, "cohort": "0" * 64}), line
    yield "clients without a cohort", after(end, {**later, "clients": 0}), line
    yield "a round that names no cohort", after(end, later, done), ("rounds", "cohort")
    for odd in (commit["release"].upper(), commit["release"][:-1], "", "0x" + "0" * 62, "\u0660" * 64):
        yield f"release {odd!r}", after(end, later, {**done, "release": odd}), f"line {end + 2}"
        yield f"sum {odd!r}", after(end, {**later, "sum": odd}), line
    many = [{**later, "round": 8 + i // 2} if i % 2 == 0 else {**abort, "round": 8 + i // 2} for i in range(10)]
    yield "more rounds than were promised", after(end, *many), "rounds"


def _cohorts(run: Run) -> Iterator[tuple[str, dict[int, bytes], Word]]:
    """Cohorts by round that are not those of the run: what cannot be one, and what breaks the promise."""
    line = "line"
    for name, odd in {
        "a client twice": block(7, [1, 1], []),
        "clients in disorder": block(7, [2, 1], []),
        "a client that there is not": block(7, [10**6], []),
        "a tag twice": block(7, [], [5, 5]),
        "another round's": block(6, [1], []),
    }.items():
        yield name, {7: odd}, line
    first = struct.unpack_from("<Q", run.files["ledger.cohorts"], 12)[0]
    yield "a client as a new one", {7: block(7, [], [first])}, "cohorts"
    for rounds in ([0, 1], [0, 2], [2, 3], [5, 6], [0, 3, 5], [0, 3, 6, 7], list(range(8))):
        # All are named in the first round, and one of them again.
        later = {t: block(t, [0] if t in rounds else [], []) for t in range(1, 8)}
        yield f"a client in rounds {rounds}", {0: block(0, [], [1, 2, 3]), **later}, ("participation", "took part", "broke")


def forged_cohorts(run: Run) -> Iterator[Case]:
    """Cohorts under digests and hashes that are right."""
    for number, (name, cohorts, word) in enumerate(_cohorts(run)):
        records, kept = run.records(), blocks(run.files["ledger.cohorts"])
        for record in records:
            if record["kind"] == "begin":
                t = record["round"]
                kept[t] = cohorts.get(t, kept[t])
                record.update(bound(kept[t]))
        damage = together(forged(map(canonical, records)), holding("run/ledger.cohorts", b"".join(kept)))
        # To print a ledger of clients that broke the pattern is no failure.
        commands = (VERIFY, RESUME) if number % 2 or isinstance(word, tuple) else (VERIFY, LEDGER)
        yield Case(name, commands, (("ledger", "participation", "run"), word), damage)


def cohort_bits(run: Run) -> Iterator[Case]:
    """The file of cohorts with a bit of it changed, a part of it gone, or as another thing."""
    content = run.files["ledger.cohorts"]
    commands = itertools.cycle([(VERIFY,), (LEDGER,), (RESUME,), (CLOSE,)])
    for bit in some(100, 8 * len(content), seed=16):
        yield Case(f"bit {bit}", next(commands), ("ledger", "cohort"), holding("run/ledger.cohorts", flipped(content, bit)))
    for length in some(40, len(content), seed=17):
        yield Case(f"{length} bytes", next(commands), ("ledger", "cohort"), holding("run/ledger.cohorts", content[:length]))
    yield Case("gone", EVERY, ("ledger", "cohort"), without("run/ledger.cohorts"))


def forged_order(run: Run) -> Iterator[Case]:
    for number, (name, records, word) in enumerate(_sequences(run)):
        commands = (VERIFY, RESUME) if number % 3 == 0 or "client in" in name else (VERIFY,)
        # To close a run needs records that follow each other, whatever they promise.
        commands += (CLOSE,) if isinstance(word, str) and "line" in word and number % 3 == 1 else ()
        where = ("ledger", "participation", "rounds", "run")
        yield Case(name, commands, (where, word), forged(canonical(record) for record in records))
