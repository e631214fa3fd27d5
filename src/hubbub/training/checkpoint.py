"""A checkpoint as its manifest names it: each file compared with its SHA-256, then each tensor with what it must be."""

import hashlib
import math
from pathlib import Path
from typing import Any

import torch

from hubbub import files, strict_json
from hubbub._checks import integer
from hubbub.errors import RunFolderError
from hubbub.noise import NoiseStream
from hubbub.training.tensors import parse

__all__ = ["Checkpoint"]

_LARGEST_MANIFEST = 2**20
_LARGEST = 2**36
_SCHEMA = 1


class Checkpoint:
    """What a manifest names.

    Args:
        path: Of the manifest; its files lie beside it.
        again: Whether the state can be made again from the releases, which a message then says.

    Raises:
        RunFolderError: The manifest or a file is damaged; the message names it.
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
        """The model, ``(dim,)``.

        Raises:
            RunFolderError: There is none.
        """
        model = self._model.get("model")
        if model is None:
            raise self._refused("it holds no model")
        return model

    def restore_model(self, vector: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Put the model and the optimizer's state back.

        Raises:
            RunFolderError: They are of another shape or dtype, or not finite.
        """
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
        """The clip norm of the next round, where it moves.

        Raises:
            RunFolderError: It is no number above 0.
        """
        kept = self._model.get("clip_norm")
        if kept is None:
            return None
        if kept.dtype != torch.float64 or kept.ndim or not 0 < float(kept) < math.inf:
            raise self._refused(f"clip_norm is {kept.dtype} {tuple(kept.shape)}, or not above 0")
        return float(kept)

    def restore_noise(self, noise: NoiseStream) -> None:
        """Put the stream where it was.

        Raises:
            RunFolderError: Its state is missing, or is not one that this stream can be in.
        """
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
