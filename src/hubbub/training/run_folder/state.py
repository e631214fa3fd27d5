"""The state that a run begins with or resumes from: tensors, each file compared with a SHA-256 before anything is believed.

A checkpoint is what its manifest names. A run with a warm start begins with the model of a finished one and the state of that
one's server optimizer, both made of that run's releases alone: the promise names them by digest, under ``extends`` of its
settings; they lie in ``state/initial.safetensors``, and ``segments.json`` says where the runs lie.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from hubbub._util import files, strict_json
from hubbub._util.checks import integer
from hubbub.errors import RunFolderError
from hubbub.ledger.promise import Extends
from hubbub.noise import NoiseStream

__all__ = [
    "START",
    "Checkpoint",
    "Segments",
    "Start",
    "begins_with",
    "metadata",
    "model_digest",
    "optimizer_digest",
    "optimizer_state",
    "parse",
    "refusing",
    "take_up",
]

Tensors = dict[str, torch.Tensor]

# What a run begins with, in its folder.
START = "state/initial.safetensors"
_SEGMENTS = "segments.json"
_OPTIMIZER = "optimizer."
# Of the file that holds the start: whose model it is.
_OF = {"of": "a finished run"}
_SCHEMA = 1
_LARGEST, _LARGEST_TEXT = 2**36, 2**20


@contextmanager
def refusing(path: Path, what: str, then: str = "restore it") -> Iterator[None]:
    """Inside, a file that cannot be read, or does not hold what it should, is refused by its name.

    Args:
        path: The file.
        what: What it is not, or does not say.
        then: The next step.

    Raises:
        RunFolderError: Such a file.
    """
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror}); {then}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"has no {error}" if isinstance(error, KeyError) else error
        raise RunFolderError(f"{path}: {what} ({why}); {then}") from error


def parse(content: bytes) -> Tensors:
    """The tensors by name.

    Raises:
        ValueError: It is no file of tensors.
    """
    _header(content)
    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        # Names in the file may be anything, and messages are read on terminals.
        raise ValueError(f"it is no file of tensors: {str(error).encode('unicode_escape').decode()}") from error


def metadata(content: bytes) -> dict[str, Any]:
    """What the file says in addition to its tensors.

    Raises:
        ValueError: It is no file of tensors.
    """
    found = _header(content).get("__metadata__", {})
    if not isinstance(found, dict):
        raise ValueError("its metadata are no table")
    return found


def _header(content: bytes) -> dict[str, Any]:
    """What a file says of its tensors, as a table."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > len(content) - 8:
        raise ValueError(f"its header claims {length} of {len(content)} bytes")
    header = strict_json.loads(content[8 : 8 + length])
    if not isinstance(header, dict):
        raise ValueError("its header is no table")
    return header


def _parted(tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, Tensors]:
    """A model, ``(dim,)``, together with what an optimizer keeps, by name; checked, but for whose they are."""
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
    """Write a model over a vector, and the state of its optimizer over that one's."""
    if model.shape != vector.shape or model.dtype != vector.dtype:
        raise ValueError(
            f"holds a model of {tuple(model.shape)} {model.dtype}, this run has {tuple(vector.shape)} {vector.dtype}"
        )
    with torch.no_grad():
        vector.copy_(model)
    if state:
        optimizer.state[vector] = {name: t if t.ndim == 0 else t.to(vector.device) for name, t in state.items()}


