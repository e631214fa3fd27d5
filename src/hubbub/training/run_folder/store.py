"""The keys, releases and checkpoints of a run's folder, read and written by a process that holds its lock."""

import hashlib
import itertools
import logging
import os
import re
import shutil
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.numpy import save as save_arrays
from safetensors.torch import save as save_tensors

from hubbub._util import files, strict_json
from hubbub._util.checks import Array, non_negative
from hubbub._util.files import refusing
from hubbub._util.prf import KEY_BYTES, derive, fresh_key, sealed, unsealed
from hubbub.errors import LedgerError, RunFolderError
from hubbub.ledger.chain import Chain
from hubbub.ledger.ledger import Ledger
from hubbub.ledger.participations import cohorts_path
from hubbub.noise import NoiseStream
from hubbub.training.run_folder.state import Checkpoint, parse

if TYPE_CHECKING:
    from hubbub.training.head_hook import HeadHook

# Folders in a run's folder: ledger, keys and releases of its private evaluations, and of means and variances released first.
EVALUATION, NORMALIZATION = "evaluation", "normalization"
# The rows of noise that later rounds need.
SEALED_NOISE = "state/noise.sealed"

_LOG = logging.getLogger("hubbub")
_LARGEST, _MOST_NOISE = 2**36, 2**42
_LOST = "restore it, or start a new run in a folder of its own, whose privacy cost adds to that of this one"
# The round, the rows of z that were drawn, and the ledger's head.
_STATE = struct.Struct("<2Q32s")
_RELEASE = re.compile(r"(0|[1-9][0-9]*)\.safetensors")
_KEY = re.compile(r"epoch-(0|[1-9][0-9]*)")
# The key of an incarnation that may not be on record.
_NEXT = "next"


