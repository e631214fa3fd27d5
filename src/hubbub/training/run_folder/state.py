"""The state that a run begins with or resumes from: tensors, each file compared with a SHA-256 before anything is believed.

A checkpoint is what its manifest names. A run with a warm start begins with the model of a finished one and the state of that
one's server optimizer, both made of that run's releases alone: the promise names them by digest, under ``extends`` of its
settings; they lie in ``state/initial.safetensors``, and ``segments.json`` says where the runs lie.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from hubbub._util import files, strict_json
from hubbub._util.checks import integer
from hubbub.errors import RunFolderError
from hubbub.ledger.promise import Extends
from hubbub.noise import NoiseStream

if TYPE_CHECKING:
    from hubbub.training.run_folder import RunStore

__all__ = [
    "START",
    "Checkpoint",
    "Segments",
    "begins_with",
    "finished_model",
    "keep_start",
    "metadata",
    "model_digest",
    "optimizer_digest",
    "optimizer_state",
    "parse",
    "read_start",
    "take_up",
]


def parse(content: bytes) -> dict[str, torch.Tensor]:
    """The tensors by name."""
    _header(content)
    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        # Names in the file may be anything, and messages are read on terminals.
        raise ValueError(f"it is no file of tensors: {str(error).encode('unicode_escape').decode()}") from error


def metadata(content: bytes) -> dict[str, Any]:
    """What the file says beside its tensors."""
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


_LARGEST_MANIFEST = 2**20
_LARGEST = 2**36
_SCHEMA = 1


class Checkpoint:
    """What a manifest names.

    Args:
        path: Of the manifest; its files lie beside it.
        again: Whether the state can be made again from the releases, which a message then says.
    """

    def __init__(self, path: Path, *, again: bool) -> None:
        self._at, self._again = path, f"; remove {path.name} to make the state again from the releases" if again else ""
        try:
            manifest = strict_json.loads(files.read(path, at_most=_LARGEST_MANIFEST))
            if not isinstance(manifest, dict) or set(manifest) != {"schema", "rounds", "head", "files"}:
                raise ValueError("it must name schema, rounds, head and files")
            if integer("schema", manifest["schema"], at_least=0) != _SCHEMA:
                raise ValueError(
                    f"schema = {manifest['schema']}: this hubbub reads schema {_SCHEMA}; use the one that wrote it"
                )
            self.rounds = integer("rounds", manifest["rounds"], at_least=1)
            self.head = str(manifest["head"])
            self._read(manifest["files"])
        except OSError as error:
            raise self._refused(error.strerror or str(error)) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._refused(f"has no {error}" if isinstance(error, KeyError) else str(error)) from error

    def _read(self, stated: dict[str, Any]) -> None:
        folder, wanted = self._at.parent, f"checkpoint-{self.rounds}.safetensors"
        self._noise_name = f"noise-{self.rounds}.safetensors"
        if not isinstance(stated, dict) or wanted not in stated or not set(stated) <= {wanted, self._noise_name}:
            raise ValueError(f"files: must name {wanted}, and {self._noise_name} where there is noise")
        self._parts = {}
        for name, facts in stated.items():
            if not isinstance(facts, dict) or set(facts) != {"sha256", "bytes"}:
                raise ValueError(f"files: {name} must have its sha256 and bytes")
            self._at = folder / name
            content = files.read(self._at, at_most=_LARGEST)
            if hashlib.sha256(content).hexdigest() != facts["sha256"] or len(content) != facts["bytes"]:
                raise ValueError("its SHA-256 or its length is not the manifest's")
            self._parts[name] = parse(content)
        self._at = folder / wanted
        self._model = self._parts[wanted]

    @property
    def names(self) -> list[str]:
        """Its files beside the manifest."""
        return list(self._parts)

    @property
    def model(self) -> torch.Tensor:
        """The model, ``(dim,)``."""
        model = self._model.get("model")
        if model is None:
            raise self._refused("it holds no model")
        return model

    def restore_model(self, vector: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Put the model and the optimizer's state back."""
        model = self._model.get("model")
        if model is None or model.shape != vector.shape or model.dtype != vector.dtype:
            held = "no model" if model is None else f"a model of {tuple(model.shape)} {model.dtype}"
            raise self._refused(f"it holds {held}, this run has {tuple(vector.shape)} {vector.dtype}")
        kept = {name.removeprefix("optimizer."): t for name, t in self._model.items() if name not in ("model", "clip_norm")}
        for name, value in {"model": model, **kept}.items():
            if value.shape not in ((), vector.shape) or not value.is_floating_point() or not bool(torch.isfinite(value).all()):
                raise self._refused(f"{name} is {value.dtype} {tuple(value.shape)}, or not finite")
        with torch.no_grad():
            vector.copy_(model)
        if kept:
            optimizer.state[vector] = {name: t if t.ndim == 0 else t.to(vector.device) for name, t in kept.items()}

    def clip_norm(self) -> float | None:
        """The clip norm of the next round, where it moves."""
        kept = self._model.get("clip_norm")
        if kept is None:
            return None
        if kept.dtype != torch.float64 or kept.ndim or not 0 < float(kept) < math.inf:
            raise self._refused(f"clip_norm is {kept.dtype} {tuple(kept.shape)}, or not above 0")
        return float(kept)

    def restore_noise(self, noise: NoiseStream) -> None:
        """Put the stream where it was."""
        rows = dict(self._parts.get(self._noise_name, {}))
        self._at = self._at.with_name(self._noise_name)
        drawn = rows.pop("drawn", None)
        names = [f"memory.{i:06d}" for i in range(len(rows))]
        if drawn is None or drawn.dtype != torch.int64 or drawn.ndim or sorted(rows) != names:
            raise self._refused("it must hold a whole number, drawn, and rows memory.000000 and on")
        try:
            noise.load_state_dict({"round_index": self.rounds, "drawn": int(drawn), "memory": [rows[name] for name in names]})
        except (ValueError, TypeError, RunFolderError) as error:
            raise self._refused(str(error)) from error

    def _refused(self, why: str) -> RunFolderError:
        return RunFolderError(f"{self._at}: is no checkpoint of this run ({why}){self._again}")


