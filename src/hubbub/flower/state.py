"""The state of a run that survives a restart of the ServerApp: ledger, keys, model, and the wrapped strategy's arrays.

In addition to the files of every run (:mod:`hubbub.training.run_folder`) there is ``state/server.safetensors``: the model after
the last round and the arrays of the wrapped strategy, such as its momentum, all computed from releases and so not secret. A
release is kept until that file includes it.
"""

import hashlib
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy
from safetensors.numpy import save

from hubbub._util import files, strict_json
from hubbub._util.prf import Uncopied
from hubbub.errors import LedgerError
from hubbub.flower.arrays import Layout
from hubbub.flower.options import Options
from hubbub.ledger.chain import read_chain
from hubbub.ledger.promise import Promise
from hubbub.mechanism.strategies import strategy_arrays
from hubbub.training.evaluation import Evaluations
from hubbub.training.release import ReleasePath
from hubbub.training.rounds import CHECKPOINT_EVERY
from hubbub.training.run_folder import RunStore
from hubbub.training.run_folder.record import Metrics
from hubbub.training.run_folder.state import metadata, parse

# The most clients in a random cohort: sums of that many are exact.
MOST_CLIENTS = 2**26
_LARGEST = 2**36
_FILE = "state/server.safetensors"
_Entries = npt.NDArray[np.generic]
# The owner of each folder in this process: a new strategy takes it over, and the previous one is refused.
_OWNERS: WeakValueDictionary[Path, "ServerState"] = WeakValueDictionary()


class ServerState(Uncopied):
    """The state of an open run: its release path, not started yet, and its folder.

    ``rounds`` is the number of rounds in the stored model, ``clip_norm`` the next round's. ``closed``: another strategy has the
    folder.
    """

    def __init__(self, promise: Promise, layout: Layout, options: Options, dim: int) -> None:
        folder, self.promise, self._layout = options.folder, promise, layout
        self._store = None if folder is None else RunStore(folder, head_hook=options.head_hook)
        self._file = None if folder is None else folder / _FILE
        self.closed, self.clip_norm, self.rounds = False, 0.0, 0
        self._seed = options.simulation_seed or 0
        self._evaluations: Evaluations | None = None
        self._metrics: Metrics | None = None
        with ExitStack() as lock:
            if self._store and folder:
                if (folder / "ledger.jsonl").exists() and read_chain(folder / "ledger.jsonl").closed:
                    raise LedgerError(
                        f"state = {folder}: was closed and its keys destroyed; start a new run in another folder, whose "
                        "privacy cost adds to that of this one"
                    )
                if folder in _OWNERS:
                    _OWNERS[folder].close()
                lock.enter_context(self._store.locked())
            # Sums with noise by clients or holders are accepted only with that noise.
            self._path = ReleasePath(
                promise,
                dim,
                clients=options.num_sampled_clients or MOST_CLIENTS,
                seed=self._seed,
                store=self._store,
                head=options.head,
                noise_in_sums=promise.noise_in_sums,
            )
            self._lock = lock.pop_all()
        if folder is not None:
            finalize(self, self._lock.close)
            _OWNERS[folder] = self
            self._metrics = Metrics(folder / "metrics.jsonl", promise.rounds)
            if not (folder / "guarantee.json").exists():
                whole = promise.after(promise.rounds, promise.delta)
                files.write_atomic(folder / "guarantee.json", strict_json.canonical(whole.as_json()))

    @property
    def path(self) -> ReleasePath:
        """The path from a sum to a release."""
        if self.closed:
            raise LedgerError("state: another strategy has resumed this run; use that one")
        return self._path

    def evaluations(self) -> Evaluations | None:
        """The private evaluations of the run; ``None`` if it has none."""
        if self._evaluations is None:
            opened = Evaluations.of(self.path.ledger, clients=MOST_CLIENTS, seed=self._seed, store=self._store)
            self._evaluations = self._lock.enter_context(opened)
        return self._evaluations

    def close(self) -> None:
        """Release the folder."""
        self.closed = True
        self._lock.close()

    def restore(self, strategy: Strategy) -> ArrayRecord | None:
        """The model after :attr:`rounds` rounds, with the wrapped strategy's arrays restored; ``None`` if the run begins."""
        if self._file is None or not self._file.exists():
            return None
        with files.refusing(self._file, "cannot be read", "restore it from a copy of the folder"):
            content = files.read(self._file, at_most=_LARGEST)
            stated, tensors = metadata(content), {name: t.numpy() for name, t in parse(content).items()}
            if stated["sha256"] != _digest(tensors, stated):
                raise ValueError("its SHA-256 is not that of its arrays, rounds and clip norm")
            self.rounds, self.clip_norm = int(stated["rounds"]), float(stated["clip_norm"])
            if not 0 <= self.rounds <= self.path.next_round or not math.isfinite(self.clip_norm):
                raise ValueError(f"it is of {self.rounds} rounds, the ledger of {self.path.next_round}")
            bound = self.path.ledger.history.files
            if bound is not None and bound.get(_FILE) != hashlib.sha256(content).hexdigest():
                raise ValueError("it is not the file that the ledger binds")
            model = ArrayRecord({name: Array(tensors[f"model/{name}"]) for name in self._layout.order})
            if Layout.of(model) != self._layout:
                raise ValueError("it holds another model")
            _put_back(strategy, tensors, self._layout)
            return model

    def bind(self) -> None:
        """Record the digests of model and guarantee in the ledger."""
        if self._store and self._file and self._file.exists() and self.path.ledger.pending() is None:
            self.path.ledger.bind({name: self._store.digest(name) for name in (_FILE, "guarantee.json")})

    def save(self, arrays: ArrayRecord, strategy: Strategy) -> None:
        """Store the model and the wrapped strategy's arrays after the rounds so far, and discard the releases before."""
        charged, self.rounds = self.path.next_round > self.rounds, self.path.next_round
        if self._file is None or self._store is None:
            return
        tensors = {f"model/{name}": np.array(array.numpy()) for name, array in arrays.items()}
        tensors.update(_known(strategy))
        stated = {"rounds": str(self.rounds), "clip_norm": repr(self.clip_norm)}
        files.write_atomic(self._file, save(tensors, {**stated, "sha256": _digest(tensors, stated)}))
        if self.rounds % CHECKPOINT_EVERY == 0 and charged:
            self.path.keep_noise()
        for round_index in self._store.released():
            if round_index < self.rounds:
                self._store.discard_release(round_index)
        if charged and self._metrics:
            spent = self.path.ledger.spent(self.path.ledger.promise.delta)
            epsilon = strict_json.finite_or_none(spent.epsilon)
            row: dict[str, Any] = {"round_index": self.rounds - 1, "epsilon": epsilon, "delta": spent.delta, "private": []}
            if self.path.ledger.rounds[-1] == "aborted":
                row["released"] = False
            self._metrics.add(row, {"clip_norm": self.clip_norm, "heads_waiting": self._store.heads_waiting})
        if self.rounds >= self.promise.rounds:
            self.bind()