class RunStore:
    """The folder of a run.

    Args:
        folder: Created when a run begins in it; private to the user. The same wherever the program goes meanwhile.
        keep_releases: Whether all releases stay, so that anybody can verify them; otherwise those since the last checkpoint.
        free_share: The share of the disk that must stay free for releases to be kept; 0 keeps them while anything fits.
        head_hook: Receives the head of each round and of each private evaluation, before its release leaves.

    Attributes:
        ledger_path: The ledger's file.
        keep_releases: As given; false once the ledger records that releases were removed.
        heads_waiting: How many heads the hook has not taken; ``None`` without a hook.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     store = RunStore(Path(place) / "run")
        ...     with store.locked():
        ...         content = store.save_release(0, torch.ones(2))
        ...     store.released(), store.parse_release(0, content).tolist()
        ([0], [1.0, 1.0])
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep_releases: bool = True,
        free_share: float = 0.0,
        head_hook: "HeadHook | None" = None,
    ) -> None:
        self.folder = Path(folder).absolute()
        self._free_share = non_negative("free_share", free_share)
        self._hook = head_hook
        self.heads_waiting: int | None = None
        self.keep_releases = keep_releases
        self.ledger_path = self.folder / "ledger.jsonl"
        self._state = self.folder / "state"
        self._keys = self._state / "keys"
        self._releases = self._state / "releases"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create missing folders, and keep other processes out while this one works.

        Raises:
            RunFolderError: The folder cannot be written, or another process works in it.
        """
        lock = self._state / "lock"
        with ExitStack() as held:
            try:
                self._make_folders()
                if self.folder.stat().st_uid != os.getuid():
                    raise RunFolderError(f"{self.folder}: belongs to another user; copy it to a folder of your own")
                self.folder.chmod(0o700)
                if os.path.lexists(lock) and not stat.S_ISREG(lock.lstat().st_mode):
                    raise RunFolderError(f"{lock}: is no regular file; remove it")
                held.enter_context(files.locked_folder(self._state, wait=False))
                lock.write_text(f"{os.getpid()}\n")
            except BlockingIOError as error:
                number = lock.read_bytes()[:20].decode("ascii", "replace").strip()
                step = "close the generator that has it open" if number == str(os.getpid()) else "wait for it"
                holder = f"process {number}" if number else "another process"
                raise RunFolderError(f"{self.folder}: {holder} is at work on this run; {step}") from error
            except OSError as error:
                where, step = error.filename or lock, "choose another folder (--out, or state= of a strategy)"
                step = "make it writable" if os.path.lexists(self.ledger_path) else step
                raise RunFolderError(f"{where}: cannot be written ({error.strerror}); {step}") from error
            yield

    def evaluation(self) -> "RunStore":
        """The folder of the run's private evaluations, whose heads the same hook receives."""
        return RunStore(self.folder / EVALUATION, head_hook=self._hook)

    def normalization(self) -> "RunStore":
        """The folder of the run that releases means and variances, whose heads the same hook receives."""
        return RunStore(self.folder / NORMALIZATION, head_hook=self._hook)

    def _make_folders(self) -> None:
        for part in (self.folder, self._state, self._keys, self._releases):
            files.make_folder(part)

    def make_durable(self) -> None:
        """Create missing folders, and sync what a killed process left behind, before anything relies on it."""
        self._make_folders()
        parts = (self.folder.parent, self.folder, self._state, self._keys, self._releases)
        for path in (self.ledger_path, cohorts_path(self.ledger_path), *parts):
            # To open a pipe would wait for whoever writes to it; who reads it refuses it.
            if path.is_file() or path.is_dir():
                files.sync(path)

    def require_room(self, noise: int) -> None:
        """Refuse a run of which two checkpoints, with that many bytes of noise each, do not fit: one replaces the other.

        Raises:
            RunFolderError: They do not fit.
        """
        free = shutil.disk_usage(self.folder).free
        if 2 * noise > free:
            raise RunFolderError(
                f"{self.folder}: has {free / 2**30:,.1f} GiB of room, and the noise of two checkpoints, one of which is "
                f"written before the other is removed, needs {2 * noise / 2**30:,.1f} GiB; choose another folder, or a "
                "strategy that remembers fewer rows"
            )

    @property
    def short_of_room(self) -> bool:
        """Whether releases are kept and less of the disk is free than ``free_share``."""
        if not self.keep_releases or not self._free_share:
            return False
        disk = shutil.disk_usage(self.folder)
        return disk.free < self._free_share * disk.total

    def give_heads(self, ledger: Ledger) -> None:
        """Send the hook each head that it has not taken, in order; they are on disk.

        Raises:
            LedgerError: A required hook did not take one.
        """
        if self._hook is None:
            return
        heads = ledger.chain.round_heads(self.taken())
        self.heads_waiting = len(heads)
        for rounds, head in heads:
            if why := self._hook.give(ledger.run, rounds, head):
                said = f"the head after {rounds} rounds was not taken ({why})"
                if self._hook.required:
                    raise LedgerError(
                        f"head hook: {said}, and it is required: no release leaves before; mend the hook and resume the run, "
                        "which gives the head again"
                    )
                _LOG.warning("head hook: %s; it is given again with the next one", said)
                return
            files.write_atomic(self._state / "heads", head.encode())
            self.heads_waiting -= 1

    def taken(self) -> str | None:
        """The last head that the hook took; ``None`` before."""
        path = self._state / "heads"
        return _read(path, 64).decode("ascii", "replace") if os.path.lexists(path) else None

    # Keys.

    def secret(self) -> bytes:
        """The run's secret, drawn from the operating system the first time."""
        path = self._keys / "run"
        if not self.has_keys():
            if self.ledger_path.exists():
                raise RunFolderError(
                    f"{path}: is missing; without its key this run cannot be resumed (a closed run has none); {_LOST}"
                )
            files.write_atomic(path, fresh_key())
        return secret_key(path)

    def noise_key(self, epoch: int) -> bytes:
        """The key of an incarnation."""
        path = self._keys / f"epoch-{epoch}"
        # A crash can leave the last one without its number, and a start may give it that meanwhile.
        for found in (path, self._keys / _NEXT, path):
            if os.path.lexists(found):
                return secret_key(found)
        raise RunFolderError(f"{path}: is missing; without it the noise of earlier rounds cannot be drawn again; {_LOST}")

    def add_noise_key(self, epoch: int, key: bytes) -> None:
        """Keep the key of a new incarnation, before the ledger names it; it has a number from :meth:`number_noise_key` on."""
        if epoch:
            self.number_noise_key(epoch - 1)
        files.write_atomic(self._keys / _NEXT, key)

    def number_noise_key(self, epoch: int) -> None:
        """Number the key of an incarnation that is on record, unless it is: a number without a record tells of a roll-back."""
        path, unnumbered = self._keys / f"epoch-{epoch}", self._keys / _NEXT
        if not os.path.lexists(path) and os.path.lexists(unnumbered):
            files.write_atomic(path, secret_key(unnumbered))
            files.wipe(unnumbered)

    def secret_files(self) -> list[Path]:
        """The files of keys and rows of noise, those that a crash left half written included."""
        # A version before kept rows as they are, in noise-N.safetensors.
        rows = [path for path in _listed(self._state) if path.name.lstrip(".").startswith(("noise.", "noise-"))]
        # Of simulated share holders.
        of_holders = [
            path
            for path in (self._state / "holders").rglob("*")
            if (path.parent.name == "keys" or path.name.lstrip(".").startswith(("share-", "private-key"))) and not path.is_dir()
        ]
        inner = [own for name in (EVALUATION, NORMALIZATION) if (own := self.folder / name).is_dir() and not own.is_symlink()]
        of_inner = [path for own in inner for path in RunStore(own).secret_files()]
        return sorted(_listed(self._keys)) + sorted(rows) + sorted(of_holders) + of_inner

    def has_keys(self) -> bool:
        """Whether the run's secret is in the folder."""
        return os.path.lexists(self._keys / "run")

    def epochs(self) -> int:
        """One more than the last incarnation that has a key with its number."""
        return max((int(m[1]) + 1 for path in _listed(self._keys) if (m := _KEY.fullmatch(path.name))), default=0)

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
        with refusing(path, "holds no arrays"):
            return {name: array.to(torch.float64).numpy() for name, array in parse(_read(path)).items()}

    def digest(self, name: str) -> str:
        """The SHA-256 of a file of the folder.

        Raises:
            RunFolderError: It cannot be read.
        """
        return hashlib.sha256(_read(self.folder / name)).hexdigest()

    def changed(self, bound: Mapping[str, str]) -> Iterator[str]:
        """In words, each file that is not the one that the ledger binds."""
        for name, digest in sorted(bound.items()):
            try:
                if self.digest(name) != digest:
                    yield f"{name} is not the file that the ledger binds"
            except RunFolderError as error:
                yield str(error)

    # Releases.

    def released(self) -> list[int]:
        """The rounds whose releases are kept, in order."""
        return sorted(int(m[1]) for path in _listed(self._releases) if (m := _RELEASE.fullmatch(path.name)))

    def save_release(self, round_index: int, release: torch.Tensor, step: float | None = None) -> bytes:
        """Write a release to disk, durably; returns the file's content.

        Args:
            round_index: Of the round.
            release: ``(dim,)``, finite.
            step: Of the lattice; the file then holds whole steps, in 32 bits if they fit. ``None`` writes float64.
        """
        tensors = {"release": release.detach().to("cpu", torch.float64).contiguous()}
        if step is not None:
            steps = (tensors["release"] / step).to(torch.int64)
            fits = not len(steps) or int(steps.abs().max()) < 2**31
            tensors = {"steps": steps.to(torch.int32) if fits else steps, "step": tensors["release"].new_tensor(step)}
        content = save_tensors(tensors)
        files.write_atomic(self._release_path(round_index), content)
        return content

    def release_content(self, round_index: int) -> bytes:
        """The file of a release."""
        return _read(self._release_path(round_index))

    def load_release(self, round_index: int, digest: str, dim: int) -> torch.Tensor:
        """A release that the ledger says was committed, ``(dim,)`` float64."""
        path, content = self._release_path(round_index), self.release_content(round_index)
        if hashlib.sha256(content).hexdigest() != digest:
            raise RunFolderError(f"{path}: is not what the ledger says was released; the file is damaged: restore it")
        return self.parse_release(round_index, content, dim)

    def parse_release(self, round_index: int, content: bytes, dim: int | None = None) -> torch.Tensor:
        """The release in a file's content, ``(dim,)`` float64."""
        path = self._release_path(round_index)
        with refusing(path, "is no release"):
            tensors = parse(content)
        if set(tensors) == {"steps", "step"}:
            steps, step = tensors["steps"], tensors["step"]
            if steps.dtype not in (torch.int32, torch.int64) or step.dtype != torch.float64 or step.ndim:
                raise RunFolderError(f"{path}: holds steps of {steps.dtype} and a step of {step.dtype} {tuple(step.shape)}")
            tensors = {"release": steps.to(torch.float64) * step}
        if list(tensors) != ["release"]:
            raise RunFolderError(f"{path}: holds tensors {sorted(tensors)[:3]}, a release is 'release', or 'steps' and 'step'")
        release = tensors["release"]
        if release.dtype != torch.float64 or release.ndim != 1 or len(release) == 0 or dim not in (None, len(release)):
            expected = "one row of numbers" if dim is None else f"({dim},)"
            raise RunFolderError(f"{path}: holds {release.dtype} {tuple(release.shape)}, this run releases float64 {expected}")
        return release

    def discard_release(self, round_index: int) -> None:
        """Remove a release, if it is there: of an aborted round, or from before the last checkpoint."""
        files.remove(self._release_path(round_index))

    # Checkpoints.

    def save_checkpoint(
        self,
        rounds: int,
        vector: torch.Tensor,
        optimizer: Mapping[str, torch.Tensor],
        head: str,
        *,
        clip_norm: float | None = None,
    ) -> None:
        """Write the state after ``rounds`` rounds and the head of the ledger; ``clip_norm`` is the next round's if it moves.

        ``optimizer`` is the state of the server's optimizer, by name.
        """
        tensors = {"model": vector.detach(), **{f"optimizer.{name}": value for name, value in optimizer.items()}}
        if clip_norm is not None:
            tensors["clip_norm"] = torch.tensor(clip_norm, dtype=torch.float64, device="cpu")
        content = save_tensors({key: tensor.cpu().contiguous() for key, tensor in tensors.items()})
        files.write_atomic(self._state / f"checkpoint-{rounds}.safetensors", content)
        manifest = {"schema": 1, "rounds": rounds, "head": head, "sha256": hashlib.sha256(content).hexdigest()}
        files.write_atomic(self._state / "checkpoint.json", strict_json.canonical(manifest))
        self._forget_before(rounds)

    def load_checkpoint(self, ledger: Ledger) -> Checkpoint | None:
        """The last checkpoint, if there is one.

        Raises:
            RunFolderError: It is damaged, or belongs to another ledger.
        """
        path = self._state / "checkpoint.json"
        if not os.path.lexists(path):
            return None
        checkpoint = Checkpoint(path, again=self.keep_releases)
        if ledger.chain.rounds_at(checkpoint.head) != checkpoint.rounds:
            raise RunFolderError(
                f"{path}: goes with a ledger of {checkpoint.rounds} rounds and head {checkpoint.head[:80]!r}, which this one "
                "never had: it was rolled back, or is another run's; restore the ledger"
            )
        return checkpoint

    def seal_noise(self, noise: NoiseStream, secret: bytes, head: str) -> None:
        """Write the rows of noise that later rounds need, with the ledger's head, sealed under the run's secret."""
        parts = itertools.chain([_STATE.pack(noise.round_index, noise.drawn, bytes.fromhex(head))], noise.remembered())
        files.write_atomic(self.folder / SEALED_NOISE, sealed(derive(secret, "noise"), parts))

    def unseal_noise(self, secret: bytes, chain: Chain, noise: NoiseStream | None = None) -> None:
        """Restore a stream to the state of :meth:`seal_noise`, if there is one; without a stream, only check it.

        Args:
            secret: Of the run.
            chain: The ledger's, which must have had the head in the file after as many rounds: a forked copy's had not.
            noise: At its beginning.

        Raises:
            RunFolderError: The file was changed, or belongs to another ledger.
        """
        path = self.folder / SEALED_NOISE
        if not os.path.lexists(path):
            return
        with refusing(
            path,
            "is no noise of this run",
            f"unless the ledger was rolled back, remove {path.name}, and it is drawn again from the keys",
        ):
            content = unsealed(derive(secret, "noise"), files.read(path, at_most=_MOST_NOISE))
            round_index, drawn, head = _STATE.unpack_from(content)
            if chain.rounds_at(head.hex()) != round_index:
                raise ValueError(f"it is of {round_index} rounds, with a head that this ledger never had after them")
            if noise:
                noise.take_up(round_index, drawn, content[_STATE.size :])

    def _forget_before(self, rounds: int) -> None:
        """Remove what the checkpoint of these rounds replaces: older ones, and releases that are not kept."""
        for round_index in [] if self.keep_releases else self.released():
            if round_index < rounds:
                self.discard_release(round_index)
        for path in _listed(self._state):
            if path.name.lstrip(".").startswith("checkpoint-") and path.name != f"checkpoint-{rounds}.safetensors":
                files.remove(path)

    def destroy_secrets(self) -> None:
        """Overwrite and remove every key and every row of noise; one that cannot be wiped keeps no other from it."""
        kept: OSError | None = None
        for path in self.secret_files():
            try:
                files.wipe(path)
            except OSError as error:
                kept = kept or error
        if kept:
            raise kept

    def _release_path(self, round_index: int) -> Path:
        return self._releases / f"{round_index}.safetensors"


def _listed(folder: Path) -> list[Path]:
    """The files in a folder of a run; none if it is missing."""
    if folder.is_symlink():
        raise RunFolderError(f"{folder}: is a symbolic link; the parts of a run are folders in it")
    return list(folder.iterdir()) if folder.is_dir() else []


def _read(path: Path, at_most: int = _LARGEST) -> bytes:
    with refusing(path, "cannot be read"):
        return files.read(path, at_most=at_most)


def secret_key(path: Path) -> bytes:
    """A key of 32 bytes that nobody else may read."""
    key = _read(path, KEY_BYTES)
    if len(key) != KEY_BYTES:
        raise RunFolderError(f"{path}: holds {len(key)} bytes, a key has {KEY_BYTES}; restore it")
    if path.stat().st_mode & 0o077:
        raise RunFolderError(f"{path}: may be read by others; change its mode to 0600 if nobody has, or start a new run")
    return key