# What a run begins with, in its folder.
START = "state/initial.safetensors"
_PREFIX = "optimizer."
# Of the file that holds the start: whose model it is.
_OF = {"of": "a finished run"}
_LARGEST_NAMES = 2**20
_FILE = "segments.json"


def model_digest(vector: torch.Tensor) -> str:
    """SHA-256 of a model as one flat vector, ``(dim,)``, in float64."""
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


def optimizer_state(optimizer: torch.optim.Optimizer, vector: torch.Tensor) -> dict[str, torch.Tensor]:
    """What an optimizer keeps of its one vector from step to step, by name."""
    kept = optimizer.state.get(vector, {})
    return {name: torch.as_tensor(value).detach().clone() for name, value in kept.items() if value is not None}


def _initial(store: RunStore) -> Path:
    return store.folder / START


def keep_start(store: RunStore, vector: torch.Tensor, optimizer: Mapping[str, torch.Tensor]) -> None:
    """Put into the folder of a new run what it begins with; call it with the folder locked."""
    if store.ledger_path.exists():
        raise RunFolderError(f"{store.folder}: holds a run that has begun, whose start cannot be changed")
    tensors = {"model": vector, **{f"{_PREFIX}{name}": tensor for name, tensor in optimizer.items()}}
    kept = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    files.write_atomic(_initial(store), save(kept, _OF))


