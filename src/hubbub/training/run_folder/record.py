"""The record of a run in its folder: metrics, and the comparison of releases, checkpoint, keys and metrics with the ledger.

``metrics.jsonl`` has one strict JSON object a round. The public numbers of the last round are in ``metrics.prom``, in
Prometheus' format, and go to the logger ``hubbub.rounds``.

*Traces* are the files whose records the ledger must have. Each is written after its record, and a key, which comes before, has
no number until then. So if a record is missing, the ledger was rolled back, or is another run's: no crash leaves such a folder.
"""

import hashlib
import io
import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hubbub._util import files, strict_json
from hubbub._util.checks import finite, integer, non_negative, one_of, table
from hubbub._util.files import refusing
from hubbub.errors import LedgerError, RunFolderError
from hubbub.ledger.actual_cost import Recorded
from hubbub.ledger.chain import Chain, read_chain
from hubbub.ledger.history import History
from hubbub.ledger.promise import Promise
from hubbub.training.run_folder import RunStore

_LARGEST = 2**32
_NUMBERS = ("loss", "accuracy", "clients", "clients_per_second", "seconds", "clipped_fraction", "train_loss", "clip_norm")
# Numbers that depend on clients only through releases, or on public test data, unless a row names them as private; and a time.
_PUBLIC = {
    "rounds": "Rounds of which a cost is recorded, aborted ones among them.",
    "rounds_planned": "Rounds that the run may have.",
    "rounds_aborted": "Rounds that were aborted: their cost is spent.",
    "epsilon": "Epsilon of the rounds so far.",
    "delta": "Delta of that epsilon.",
    "clip_norm": "Clip norm, as it is now.",
    "loss": "Loss on public test examples.",
    "accuracy": "Accuracy on public test examples.",
    "heads_waiting": "Heads of the ledger that the hook has not taken.",
    "last_round_timestamp_seconds": "When the last round ended.",
}
_LOG = logging.getLogger("hubbub.rounds")
_OF_ENCRYPTION = ("encrypt_seconds", "aggregate_seconds", "decrypt_seconds", "upload_bytes")