def recorded(folder: Path | None) -> tuple[int, dict[str, Any]]:
    """The number of rounds in a folder's ledger, and the record of its promise; (0, {}) without a ledger."""
    path = None if folder is None else folder / "ledger.jsonl"
    if path is None or not path.exists():
        return 0, {}
    chain = read_chain(path)
    return chain.begun, dict(chain.records[0])


def promise_on_record(promise: Promise, folder: Path | None) -> Promise:
    """What the run in a folder promised; one of another mechanism is refused. Without a ledger it is ``promise``."""
    before = recorded(folder)[1]
    if not before:
        return promise
    # Epsilon, which counts private evaluations, at the delta of then. Through JSON, in which a tuple is a list.
    now = replace(promise, delta=before.get("delta", promise.delta)).record()["mechanism"]
    if before.get("mechanism") != strict_json.loads(strict_json.canonical(now)):
        raise LedgerError(f"state = {folder}: holds a run of another mechanism; give its settings, or a folder of its own")
    return Promise.from_record(before, strategy_arrays(promise.mechanism.strategy) if promise.mechanism else {})


def _known(strategy: Strategy) -> dict[str, _Entries]:
    """The arrays that a strategy keeps between rounds, by ``kind/attribute/key``."""
    found: dict[str, _Entries] = {}
    for attribute, value in vars(strategy).items():
        kind, parts = "", dict[str, object]()
        if isinstance(value, ArrayRecord):
            kind, parts = "record", {name: array.numpy() for name, array in value.items()}
        elif isinstance(value, dict):
            kind, parts = "dict", value
        elif isinstance(value, list):
            kind, parts = "list", {f"{i:06d}": entries for i, entries in enumerate(value)}
        if all(isinstance(entries, np.ndarray | np.generic) for entries in parts.values()):
            found.update({f"{kind}/{attribute}/{key}": np.array(entries) for key, entries in parts.items()})
    return {name: entries for name, entries in found.items() if entries.dtype.kind in "fiub"}


def _put_back(strategy: Strategy, tensors: dict[str, _Entries], layout: Layout) -> None:
    kept: dict[tuple[str, str], dict[str, _Entries]] = {}
    for name, entries in tensors.items():
        kind, _, rest = name.partition("/")
        if kind != "model":
            attribute, _, key = rest.partition("/")
            kept.setdefault((kind, attribute), {})[key] = entries
    for (kind, attribute), parts in kept.items():
        if attribute not in vars(strategy):
            raise ValueError(f"the wrapped strategy, {type(strategy).__name__}, has no {attribute}: wrap the one of before")
        match kind:
            case "record":
                setattr(strategy, attribute, ArrayRecord({name: Array(parts[name]) for name in layout.names if name in parts}))
            case "dict":
                setattr(strategy, attribute, {name: parts[name] for name in [*layout.names, *parts] if name in parts})
            case _:
                setattr(strategy, attribute, [parts[key] for key in sorted(parts)])


def _digest(tensors: Mapping[str, _Entries], stated: Mapping[str, str]) -> str:
    digest = hashlib.sha256(f"{stated['rounds']} {stated['clip_norm']}\n".encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}\n".encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()