class Checkpoint:
    """What a manifest names.

    Args:
        path: Of the manifest; its files lie next to it.
        again: Whether the state can be made again from the releases, which a message then says.

    Raises:
        RunFolderError: It is damaged; so say the methods of what it holds.
    """

    def __init__(self, path: Path, *, again: bool) -> None:
        self._path, self._then = (
            path,
            f"remove {path.name} to make the state again from the releases" if again else "restore it",
        )
        with self._refusing(path.name):
            manifest = strict_json.loads(files.read(path, at_most=_LARGEST_TEXT))
            if not isinstance(manifest, dict) or set(manifest) != {"schema", "rounds", "head", "files"}:
                raise ValueError("it must name schema, rounds, head and files")
            if (schema := integer("schema", manifest["schema"], at_least=0)) != _SCHEMA:
                raise ValueError(f"schema = {schema}: this hubbub reads schema {_SCHEMA}; use the one that wrote it")
            self.rounds = integer("rounds", manifest["rounds"], at_least=1)
            self.head = str(manifest["head"])
            self._parts = self._read(manifest["files"])

    def _read(self, stated: object) -> dict[str, Tensors]:
        """The tensors of each file that the manifest names, by its name."""
        self._own, self._noise = (f"{what}-{self.rounds}.safetensors" for what in ("checkpoint", "noise"))
        if not isinstance(stated, dict) or self._own not in stated or not set(stated) <= {self._own, self._noise}:
            raise ValueError(f"files: must name {self._own}, and {self._noise} where there is noise")
        found = {}
        for name, facts in stated.items():
            if not isinstance(facts, dict) or set(facts) != {"sha256", "bytes"}:
                raise ValueError(f"files: {name} must have its sha256 and bytes")
            with self._refusing(name):
                content = files.read(self._path.with_name(name), at_most=_LARGEST)
                if hashlib.sha256(content).hexdigest() != facts["sha256"] or len(content) != facts["bytes"]:
                    raise ValueError("its SHA-256 or its length is not the manifest's")
                found[name] = parse(content)
        return found

    def _refusing(self, name: str) -> AbstractContextManager[None]:
        """As :func:`refusing`, of one of its files."""
        return refusing(self._path.with_name(name), "is no checkpoint of this run", self._then)

    @property
    def names(self) -> list[str]:
        """Its files next to the manifest."""
        return list(self._parts)

    @property
    def model(self) -> torch.Tensor:
        """The model, ``(dim,)``."""
        return self._model()[0]

    def _model(self) -> tuple[torch.Tensor, Tensors]:
        """The model, and what its optimizer keeps."""
        with self._refusing(self._own):
            model, state = _parted({name: tensor for name, tensor in self._parts[self._own].items() if name != "clip_norm"})
            if not model.is_floating_point() or not bool(torch.isfinite(model).all()):
                raise ValueError(f"model is {model.dtype} {tuple(model.shape)}, or not finite")
            return model, state

    def restore_model(self, vector: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Put the model and the optimizer's state back."""
        model, state = self._model()
        with self._refusing(self._own):
            _put(model, state, vector, optimizer)

    def clip_norm(self) -> float | None:
        """The clip norm of the next round, where it moves."""
        kept = self._parts[self._own].get("clip_norm")
        with self._refusing(self._own):
            if kept is not None and (kept.dtype != torch.float64 or kept.ndim or not 0 < float(kept) < math.inf):
                raise ValueError(f"clip_norm is {kept.dtype} {tuple(kept.shape)}, or not above 0")
        return None if kept is None else float(kept)

    def restore_noise(self, noise: NoiseStream) -> None:
        """Put the stream where it was."""
        rows = dict(self._parts.get(self._noise, {}))
        drawn = rows.pop("drawn", None)
        names = [f"memory.{i:06d}" for i in range(len(rows))]
        with self._refusing(self._noise):
            if drawn is None or drawn.dtype != torch.int64 or drawn.ndim or sorted(rows) != names:
                raise ValueError("it must hold a whole number, drawn, and rows memory.000000 and on")
            state = {"round_index": self.rounds, "drawn": int(drawn), "memory": [rows[name] for name in names]}
            try:
                noise.load_state_dict(state)
            except RunFolderError as error:
                raise ValueError(str(error)) from error


def model_digest(vector: torch.Tensor) -> str:
    """SHA-256 of a model as one flat vector, ``(dim,)``, in float64.

    Example:
        >>> model_digest(torch.ones(3)) == model_digest(torch.ones(3, dtype=torch.float64))
        True
    """
    return hashlib.sha256(vector.detach().cpu().to(torch.float64).numpy().tobytes()).hexdigest()


def optimizer_digest(state: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of an optimizer's state; empty where it has none."""
    if not state:
        return ""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(strict_json.canonical([name, str(tensor.dtype), list(tensor.shape)]))
        digest.update(tensor.to(torch.float64).numpy().tobytes())
    return digest.hexdigest()


def optimizer_state(optimizer: torch.optim.Optimizer, vector: torch.Tensor) -> Tensors:
    """What an optimizer keeps of its one vector from step to step, by name."""
    kept = optimizer.state.get(vector, {})
    return {name: torch.as_tensor(value).detach().clone() for name, value in kept.items() if value is not None}


@dataclass(frozen=True, eq=False)
class Start:
    """What a run begins with, in its folder.

    Args:
        model: ``(dim,)``.
        optimizer: What it takes over of a finished run's optimizer, by name.
        finished: Whether the model is that of a finished run.
    """

    model: torch.Tensor
    optimizer: Mapping[str, torch.Tensor]
    finished: bool = False

    @classmethod
    def read(cls, folder: Path) -> "Start":
        """That of a run's folder.

        Raises:
            RunFolderError: It is not there, or is damaged.
        """
        path = folder / START
        with refusing(path, "is no model"):
            content = files.read(path, at_most=_LARGEST)
            return cls(*_parted(parse(content)), metadata(content) == _OF)

    def write(self, folder: Path) -> None:
        """Put it into the folder of a new run, durably; call it with the folder locked."""
        if self.finished and (folder / "ledger.jsonl").exists():
            raise RunFolderError(f"{folder}: holds a run that has begun, whose start cannot be changed")
        tensors = {"model": self.model, **{f"{_OPTIMIZER}{name}": tensor for name, tensor in self.optimizer.items()}}
        kept = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        files.write_atomic(folder / START, save(kept, _OF if self.finished else None))


def begins_with(extends: Extends | None, start: Start) -> str:
    """Why a run may not begin so, in words; empty where it may.

    Args:
        extends: What the run's promise says of the finished one that it extends.
        start: What it begins with.
    """
    if extends is None and start.finished:
        return "is the model of a finished run, and this run does not extend one, so that nothing counts that one's cost"
    if extends is None:
        return "holds the state of an optimizer, and this run begins by itself" if start.optimizer else ""
    if model_digest(start.model) != extends.model:
        return f"is not the model that the run of ledger {extends.ledger[:16]} ended with, with which this run is to begin"
    if optimizer_digest(start.optimizer) != extends.optimizer:
        return f"does not hold the optimizer's state that the run of ledger {extends.ledger[:16]} ended with"
    return ""


def take_up(extends: Extends | None, vector: torch.Tensor, optimizer: torch.optim.Optimizer, folder: Path | None) -> None:
    """Let a run begin with what its folder keeps, which a new run puts there first.

    Args:
        extends: What the run's promise says of the finished one that it extends.
        vector: The model, ``(dim,)``, which is written over.
        optimizer: Of the run.
        folder: Without one a run begins with the model as it is, and there is no state of an optimizer.

    Raises:
        RunFolderError: What is kept is of another shape or dtype, or is not what the promise says.
    """
    kept = folder is not None and os.path.lexists(folder / START)
    start, where = Start.read(folder) if folder and kept else Start(vector, {}), folder / START if folder else "model"
    try:
        if why := begins_with(extends, start):
            by_itself = "" if extends else ", or begin by yourself in another one"
            raise ValueError(f"{why}; extend that run, into a new folder{by_itself}")
        if folder and not kept and not os.path.lexists(folder / "ledger.jsonl"):
            # Of a run that has begun, the ledger decides whether this is its model.
            start.write(folder)
        _put(start.model, start.optimizer, vector, optimizer)
    except ValueError as error:
        raise RunFolderError(f"{where}: {error}") from error


@dataclass(frozen=True)
class Segments:
    """Where the runs lie that belong together: which one a run extends, and which ones extend it.

    Args:
        goes_on_from: A folder, or ``None``.
        went_on_in: Folders, in the order in which they began.
    """

    goes_on_from: str | None = None
    went_on_in: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: Path) -> "Segments":
        """Those of a run's folder."""
        path = folder / _SEGMENTS
        if not os.path.lexists(path):
            return cls()
        with refusing(path, "does not say which runs belong together"):
            stated = strict_json.loads(files.read(path, at_most=_LARGEST_TEXT))
            origin, others = stated["goes_on_from"], stated["went_on_in"]
            if (
                not isinstance(origin, str | None)
                or not isinstance(others, list)
                or not all(isinstance(o, str) for o in others)
            ):
                raise ValueError("goes_on_from must be a folder or null, went_on_in a list of folders")
            return cls(origin, tuple(others))

    def write(self, folder: Path) -> None:
        """Put them into a run's folder, durably."""
        content = {"goes_on_from": self.goes_on_from, "went_on_in": list(self.went_on_in)}
        files.write_atomic(folder / _SEGMENTS, strict_json.canonical(content))
