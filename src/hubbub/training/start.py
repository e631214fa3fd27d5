"""What a run begins with, where it goes on from a finished one: that run's model and the state of its server's optimizer.

Both are made of that run's releases alone. The promise names them by digest, under ``extends`` of its settings, so that nothing
else can be put in their place; they lie in ``state/initial.safetensors``. ``segments.json`` says where the runs lie.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from hubbub import files, strict_json
from hubbub.errors import RunFolderError
from hubbub.training.store import RunStore
from hubbub.training.tensors import metadata, parse

__all__ = [
    "EXTENDS",
    "START",
    "Extends",
    "Segments",
    "begins_with",
    "finished_model",
    "keep_start",
    "model_digest",
    "optimizer_digest",
    "optimizer_state",
    "read_start",
    "take_up",
]

# Of the settings of a promise.
EXTENDS = "extends"
# What a run begins with, in its folder.
START = "state/initial.safetensors"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PREFIX = "optimizer."
# Of the file that holds the start: whose model it is.
_OF = {"of": "a finished run"}
_LARGEST, _LARGEST_NAMES = 2**36, 2**20
_FILE = "segments.json"


@dataclass(frozen=True)
class Extends:
    """What the promise of a run says of the finished one that it goes on from.

    Args:
        ledger: Hash of the first record of that run's ledger.
        head: Hash of its last record, when this run began.
        model: Of the model that this run begins with, as :func:`model_digest` has it.
        optimizer: Of the optimizer's state, as :func:`optimizer_digest` has it; empty where it begins anew.

    Raises:
        ValueError: One that is no digest.
    """

    ledger: str
    head: str
    model: str
    optimizer: str = ""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, str) or not (_DIGEST.fullmatch(value) or (name == "optimizer" and not value)):
                raise ValueError(f"extends.{name} = {str(value)[:80]!r}: must be 64 hexadecimal digits")

    def record(self) -> dict[str, str]:
        """It as strict JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Extends | None":
        """What the settings of a promise say; ``None`` for a run that begins by itself.

        Raises:
            ValueError: They say something else than what can be.
        """
        stated = settings.get(EXTENDS)
        if stated is None:
            return None
        if not isinstance(stated, Mapping) or set(stated) != set(cls.__dataclass_fields__):
            raise ValueError(f"extends = {str(stated)[:80]!r}: must name {', '.join(cls.__dataclass_fields__)}")
        return cls(**stated)


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
    """Put into the folder of a new run what it begins with; call it with the folder locked.

    Raises:
        RunFolderError: The run has begun.
    """
    if store.ledger_path.exists():
        raise RunFolderError(f"{store.folder}: holds a run that has begun, whose start cannot be changed")
    tensors = {"model": vector, **{f"{_PREFIX}{name}": tensor for name, tensor in optimizer.items()}}
    kept = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    files.write_atomic(_initial(store), save(kept, _OF))


def read_start(store: RunStore) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The model that a run began with, ``(dim,)``, and what it took over of an optimizer.

    Raises:
        RunFolderError: It is missing, or is none.
    """
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
    """That what a run began with, or is to begin with, was put there by :func:`keep_start`, in words; empty where it was not.

    Raises:
        RunFolderError: It is missing, or is none.
    """
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


def take_up(
    settings: Mapping[str, Any], vector: torch.Tensor, optimizer: torch.optim.Optimizer, store: RunStore | None
) -> None:
    """Let a run begin where the finished one ended: its optimizer takes the state that is kept in the folder.

    Args:
        settings: Of the run's promise.
        vector: The model as the run begins with it, ``(dim,)``.
        optimizer: Of the run.
        store: The folder, which holds the start; without one there is no state of an optimizer.

    Raises:
        RunFolderError: Model or state are not those that the promise names: what was trained from another model would cost more
            than is stated.
    """
    state, extends = read_start(store)[1] if store else {}, Extends.of(settings)
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
    def of(cls, folder: Path) -> "Segments":
        """Those of a run's folder.

        Raises:
            RunFolderError: What stands there cannot be read.
        """
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
