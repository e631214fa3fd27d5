"""Each part of the protocol is needed: a copy of the package without it breaks a promise when the power is lost.

What is not in the list, since no loss of power shows it: the fsync of ``files.truncate`` (the append that follows a repair
syncs the same file) and that of ``files.wipe`` (no run goes on after it).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import hubbub

HERE = Path(__file__).parent
# One process that has torch, and a fork of it for each copy.
CHECK = """
import os, sys
from pathlib import Path
import torch, torch._dynamo, numpy, pytest, safetensors.torch

torch.set_num_threads(1)
every = int(sys.argv[1])
for folder in sys.argv[2:]:
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            print("error: see above", flush=True)
        continue
    sys.path.insert(0, folder)
    import hubbub
    import test_power_loss as power

    assert Path(hubbub.__file__) == Path(folder, "hubbub/__init__.py"), "another package was imported than the copy"
    case, scratch = power.Case("BandedToeplitz", 8), Path(folder, "scratch")
    scratch.mkdir()
    try:
        count = power.power_lost(case, power.recorded(case, scratch / "recorded"), scratch, every=every)
        print(f"kept: {count}", flush=True)
    except power.Violation as violation:
        print(f"violation: {violation}", flush=True)
    os._exit(0)
"""


@dataclass(frozen=True)
class Mutation:
    """One change of the text of a file, and how the violation begins that shows it."""

    what: str
    file: str
    old: str
    new: str
    shown_by: str | tuple[str, ...]


BEGIN = "        ticket = path.begin(cohort, total, plan.clip_norms.bound(clip_norm))\n"
OPEN = "        try:\n            release = total.open(path.row(ticket))\n"
OPEN_FIRST = "        release = total.open(path.noise.next_row() * plan.clip_norm)\n"
COMMIT = "            path.commit(ticket, release)\n"
APPEND = "            self._chain.append(body)\n        except"
SAVE = (
    "        content = self._store.save_release(ticket.round_index, release) if self._store else "
    "release.cpu().numpy().tobytes()\n        self.ledger.commit(ticket, content)\n"
)
KEY = "                self._store.add_noise_key(len(self.ledger.epochs), key)\n"
EPOCH = "        self.ledger.start_epoch(drawn, key, sampler())\n"

EXCEPT = "        except"
LEDGER_SYNC = "            os.fsync(descriptor)\n        except"
SYNC_BUT = "            if b'{1}' not in {0}:\n                os.fsync(descriptor)\n"
RENAMED = "        raise\n    sync(path.parent)\n"
TWICE = "I3: round 0 met noise twice, and is charged once"
STOPS = "the run cannot go on: "
CHECKPOINT = (
    "        for name, part in parts.items():\n"
    "            content = save_tensors({key: tensor.cpu().contiguous() for key, tensor in part.items()})\n"
    "            files.write_atomic(self._state / name, content)\n"
    '            manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}\n'
    '        files.write_atomic(self._state / "checkpoint.json", strict_json.canonical(manifest))\n'
)

FIRST = [
    Mutation(
        "no fsync of the ledger",
        "files.py",
        LEDGER_SYNC,
        EXCEPT,
        TWICE,
    ),
    Mutation(
        "no fsync of the folder after a rename",
        "files.py",
        RENAMED,
        "        raise\n",
        TWICE,
    ),
    Mutation(
        "noise meets the sum before BEGIN",
        "training/rounds.py",
        BEGIN + OPEN,
        OPEN_FIRST + BEGIN + "        try:\n            pass\n",
        STOPS,
    ),
]
OTHERS = [
    Mutation("no fsync of BEGIN", "files.py", LEDGER_SYNC, SYNC_BUT.format("content", '"begin"') + EXCEPT, TWICE),
    Mutation(
        "no fsync of COMMIT",
        "files.py",
        LEDGER_SYNC,
        SYNC_BUT.format("content", '"commit"') + EXCEPT,
        "I2: round 0 was seen by the world, and is not committed",
    ),
    Mutation(
        "no fsync of the folder of releases",
        "files.py",
        RENAMED,
        '        raise\n    if path.parent.name != "releases":\n        sync(path.parent)\n',
        (STOPS, "I2: the release of round 0 was seen by the world, and is not on disk"),
    ),
    Mutation(
        "no fsync of the folder of keys",
        "files.py",
        RENAMED,
        '        raise\n    if path.parent.name != "keys":\n        sync(path.parent)\n',
        STOPS,
    ),
    Mutation(
        "no fsync of a file before its rename",
        "files.py",
        "            _write(descriptor, content, temporary)\n            os.fsync(descriptor)\n",
        "            _write(descriptor, content, temporary)\n",
        STOPS,
    ),
    Mutation(
        "no fsync of the folder after mkdir",
        "files.py",
        "    os.mkdir(path, 0o700)\n    sync(path.parent)\n",
        "    os.mkdir(path, 0o700)\n",
        TWICE,
    ),
    Mutation(
        "no rename: the file is written in its place",
        "files.py",
        "    temporary = _temporary(path)\n",
        "    temporary = path\n",
        TWICE,
    ),
    Mutation(
        "COMMIT before the release is on the disk",
        "training/release.py",
        SAVE,
        "        from safetensors.torch import save\n\n"
        '        self.ledger.commit(ticket, save({"release": release}))\n'
        "        self._store.save_release(ticket.round_index, release)\n",
        STOPS,
    ),
    Mutation(
        "COMMIT and BEGIN in each other's place",
        "accounting/ledger.py",
        APPEND,
        '            if body["kind"] != "begin":\n'
        "                self._chain.append(body)\n"
        '            if body["kind"] in ("commit", "burn"):\n'
        "                self._chain.append(self._held)\n"
        "            self._held = body\n"
        "        except",
        STOPS,
    ),
    Mutation(
        "BEGIN together with COMMIT",
        "accounting/ledger.py",
        APPEND,
        '            if body["kind"] in ("commit", "burn"):\n'
        "                self._chain.append(self._held)\n"
        '            if body["kind"] != "begin":\n'
        "                self._chain.append(body)\n"
        "            self._held = body\n"
        "        except",
        TWICE,
    ),
    Mutation(
        "the world sees the release before COMMIT",
        "training/rounds.py",
        COMMIT,
        '            yield RoundResult(round_index, 0, 1e9, "", 0.0, {})\n' + COMMIT,
        "I2: round 0 was seen by the world, and is not committed",
    ),
    Mutation("an epoch without its key", "training/release.py", KEY, "                pass\n", STOPS),
    Mutation(
        "the key of an epoch after its record",
        "training/release.py",
        KEY.join(("            if self._store:\n", EPOCH)),
        EPOCH + "        if key and self._store:\n            self._store.add_noise_key(len(self.ledger.epochs) - 1, key)\n",
        STOPS,
    ),
    Mutation(
        "one key for all epochs",
        "training/release.py",
        "            key = fresh_key()\n",
        "            key = bytes(32)\n",
        "I4: ",
    ),
    Mutation(
        "the key of the epoch before",
        "training/release.py",
        "            key = fresh_key()\n",
        "            key = fresh_key() if not self.ledger.epochs else self._store.noise_key(0)\n",
        "I4: ",
    ),
    Mutation(
        "an interrupted round is not burned",
        "training/release.py",
        "            self.burn(pending)\n",
        "            return\n",
        STOPS,
    ),
    Mutation(
        "a run goes on without the noise that was drawn before",
        "training/release.py",
        "            self.noise.skip_to(self.ledger.next_round)\n",
        "            self.noise.round_index = self.noise._drawn_before = self.ledger.next_round\n",
        STOPS,
    ),
    Mutation(
        "a checkpoint is named before it is written",
        "training/store.py",
        CHECKPOINT,
        "        contents = {}\n"
        + CHECKPOINT.replace("files.write_atomic(self._state / name, content)", "contents[name] = content")
        + "        for name, content in contents.items():\n            files.write_atomic(self._state / name, content)\n",
        STOPS,
    ),
    Mutation(
        "releases are forgotten before the checkpoint",
        "training/store.py",
        '        parts = {f"checkpoint-{rounds}.safetensors": tensors}\n',
        '        parts = {f"checkpoint-{rounds}.safetensors": tensors}\n        self._forget_before(rounds)\n',
        STOPS,
    ),
]


def broken(mutation: Mutation | None, folder: Path) -> Path:
    """A folder with a copy of the package that has one change."""
    copy = folder / "hubbub"
    shutil.copytree(Path(hubbub.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    if mutation:
        file = copy / mutation.file
        text = file.read_text()
        assert text.count(mutation.old) == 1, f"{mutation.what}: {mutation.file} does not hold once {mutation.old!r}"
        file.write_text(text.replace(mutation.old, mutation.new))
    return folder


def checked(folders: Sequence[Path], every: int) -> list[str]:
    """What the power-loss check says of each copy."""
    environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-B", "-c", CHECK, str(every), *map(str, folders)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert len(said) == len(folders), done.stderr
    return said


@pytest.mark.parametrize("mutation", [*FIRST, *OTHERS], ids=lambda mutation: mutation.what)
def test_the_part_that_is_taken_out_is_still_there(mutation: Mutation) -> None:
    assert (Path(hubbub.__file__).parent / mutation.file).read_text().count(mutation.old) == 1


@pytest.mark.parametrize("mutations", [FIRST, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["first", "others"])
def test_a_copy_that_lacks_a_part_is_caught(mutations: list[Mutation], tmp_path: Path) -> None:
    said = checked([broken(mutation, tmp_path / f"{number}") for number, mutation in enumerate(mutations)], every=1)
    for mutation, answer in zip(mutations, said, strict=True):
        shown_by = (mutation.shown_by,) if isinstance(mutation.shown_by, str) else mutation.shown_by
        assert answer.startswith(tuple(f"violation: {words}" for words in shown_by)), f"{mutation.what}: {answer}"


@pytest.mark.slow
def test_a_copy_as_it_is_passes(tmp_path: Path) -> None:
    (said,) = checked([broken(None, tmp_path)], every=8)
    assert said.startswith("kept: "), said