def read_start(store: RunStore) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The model that a run began with, ``(dim,)``, and what it took over of an optimizer."""
    path = _initial(store)
    try:
        tensors = parse(files.read(path, at_most=_LARGEST))
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror}); restore it") from error
    except ValueError as error:
        raise RunFolderError(f"{path}: is no model ({error}); restore it") from error
    model = tensors.pop("model", None)
    if model is None or model.ndim != 1 or not all(name.startswith(_PREFIX) for name in tensors):
        raise RunFolderError(f"{path}: holds no model; restore it")
    for name, tensor in tensors.items():
        if tensor.shape not in ((), model.shape) or not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise RunFolderError(f"{path}: {name} is {tensor.dtype} {tuple(tensor.shape)}, or not finite; restore it")
    return model, {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}


def finished_model(store: RunStore) -> str:
    """That what a run begins with was put there by :func:`keep_start`, in words; empty where it was not."""
    path = _initial(store)
    try:
        if metadata(files.read(path, at_most=_LARGEST)) != _OF:
            return ""
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror}); restore it") from error
    except ValueError as error:
        raise RunFolderError(f"{path}: is no model ({error}); restore it") from error
    return f"{path}: is the model of a finished run, and this run does not go on from one, so that nothing charges that one"


def begins_with(extends: Extends | None, model: str, optimizer: str) -> str:
    """Why a run may not begin with a model and an optimizer's state of these digests, in words; empty where it may."""
    if extends is None:
        return "holds the state of an optimizer, and this run begins by itself" if optimizer else ""
    if model != extends.model:
        return f"is not the model that the run of ledger {extends.ledger[:16]} ended with, from which this run is to go on"
    if optimizer != extends.optimizer:
        return f"does not hold the optimizer's state that the run of ledger {extends.ledger[:16]} ended with"
    return ""


def take_up(extends: Extends | None, vector: torch.Tensor, optimizer: torch.optim.Optimizer, store: RunStore | None) -> None:
    """Let a run begin where the finished one ended: its optimizer takes the state that is kept in the folder.

    Args:
        extends: What the run's promise says of the finished one.
        vector: The model as the run begins with it, ``(dim,)``.
        optimizer: Of the run.
        store: The folder, which holds the start; without one there is no state of an optimizer.
    """
    state = read_start(store)[1] if store else {}
    if store and extends is None and (why := finished_model(store)):
        raise RunFolderError(f"{why}; extend that run, into a new folder, or begin by yourself in another one")
    if why := begins_with(extends, model_digest(vector), optimizer_digest(state)):
        where = _initial(store) if store else "model"
        raise RunFolderError(f"{where}: {why}; extend that run again, into a new folder")
    if state:
        optimizer.state[vector] = {name: t if t.ndim == 0 else t.to(vector.device) for name, t in state.items()}


@dataclass(frozen=True)
class Segments:
    """Where the runs lie that belong together: which one a run goes on from, and which ones go on from it.

    Args:
        goes_on_from: A folder, or ``None``.
        went_on_in: Folders, in the order in which they began.
    """

    goes_on_from: str | None = None
    went_on_in: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: Path) -> Segments:
        """Those of a run's folder."""
        path = folder / _FILE
        if not os.path.lexists(path):
            return cls()
        try:
            stated = strict_json.loads(files.read(path, at_most=_LARGEST_NAMES))
            origin, others = stated["goes_on_from"], stated["went_on_in"]
            if (
                not isinstance(origin, str | None)
                or not isinstance(others, list)
                or not all(isinstance(o, str) for o in others)
            ):
                raise ValueError("goes_on_from must be a folder or null, went_on_in a list of folders")
        except OSError as error:
            raise RunFolderError(f"{path}: cannot be read ({error.strerror}); restore it") from error
        except (ValueError, TypeError, KeyError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else str(error)
            raise RunFolderError(f"{path}: does not say which runs belong together ({what}); restore it") from error
        return cls(origin, tuple(others))

    def write(self, folder: Path) -> None:
        """Put them into a run's folder, durably."""
        content = {"goes_on_from": self.goes_on_from, "went_on_in": list(self.went_on_in)}
        files.write_atomic(folder / _FILE, strict_json.canonical(content))
