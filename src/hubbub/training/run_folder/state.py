"""The state that a run begins with or resumes from: tensors, each file compared with its SHA-256 before use.

A manifest names the files of a checkpoint. A warm start begins with the model and the server optimizer's state of a finished
run, both made of its releases alone. They are in ``state/initial.safetensors``; the promise has their digests, under
``extends`` of its settings, and ``segments.json`` names the folders of the related runs.
"""

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from hubbub._util import files, strict_json
from hubbub._util.checks import integer
from hubbub._util.files import refusing
from hubbub.errors import RunFolderError
from hubbub.ledger.promise import Extends

Tensors = dict[str, torch.Tensor]

# The initial state of a run, in its folder.
START = "state/initial.safetensors"
# The manifest of the last checkpoint.
CHECKPOINT = "state/checkpoint.json"
_SEGMENTS = "segments.json"
_OPTIMIZER = "optimizer."
# Metadata of the initial state of a warm start.
_OF = {"of": "a finished run"}
_SCHEMA = 1
_LARGEST, _LARGEST_TEXT = 2**36, 2**20


def parse(content: bytes) -> Tensors:
    """The tensors by name."""
    _header(content)
    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        # Names in the file may be anything, and messages are read on terminals.
        raise ValueError(f"it is no file of tensors: {str(error).encode('unicode_escape').decode()}") from error


def metadata(content: bytes) -> dict[str, Any]:
    """The metadata of a file of tensors."""
    found = _header(content).get("__metadata__", {})
    if not isinstance(found, dict):
        raise ValueError("its metadata are no table")
    return found


def _header(content: bytes) -> dict[str, Any]:
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > len(content) - 8:
        raise ValueError(f"its header claims {length} of {len(content)} bytes")
    header = strict_json.loads(content[8 : 8 + length])
    if not isinstance(header, dict):
        raise ValueError("its header is no table")
    return header


def _parted(tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, Tensors]:
    """A model, ``(dim,)``, and the state of an optimizer, by name; shapes and dtypes are checked."""
    state = {name.removeprefix(_OPTIMIZER): tensor for name, tensor in tensors.items() if name.startswith(_OPTIMIZER)}
    model = tensors.get("model")
    if model is None or model.ndim != 1 or len(tensors) != len(state) + 1:
        raise ValueError("it holds no model, or more than that and an optimizer's state")
    for name, tensor in state.items():
        if tensor.shape not in ((), model.shape) or not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, or not finite")
    return model, state


def _put(
    model: torch.Tensor, state: Mapping[str, torch.Tensor], vector: torch.Tensor, optimizer: torch.optim.Optimizer
) -> None:
    """Copy a model into a vector, and an optimizer's state into that of the vector's optimizer."""
    if model.shape != vector.shape or model.dtype != vector.dtype:
        raise ValueError(
            f"holds a model of {tuple(model.shape)} {model.dtype}, this run has {tuple(vector.shape)} {vector.dtype}"
        )
    with torch.no_grad():
        vector.copy_(model)
    if state:
        optimizer.state[vector] = {name: t if t.ndim == 0 else t.to(vector.device) for name, t in state.items()}