def read_metrics(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The rows and their size in bytes; without a last line cut off by a crash, or zeros left by a loss of power."""
    if not os.path.lexists(path):
        return [], 0
    rows: list[dict[str, Any]] = []
    size = 0
    with refusing(path, "cannot be read", then="to resume the run, move it away"):
        # Split at line feeds only.
        lines = io.BytesIO(files.read(path, at_most=_LARGEST))
    for number, content in enumerate(lines, start=1):
        if not content.endswith(b"\n") or (b"\0" in content and content[:1] in (b"{", b"\0")):
            break
        with refusing(Path(f"{path}, line {number}"), "is no row of metrics", then="to resume the run, move the file away"):
            rows.append(_row(strict_json.loads(content), after=rows[-1]["round_index"] if rows else -1))
        size += len(content)
    return rows, size


def _row(row: Any, after: int) -> dict[str, Any]:
    """A row of metrics, checked, with a place for each number."""
    if not isinstance(row, dict):
        raise TypeError(f"it is a {type(row).__name__}, not a table")
    integer("round_index", row["round_index"], at_least=after + 1)
    if row["epsilon"] is not None:
        non_negative("epsilon", row["epsilon"])
    for name in _NUMBERS:
        if row.setdefault(name, None) is not None:
            finite(name, row[name])
    for name in _OF_ENCRYPTION:
        if row.get(name) is not None:
            non_negative(name, row[name])
    for name, seconds in table("phases", row.get("phases", {})).items():
        non_negative(f"phases.{name}", seconds)
    for name, one in table("evaluation", row.get("evaluation", {})).items():
        finite(f"evaluation.{name}.value", table(f"evaluation.{name}", one)["value"])
        non_negative(f"evaluation.{name}.standard_error", one["standard_error"])
    private = row.get("private", [])
    if not isinstance(private, list) or not all(isinstance(name, str) for name in private):
        raise TypeError(f"private = {private!r}: must be a list of names")
    return row


class Metrics:
    """The metrics files of a running run. Nothing is written before the first row of this start.

    With ``HUBBUB_LOG=json`` in the environment the public numbers of each round are a line of JSON on the standard error.
    """

    def __init__(self, path: Path, planned: int) -> None:
        if (wanted := os.environ.get("HUBBUB_LOG")) and one_of("HUBBUB_LOG", wanted, ("json",)) and not _LOG.handlers:
            _LOG.addHandler(logging.StreamHandler())
            _LOG.setLevel(logging.INFO)
            _LOG.propagate = False
        self._path, self._planned, self._size = path, planned, read_metrics(path)[1]
        self._aborted: int | None = None

    def add(self, row: Mapping[str, Any], now: Mapping[str, float | None]) -> None:
        """Write a row as strict JSON (``None`` for what is not finite), and the public numbers of it and of ``now``."""
        if self._aborted is None:
            records = read_chain(self._path.with_name("ledger.jsonl")).records
            # The record of this round is among them.
            self._aborted = sum(record["kind"] == "abort" for record in records)
        elif "released" not in row["private"]:
            self._aborted += not row.get("released", True)
        line = strict_json.canonical(row) + b"\n"
        with files.opened(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW) as descriptor:
            # What a full disk or a crash left of a row goes; a file that was moved away begins anew.
            os.ftruncate(descriptor, min(self._size, os.fstat(descriptor).st_size))
            files.write_whole(partial(os.write, descriptor), line, self._path)
        self._size += len(line)
        numbers = {name: value for name, value in {**now, **row}.items() if name in _PUBLIC and name not in row["private"]}
        numbers |= {"rounds": row["round_index"] + 1, "rounds_planned": self._planned, "rounds_aborted": self._aborted}
        # An epsilon of None is infinite; another number of None was not measured.
        numbers = {name: value for name, value in numbers.items() if value is not None or name == "epsilon"}
        numbers["last_round_timestamp_seconds"] = round(time.time(), 3)
        run = self._path.parent.name
        label = run.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        # Prometheus' text format, version 0.0.4.
        exposition = "".join(
            f"# HELP hubbub_{name} {words}\n# TYPE hubbub_{name} gauge\n"
            f'hubbub_{name}{{run="{label}"}} {"+Inf" if numbers[name] is None else repr(numbers[name])}\n'
            for name, words in _PUBLIC.items()
            if name in numbers
        )
        files.write_atomic(self._path.with_suffix(".prom"), exposition.encode(errors="replace"))
        _LOG.info("%s", strict_json.canonical({"event": "round", "run": run, **numbers}).decode())


@dataclass(frozen=True)
class Traces:
    """The traces in a run's folder.

    They are the SHA-256 of each release, by round (empty if it is not to be compared), the rounds and the head of the last
    checkpoint, the rounds of the metrics, one more than the last incarnation with a numbered key, the last head that a hook
    took, and how many private evaluations were begun.
    """

    releases: Mapping[int, str]
    checkpoint: tuple[int, str] | None
    shown: int
    keyed: int
    taken: str | None
    evaluated: int

    @classmethod
    def of(cls, store: RunStore, *, digests: bool = True) -> "Traces":
        """The traces of a folder. Read them before the ledger, which then has the record of each, even of a running run."""
        evaluations, (rows, _) = store.evaluation().ledger_path, read_metrics(store.folder / "metrics.jsonl")
        return cls(
            releases={t: hashlib.sha256(store.release_content(t)).hexdigest() if digests else "" for t in store.released()},
            checkpoint=_checkpoint(store.folder / "state" / "checkpoint.json"),
            shown=int(rows[-1]["round_index"]) + 1 if rows else 0,
            keyed=store.epochs(),
            taken=store.taken(),
            evaluated=read_chain(evaluations).begun if os.path.lexists(evaluations) else 0,
        )

    @property
    def tell(self) -> bool:
        """Whether any trace shows how far the run went."""
        return bool(self.releases or self.checkpoint or self.shown or self.taken or self.evaluated)

    def unknown(self, promise: Promise, chain: Chain, history: History) -> Iterator[str]:
        """Each trace without a record in the ledger, in words."""
        rounds, evaluations = history.rounds, promise.evaluations(min(len(history.rounds), promise.rounds))
        known = {t for t, entry in enumerate(rounds) if entry.state != "aborted"}
        yield from (f"state/releases/{t}.safetensors is no release of it" for t in sorted(set(self.releases) - known))
        if self.checkpoint is not None and chain.rounds_at(self.checkpoint[1]) != self.checkpoint[0]:
            yield f"state/checkpoint.json goes with a ledger of {self.checkpoint[0]} rounds, with a head that it never had"
        if self.shown > len(rounds):
            yield f"metrics.jsonl goes to {self.shown} rounds"
        if self.keyed > len(history.epochs):
            yield f"the key of incarnation {self.keyed - 1} is there, of which it does not know"
        if history.unrecorded > 1:
            yield "ledger.cohorts has the cohorts of more rounds"
        if self.taken is not None and self.taken not in chain.hashes:
            yield "state/heads names a head that it never had"
        if self.evaluated > (evaluations[1] if evaluations else 0):
            yield f"there are {self.evaluated} private evaluations"

    def damaged(self, history: History) -> Iterator[int]:
        """The committed rounds whose release is not the one on record, in order."""
        for t, entry in enumerate(history.rounds):
            if entry.state == "committed" and self.releases.get(t, entry.release) != entry.release:
                yield t


def _checkpoint(path: Path) -> tuple[int, str] | None:
    """Rounds and head in the manifest, whatever else it names: a run is read whose checkpoint this version cannot resume."""
    if not os.path.lexists(path):
        return None
    with refusing(path, "is no manifest of a checkpoint"):
        manifest = strict_json.loads(files.read(path, at_most=2**20))
        return integer("rounds", manifest["rounds"], at_least=1), str(manifest["head"])


def ledger_of(folder: Path) -> Path:
    """The ledger of a run."""
    path = folder / "ledger.jsonl"
    with refusing(folder, "is no run", then="name a folder that you may read"):
        there = path.is_file()
    if not there and (folder / "published.json").is_file():
        step = f"its statement is in guarantee.json, and 'hubbub verify {folder}' checks it"
        raise RunFolderError(f"{folder}: is the published part of a run; {step}")
    if not there:
        raise RunFolderError(f"{folder}: is no run (ledger.jsonl not there); name the folder that 'hubbub train' made")
    return path


def read_run(folder: Path) -> Recorded:
    """A run's promise and history. Nothing is written, and no code is imported."""
    path, store = ledger_of(folder), RunStore(folder)
    traces = Traces.of(store)
    chain = read_chain(path)
    history = History.of_chain(chain)
    promise = Promise.from_record(chain.records[0], store.load_strategy())
    for unknown in traces.unknown(promise, chain, history):
        raise LedgerError(
            f"{path}: holds {len(history.rounds)} rounds, but {unknown}: it was rolled back, or is another run's; restore the "
            "ledger that goes with this folder"
        )
    for t in traces.damaged(history):
        raise LedgerError(
            f"{path}: holds {len(history.rounds)} rounds, but state/releases/{t}.safetensors is not what it says was released: "
            "that file is damaged, or is another run's; restore it"
        )
    return Recorded(str(folder), chain, promise, history, alone=not traces.tell)
