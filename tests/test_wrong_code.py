"""No file that hubbub reads can run code or fill the memory, and of tensors no bit changes unseen.

JSON has one reading, and a record of a later form is not guessed at.
"""

import io
import json
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch

from hubbub import Mechanism, SingleParticipation
from hubbub._util import strict_json
from hubbub.datasets import cifar10, mnist
from hubbub.errors import DataError, HubbubError, KeyFileError, LedgerError, RunFolderError
from hubbub.factorization import Optimized, strategy_file
from hubbub.ledger.promise import SCHEMA, Promise
from hubbub.mechanism.strategies import Dense, Identity, dense
from hubbub.mechanism.workloads import prefix_sum
from hubbub.secagg import key_files
from hubbub.secagg.packing import Packing
from hubbub.secagg.protocol import Agreement
from hubbub.training.run_folder.state import Checkpoint, parse
from malformed import laws
from malformed.contents import Payload, archive, flipped, header_of, npy_of, opened, sha256, some, tensors, tensors_file
from paillier_nodes import owner
from refusals import little_memory, refused

pytestmark = pytest.mark.usefixtures("workplace")


def in_npy(objects: bool) -> bytes:
    array = np.empty((2, 2), dtype=object)
    array[:] = Payload()
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    # What says that it holds floats, and holds a pickle.
    return out.getvalue() if objects else npy_of(header_of("'<f8'", "(2, 2)"), pickle.dumps(Payload()))


def by_torch(old: bool) -> bytes:
    out = io.BytesIO()
    torch.save({"model": Payload()}, out, _use_new_zipfile_serialization=not old)
    return out.getvalue()


def by_joblib() -> bytes:
    out = io.BytesIO()
    joblib.dump(Payload(), out)
    return out.getvalue()


PICKLES: dict[str, Callable[[], bytes]] = {
    "pickle": lambda: pickle.dumps(Payload()),
    "pickle of protocol 0": lambda: pickle.dumps(Payload(), 0),
    "npy of objects": lambda: in_npy(objects=True),
    "npy of floats": lambda: in_npy(objects=False),
    "npz": lambda: archive(**dict.fromkeys(("x_train", "blob", "C"), in_npy(objects=True))),
    "torch": lambda: by_torch(old=False),
    "torch of old": lambda: by_torch(old=True),
    "joblib": by_joblib,
}


def of_a_checkpoint(file: str) -> object:
    content = Path(file).read_bytes()
    return checkpoint_of(content, content)


def checkpoint_of(content: bytes, stated: bytes, schema: object = 1) -> Checkpoint:
    """A checkpoint of one content whose manifest states another."""
    Path("checkpoint-1.safetensors").write_bytes(content)
    manifest = {"schema": schema, "rounds": 1, "head": "0" * 64, "sha256": sha256(stated)}
    Path("checkpoint.json").write_text(json.dumps(manifest))
    return Checkpoint(Path("checkpoint.json"), again=False)