class Checkpoint:
    """The state of a run after some of its rounds, as the manifest at ``path`` names it; its ``file`` lies next to it.

    ``again`` says whether the state can be computed again from the releases; errors then say so. ``head`` is the ledger's after
    the rounds, ``clip_norm`` the next round's, ``None`` if it does not move.
    """

    def __init__(self, path: Path, *, again: bool) -> None:
        then = f"remove {path.name}, and the state is computed again from the releases" if again else "restore it"
        with refusing(path, "is no checkpoint of this run", then):
            manifest = strict_json.loads(files.read(path, at_most=_LARGEST_TEXT))
            if not isinstance(manifest, dict) or set(manifest) != {"schema", "rounds", "head", "sha256"}:
                raise ValueError("it must name schema, rounds, head and sha256")
            if (schema := integer("schema", manifest["schema"], at_least=0)) != _SCHEMA:
                raise ValueError(f"schema = {schema}: this hubbub reads schema {_SCHEMA}; use the one that wrote it")
            self.rounds, self.head = integer("rounds", manifest["rounds"], at_least=1), str(manifest["head"])
        self.file = path.with_name(f"checkpoint-{self.rounds}.safetensors")
        self._checked = partial(refusing, self.file, "is no checkpoint of this run", then)
        with self._checked():
            content = files.read(self.file, at_most=_LARGEST)
            if hashlib.sha256(content).hexdigest() != str(manifest["sha256"]):
                raise ValueError("its SHA-256 is not the manifest's")
            tensors = parse(content)
            norm = tensors.pop("clip_norm", None)
            if norm is not None and (norm.dtype != torch.float64 or norm.ndim or not 0 < norm < math.inf):
                raise ValueError(f"clip_norm is {norm.dtype} {tuple(norm.shape)}, or not above 0")
            self.clip_norm = None if norm is None else float(norm)
            self.model, self._optimizer = _parted(tensors)
            if not self.model.is_floating_point() or not bool(torch.isfinite(self.model).all()):
                raise ValueError(f"model is {self.model.dtype} {tuple(self.model.shape)}, or not finite")

    def restore(self, vector: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Copy the model and the optimizer's state."""
        with self._checked():
            _put(self.model, self._optimizer, vector, optimizer)


def model_digest(vector: torch.Tensor) -> str:
    """SHA-256 of a model as one flat vector, ``(dim,)``, in float64."""
    return hashlib.sha256(vector.detach().cpu().to(torch.float64).numpy().tobytes()).hexdigest()


def optimizer_digest(state: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of an optimizer's state; empty if it has none."""
    if not state:
        return ""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(strict_json.canonical([name, str(tensor.dtype), list(tensor.shape)]))
        digest.update(tensor.to(torch.float64).numpy().tobytes())
    return digest.hexdigest()


def optimizer_state(optimizer: torch.optim.Optimizer, vector: torch.Tensor) -> Tensors:
    """The state of an optimizer of one vector, by name."""
    kept = optimizer.state.get(vector, {})
    return {name: torch.as_tensor(value).detach().clone() for name, value in kept.items() if value is not None}


@dataclass(frozen=True, eq=False)
class Start:
    """The initial state of a run: a model, ``(dim,)``; if of a finished run, with the state of its optimizer, by name."""

    model: torch.Tensor
    optimizer: Mapping[str, torch.Tensor]
    finished: bool = False

    def restore(self, vector: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Copy the model and the optimizer's state."""
        _put(self.model, self.optimizer, vector, optimizer)

    @classmethod
    def read(cls, folder: Path) -> "Start":
        """The initial state in a run's folder."""
        path = folder / START
        with refusing(path, "is no model"):
            content = files.read(path, at_most=_LARGEST)
            return cls(*_parted(parse(content)), metadata(content) == _OF)

    def write(self, folder: Path) -> None:
        """Write it into the locked folder of a new run, durably."""
        if self.finished and (folder / "ledger.jsonl").exists():
            raise RunFolderError(f"{folder}: holds a run that has begun, whose start cannot be changed")
        tensors = {"model": self.model, **{f"{_OPTIMIZER}{name}": tensor for name, tensor in self.optimizer.items()}}
        kept = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        files.write_atomic(folder / START, save(kept, _OF if self.finished else None))


def begins_with(extends: Extends | None, start: Start) -> str:
    """Why a run may not begin with a state, in words; empty if it may."""
    if extends is None and start.finished:
        return "is the model of a finished run, whose cost this run, which extends none, would not count"
    if extends is None:
        return "holds the state of an optimizer, and this run begins by itself" if start.optimizer else ""
    if model_digest(start.model) != extends.model:
        return f"is not the model that the run of ledger {extends.ledger[:16]} ended with, with which this run is to begin"
    if optimizer_digest(start.optimizer) != extends.optimizer:
        return f"does not hold the optimizer's state that the run of ledger {extends.ledger[:16]} ended with"
    return ""


def take_up(extends: Extends | None, vector: torch.Tensor, optimizer: torch.optim.Optimizer, folder: Path | None) -> None:
    """Load the initial state of a run from its folder; a new run writes it there first."""
    begun = folder is not None and any(os.path.lexists(folder / name) for name in ("ledger.jsonl", "state/keys/epoch-0"))
    found = Start.read(folder) if folder and os.path.lexists(folder / START) else None
    # What a try that was refused left behind is nobody's start.
    kept = found is not None and (begun or found.finished or bool(found.optimizer))
    start, where = found if found and kept else Start(vector, {}), folder / START if folder else "model"
    try:
        if why := begins_with(extends, start):
            by_itself = "" if extends else ", or begin by yourself in another one"
            raise ValueError(f"{why}; extend that run, into a new folder{by_itself}")
        if folder and not kept and not begun:
            # Of a run that has begun, the ledger decides whether this is its model.
            start.write(folder)
        start.restore(vector, optimizer)
    except ValueError as error:
        raise RunFolderError(f"{where}: {error}") from error


@dataclass(frozen=True)
class Segments:
    """Folders of related runs: the one that a run extends, and those that extend it, in the order in which they began."""

    goes_on_from: str | None = None
    went_on_in: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: Path) -> "Segments":
        """The segments in a run's folder."""
        path = folder / _SEGMENTS
        if not os.path.lexists(path):
            return cls()
        with refusing(path, "does not say which runs belong together"):
            stated = strict_json.loads(files.read(path, at_most=_LARGEST_TEXT))
            origin, others = stated["goes_on_from"], stated["went_on_in"]
            if not isinstance(origin, str | None) or type(others) is not list or not all(isinstance(o, str) for o in others):
                raise ValueError("goes_on_from must be a folder or null, went_on_in a list of folders")
            return cls(origin, tuple(others))

    def write(self, folder: Path) -> None:
        """Write them into a run's folder, durably."""
        files.write_atomic(folder / _SEGMENTS, strict_json.canonical(asdict(self)))
