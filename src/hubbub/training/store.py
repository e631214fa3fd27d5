"""The folder of a run: its keys, ledger, releases and checkpoints. Its files are the operator's alone.

::

    ledger.jsonl                     what was promised and what happened
    strategy.safetensors             the arrays of the strategy, where it has any
    state/lock                       held while a process is at work
    state/keys/run, epoch-N          secrets: 32 bytes each
    state/releases/T.safetensors     what round T released
    state/checkpoint.json            names the last checkpoint, with the SHA-256 of each file
    state/checkpoint-N.safetensors   model and optimizer after N rounds
    state/noise-N.safetensors        rows of noise that later rounds need: as secret as the keys

Every file is read only after its SHA-256 has been compared with the ledger's or the manifest's, keys aside.
"""

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from hubbub import files, strict_json
from hubbub._checks import Array, integer
from hubbub.errors import RunFolderError
from hubbub.noise import NoiseStream
from hubbub.randomness import KEY_BYTES, fresh_key

__all__ = ["RunStore"]

_LARGEST_MANIFEST = 2**20
_LARGEST = 2**36
_RELEASE = re.compile(r"(0|[1-9][0-9]*)\.safetensors")
_KEY = re.compile(r"epoch-(0|[1-9][0-9]*)")


class RunStore:
    """Where a run is kept.

    Args:
        folder: Created when a run begins in it; private to the user.
        keep_releases: Whether all releases stay, so that anybody can verify them; otherwise those since the last checkpoint.
    """

    def __init__(self, folder: Path, *, keep_releases: bool = True) -> None:
        self.folder = folder
        self._keep_releases = keep_releases
        self._state = folder / "state"
        self._keys = self._state / "keys"
        self._releases = self._state / "releases"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create what is missing, and keep other processes out for as long as this one is at work.

        Raises:
            RunFolderError: The folder cannot be written, or another process is at work in it.
        """
        self._prepare()
        lock = os.open(self._state / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.read(lock, 20).decode("ascii", "replace").strip() or "unknown"
                raise RunFolderError(f"{self.folder}: process {holder} is at work on this run; wait for it") from error
            try:
                os.ftruncate(lock, 0)
                os.write(lock, f"{os.getpid()}\n".encode())
            except OSError as error:
                raise RunFolderError(f"{self._state / 'lock'}: cannot be written ({error.strerror})") from error
            yield
        finally:
            os.close(lock)

    def _prepare(self) -> None:
        try:
            for part in (self.folder, self._state, self._keys, self._releases):
                files.make_folder(part)
            status = self.folder.stat()
            if status.st_uid != os.getuid():
                raise RunFolderError(f"{self.folder}: belongs to another user; copy it to a folder of your own")
            self.folder.chmod(0o700)
        except OSError as error:
            raise RunFolderError(f"{self.folder}: cannot be written ({error.strerror}); choose another with --out") from error

    @property
    def ledger_path(self) -> Path:
        """The ledger's file."""
        return self.folder / "ledger.jsonl"

    def make_durable(self) -> None:
        """Make what a killed process left stay, before anybody relies on it."""
        for path in (self.ledger_path, self.folder.parent, self.folder, self._state, self._keys, self._releases):
            if path.exists():
                files.sync(path)

    # Keys.

    def secret(self) -> bytes:
        """The run's secret, drawn from the operating system the first time."""
        path = self._keys / "run"
        if not os.path.lexists(path):
            if self.ledger_path.exists():
                raise RunFolderError(f"{path}: is missing; without its key this run cannot go on (a closed run has none)")
            files.write_atomic(path, fresh_key())
        return _key(path)

    def noise_key(self, epoch: int) -> bytes:
        """The key of an epoch."""
        return _key(self._keys / f"epoch-{epoch}")

    def add_noise_key(self, epoch: int, key: bytes) -> None:
        """Keep the key of a new epoch, before the ledger names it."""
        files.write_atomic(self._keys / f"epoch-{epoch}", key)

    def secret_files(self) -> list[Path]:
        """The files that hold secrets: keys, and rows of noise."""
        kept = [path for path in _listed(self._keys) if path.name == "run" or _KEY.fullmatch(path.name)]
        return sorted(kept) + sorted(path for path in _listed(self._state) if path.name.startswith("noise-"))

    def epochs(self) -> int:
        """One more than the last epoch that has a key."""
        numbers = [int(m[1]) for path in _listed(self._keys) if (m := _KEY.fullmatch(path.name))]
        return max(numbers, default=-1) + 1

    # Strategy.

    def save_strategy(self, arrays: Mapping[str, Array]) -> None:
        """Keep the arrays of the strategy, so that its sensitivity can be computed from the folder alone."""
        if arrays:
            content = save_arrays({name: np.ascontiguousarray(array) for name, array in arrays.items()})
            files.write_atomic(self.folder / "strategy.safetensors", content)

    def load_strategy(self) -> dict[str, Array]:
        """The arrays of the strategy; their digests stand in the ledger's promise."""
        path = self.folder / "strategy.safetensors"
        if not os.path.lexists(path):
            return {}
        try:
            return {name: np.asarray(array, dtype=np.float64) for name, array in load_arrays(_read(path)).items()}
        except (SafetensorError, ValueError, TypeError, KeyError) as error:
            raise RunFolderError(f"{path}: is no file of arrays ({error})") from error

    # Releases.

    def released(self) -> list[int]:
        """The rounds whose releases are kept, in order."""
        return sorted(int(m[1]) for path in _listed(self._releases) if (m := _RELEASE.fullmatch(path.name)))

    def save_release(self, round_index: int, release: torch.Tensor) -> bytes:
        """Put a release on disk, durably; returns the file's content."""
        content = save_tensors({"release": release.detach().to("cpu", torch.float64).contiguous()})
        files.write_atomic(self._release_path(round_index), content)
        return content

    def release_content(self, round_index: int) -> bytes:
        """The file of a release."""
        return _read(self._release_path(round_index))

    def load_release(self, round_index: int, digest: str, dim: int) -> torch.Tensor:
        """A release that the ledger says was committed, ``(dim,)`` float64."""
        path, content = self._release_path(round_index), self.release_content(round_index)
        if hashlib.sha256(content).hexdigest() != digest:
            raise RunFolderError(f"{path}: is not what the ledger says was released; the folder is damaged")
        return self.parse_release(round_index, content, dim)

    def parse_release(self, round_index: int, content: bytes, dim: int | None = None) -> torch.Tensor:
        """The release in a file's content, ``(dim,)`` float64."""
        path = self._release_path(round_index)
        try:
            release = load_tensors(content)["release"]
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{path}: is no release ({error})") from error
        if release.dtype != torch.float64 or release.ndim != 1 or dim not in (None, len(release)):
            raise RunFolderError(f"{path}: holds {release.dtype} {tuple(release.shape)}, this run releases float64 ({dim},)")
        return release

    def discard_release(self, round_index: int) -> None:
        """Remove what a round that was burned may have left."""
        files.remove(self._release_path(round_index))

    # Checkpoints.

    def save_checkpoint(
        self, rounds: int, vector: torch.Tensor, optimizer: torch.optim.Optimizer, noise: NoiseStream | None, head: str
    ) -> None:
        """Keep the state after ``rounds`` rounds, and the head of the ledger that goes with it."""
        tensors = {"model": vector.detach()}
        for name, value in optimizer.state.get(vector, {}).items():
            if value is not None:
                tensors[f"optimizer.{name}"] = torch.as_tensor(value)
        parts = {f"checkpoint-{rounds}.safetensors": tensors}
        if noise:
            state = noise.state_dict()
            rows = {f"memory.{i:06d}": row for i, row in enumerate(state["memory"])}
            parts[f"noise-{rounds}.safetensors"] = {"drawn": torch.tensor(state["drawn"]), **rows}
        manifest: dict[str, Any] = {"schema": 1, "rounds": rounds, "head": head, "files": {}}
        for name, part in parts.items():
            content = save_tensors({key: tensor.cpu().contiguous() for key, tensor in part.items()})
            files.write_atomic(self._state / name, content)
            manifest["files"][name] = {
                "sha256": hashlib.sha256(content).hexdigest(),
                "bytes": len(content),
                "tensors": len(part),
            }
        files.write_atomic(self._state / "checkpoint.json", strict_json.canonical(manifest))
        self._forget_before(rounds)

    def load_checkpoint(self, vector: torch.Tensor, optimizer: torch.optim.Optimizer, noise: NoiseStream | None) -> int:
        """Restore the last checkpoint, where there is one; returns how many rounds it holds."""
        path = self._state / "checkpoint.json"
        if not os.path.lexists(path):
            return 0
        rounds, parts = self._read_checkpoint(path)
        tensors = parts[f"checkpoint-{rounds}.safetensors"]
        model = tensors.pop("model", None)
        if model is None or model.shape != vector.shape:
            held = "no model" if model is None else f"a model of shape {tuple(model.shape)}"
            raise RunFolderError(f"{self.folder}: its checkpoint holds {held}, this one has {tuple(vector.shape)}")
        with torch.no_grad():
            vector.copy_(model)
        kept = {name.removeprefix("optimizer."): value for name, value in tensors.items()}
        if kept:
            optimizer.state[vector] = {name: t if t.ndim == 0 else t.to(vector.device) for name, t in kept.items()}
        if noise:
            rows = parts.get(f"noise-{rounds}.safetensors", {})
            if "drawn" not in rows:
                raise RunFolderError(f"{path}: names no state of the noise; remove it to make the state again from the keys")
            memory = [rows[name] for name in sorted(rows) if name != "drawn"]
            noise.load_state_dict({"round_index": rounds, "drawn": int(rows["drawn"]), "memory": memory})
        return rounds

    def _read_checkpoint(self, path: Path) -> tuple[int, dict[str, dict[str, torch.Tensor]]]:
        """How many rounds the last checkpoint holds, and the tensors of its files, each checked before it is parsed."""
        at = path
        try:
            manifest = strict_json.loads(_read(path, _LARGEST_MANIFEST))
            if manifest["schema"] != 1:
                raise ValueError(f"schema = {manifest['schema']!r}: this hubbub reads schema 1; use the one that wrote it")
            rounds = integer("rounds", manifest["rounds"], at_least=1)
            parts = {}
            for name in (f"checkpoint-{rounds}.safetensors", f"noise-{rounds}.safetensors"):
                if name in manifest["files"]:
                    at, stated = self._state / name, manifest["files"][name]
                    content = _read(at)
                    if hashlib.sha256(content).hexdigest() != stated["sha256"]:
                        raise ValueError("its SHA-256 is not the manifest's")
                    parts[name] = load_tensors(content)
                    if len(parts[name]) != stated["tensors"]:
                        raise ValueError(f"it holds {len(parts[name])} tensors, the manifest names {stated['tensors']}")
            if f"checkpoint-{rounds}.safetensors" not in parts:
                raise ValueError("it names no checkpoint")
            return rounds, parts
        except (RunFolderError, ValueError, KeyError, TypeError, SafetensorError) as error:
            again = f"; remove {path.name} to make the state again from the releases" if self._keep_releases else ""
            raise RunFolderError(f"{at}: is no checkpoint of this run ({error}){again}") from error

    def _forget_before(self, rounds: int) -> None:
        if not self._keep_releases:
            for round_index in self.released():
                if round_index < rounds:
                    files.remove(self._release_path(round_index))
        for path in _listed(self._state):
            name = path.name.lstrip(".")
            if name.startswith(("checkpoint-", "noise-")) and path.stem not in (f"checkpoint-{rounds}", f"noise-{rounds}"):
                files.remove(path)

    def destroy_secrets(self) -> None:
        """Write over and remove every key and every kept row of noise."""
        for path in self.secret_files():
            files.wipe(path)

    def _release_path(self, round_index: int) -> Path:
        return self._releases / f"{round_index}.safetensors"


def _listed(folder: Path) -> list[Path]:
    if folder.is_symlink():
        raise RunFolderError(f"{folder}: is a symbolic link; the parts of a run are folders in it")
    return list(folder.iterdir()) if folder.is_dir() else []


def _read(path: Path, at_most: int = _LARGEST) -> bytes:
    try:
        return files.read(path, at_most=at_most)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror})") from error


def _key(path: Path) -> bytes:
    key = _read(path, KEY_BYTES)
    if len(key) != KEY_BYTES:
        raise RunFolderError(f"{path}: holds {len(key)} bytes, a key has {KEY_BYTES}; restore it")
    if path.stat().st_mode & 0o077:
        raise RunFolderError(f"{path}: may be read by others; change its mode to 0600 if nobody has, or start a new run")
    return key