LOADERS: dict[str, Callable[[str], object]] = {
    "a matrix": dense.load,
    "a strategy": strategy_file.load,
    "MNIST": mnist.load,
    "CIFAR-10": cifar10.load,
    "a key": key_files.read_private,
    "a checkpoint": of_a_checkpoint,
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", PICKLES)
def test_fil_3_no_loader_runs_what_a_pickle_holds(kind: str, loader: str) -> None:
    for name in ("odd.npy", "odd.npz", "odd.pt", "odd.safetensors", "odd"):
        Path(name).write_bytes(PICKLES[kind]())
        Path(name).chmod(0o600)
        with pytest.raises((HubbubError, ValueError), match=r"odd|checkpoint-1"):
            LOADERS[loader](name)
        assert not Path("unpickled").exists()


def test_fil_3_the_trap_snaps_where_somebody_unpickles() -> None:
    """Or the test above would show nothing."""
    for make in (PICKLES["pickle"], PICKLES["joblib"]):
        joblib.load(io.BytesIO(make()))
        Path("unpickled").rmdir()
    np.load(io.BytesIO(in_npy(objects=True)), allow_pickle=True)
    assert Path("unpickled").exists()


def bomb(file: str, member: str, shape: str, dtype: str, size: int) -> None:
    """An archive of one member that unpacks to so many zeros behind its header, made in no time: one block again and again."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    head = packer.compress(npy_of(header_of(dtype, shape), b"")) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 22)) + packer.flush(zlib.Z_FULL_FLUSH)
    packed, name = head + block * (size >> 22) + packer.flush(), member.encode()
    # Version, flags, deflate, time and date, checksum, sizes, length of the name; then what the two headers have of their own.
    facts = struct.pack("<HHHIIIIH", 20, 0, 8, 0, 0, len(packed), size, len(name))
    local = b"PK\x03\x04" + facts + bytes(2) + name
    central = b"PK\x01\x02" + struct.pack("<H", 20) + facts + bytes(16) + name
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local) + len(packed), 0)
    Path(file).write_bytes(local + packed + central + end)


@pytest.mark.parametrize(
    ("member", "shape", "dtype", "size", "load"),
    [
        ("x_train.npy", "(1000000, 28, 28)", "'|u1'", 2**30, mnist.load),
        ("x_train.npy", "(60000, 28, 28)", "'|u1'", 2**30, mnist.load),
        ("blob.npy", "(8000000000,)", "'|u1'", 2**30, cifar10.load),
    ],
    ids=["a header of 0.8 GB", "a header that says less", "a header of 8 GB"],
)
def test_fil_4_a_bomb_is_refused_unread(member: str, shape: str, dtype: str, size: int, load: Callable[[str], object]) -> None:
    bomb("bomb.npz", member, shape, dtype, size)
    assert Path("bomb.npz").stat().st_size < 2_000_000
    # What says less than it holds is read as far as it says, 47 MB.
    with little_memory(2**28 if "60000" in shape else 2**25), pytest.raises(DataError, match=r"bomb\.npz"):
        load("bomb.npz")


def test_fil_4_an_archive_of_matrices_is_refused_before_anything_is_unpacked() -> None:
    bomb("bomb.npz", "C.npy", "(32768, 32768)", "'<f8'", 2**30)
    account = ["account", "--rounds", "4", "--delta", "1e-5", "--noise-multiplier", "1"]
    for named in (["--mechanism"], ["--strategy", "dense", "--matrix"]):
        with little_memory(2**29):
            refused([*account, *named, "bomb.npz"], "bomb.npz", "neither a NumPy file nor a TensorProto")


def test_fil_5_of_a_checkpoint_no_bit_changes_unseen() -> None:
    """The SHA-256 of each file stands in the manifest."""
    whole = tensors(model=np.arange(300.0), clip_norm=np.array(1.0))
    checkpoint_of(whole, whole)
    # Cut files, lengths, headers, offsets that overlap, names that come twice: refused even under a digest that was made anew.
    tried = 0
    cuts = (whole[:cut] for cut in some(200, len(whole), seed=1))
    for content in [*(content for _, content in laws.of_safetensors(whole)), *cuts]:
        tried += 1
        with pytest.raises(HubbubError, match="checkpoint-1"):
            checkpoint_of(content, content)
    for bit in some(1000 - tried, 8 * len(whole), seed=2):
        tried += 1
        with pytest.raises(HubbubError, match=r"checkpoint-1\.safetensors.*SHA-256"):
            checkpoint_of(flipped(whole, bit), whole)
    assert tried == 1000
    assert parse(whole)["model"].shape == (300,)


DEEP = 100_000
ODD: dict[str, tuple[bytes, str]] = {
    "NaN": (b'{"epsilon":NaN}', "NaN is not finite"),
    "an infinity": (b'{"epsilon":[-Infinity]}', "-Infinity is not finite"),
    "a number beyond all floats": (b'{"epsilon":1e999}', "1e999 is not finite"),
    "a name twice": (b'{"epsilon":1.0,"epsilon":0.0}', "the name 'epsilon' comes twice"),
    "a name twice within": (b'[{"a":{"b":1,"b":1}}]', "the name 'b' comes twice"),
    "a name twice, once by its code": (b'{"a":1,"\\u0061":2}', "the name 'a' comes twice"),
    "a hundred thousand levels": (b"[" * DEEP + b"]" * DEEP, "too many levels"),
    "a hundred thousand levels of tables": (b'{"a":' * DEEP + b"1" + b"}" * DEEP, "too many levels"),
    "a hundred thousand digits": (b"9" * DEEP, "digits"),
    "no UTF-8": (b'{"a":"\xff"}', "can't decode"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "BOM"),
    "a comment": (b"{} // none", "Extra data"),
    "a comma too many": (b'{"a":1,}', "line 1 column"),
}


@pytest.mark.parametrize("kind", ODD)
def test_fil_6_json_has_one_reading(kind: str) -> None:
    content, words = ODD[kind]
    with pytest.raises(ValueError, match=words) as caught:
        strict_json.loads(content)
    assert len(str(caught.value)) < 200
    # A record of a ledger is read by its one form, which none of these has.
    with pytest.raises(ValueError, match=words if words == "too many levels" else "."):
        strict_json.loads_canonical(content)


def test_fil_6_what_is_written_is_one_form_of_finite_numbers() -> None:
    for odd in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="Out of range"):
            strict_json.canonical({"epsilon": odd})
    assert strict_json.canonical({"b": [1.5, None], "a": "é"}) == b'{"a":"\\u00e9","b":[1.5,null]}'


def of_a_promise(schema: object) -> None:
    record = json.loads(json.dumps(Promise(3, Mechanism(Identity(3), SingleParticipation(), 1.0)).record()))
    Promise.from_record({**record, "kind": "promise", "schema": schema}, {})


def of_a_strategy(schema: object) -> None:
    found = Optimized(Dense([[1.0]]), prefix_sum(1), SingleParticipation(), "mean", 1.0, 1.0, "", 0)
    strategy_file.save("s.safetensors", found)
    header, data = opened(Path("s.safetensors").read_bytes())
    said = {**json.loads(header["__metadata__"]["hubbub"]), "schema": schema}
    header["__metadata__"]["hubbub"] = json.dumps(said)
    Path("s.safetensors").write_bytes(tensors_file(header, data))
    strategy_file.load("s.safetensors")


def of_a_key(version: object) -> None:
    Path("key.json").unlink(missing_ok=True)
    key_files.write_public("key.json", owner().public_key)
    Path("key.json").write_text(json.dumps({**json.loads(Path("key.json").read_text()), "version": version}))
    key_files.read_public("key.json")


def of_an_agreement(version: object) -> None:
    record = Agreement(owner().public_key, Packing(key_bits=2048), 10, "a run").record()
    Agreement.from_record({**record, "version": version})


EMPTY = tensors(model=np.zeros(2))
FORMS: dict[str, tuple[Callable[[Any], object], type[Exception], int, str]] = {
    "a ledger": (of_a_promise, LedgerError, SCHEMA, "begun with another version"),
    "a checkpoint": (lambda schema: checkpoint_of(EMPTY, EMPTY, schema), RunFolderError, 1, "schema"),
    "a strategy": (of_a_strategy, DataError, 1, "this hubbub reads 1"),
    "a key": (of_a_key, KeyFileError, 1, "version: must be 1"),
    "an agreement": (of_an_agreement, ValueError, 1, "than 1, which this hubbub reads"),
}


@pytest.mark.parametrize("form", FORMS)
def test_fil_12_a_later_form_is_refused_with_the_known_ones(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, error, own, words = FORMS[form]
    make(own)
    for other in (own + 98, 0, -1, True, None, str(own), float(own), [own]):
        with pytest.raises(error, match=words):
            make(other)
