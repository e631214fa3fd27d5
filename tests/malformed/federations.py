"""What comes over a grid of Flower and is not what was asked for, and folders of a federation that were damaged."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import paillier_nodes
from hubbub._util import strict_json
from hubbub.flower.arrays import Layout, difference
from hubbub.flower.holder_messages import Held, agreement_of, request_of, round_of
from hubbub.flower.holders import HolderFolder
from hubbub.flower.messages import encrypted_vector, single_arrays
from hubbub.flower.state import ServerState
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import MinSeparation
from hubbub.mechanism.strategies import Identity
from hubbub.noise.lattice import Lattice
from hubbub.secagg.aggregator import Aggregator
from hubbub.training.aggregate import LatticeSum
from malformed.base import Call, Case, Run, Word
from malformed.contents import DEEP, attacks, flipped, leaves, some
from malformed.damages import KINDS, Damage, becoming, holding, nothing, together, without
from malformed.matrices import ODD_HEADERS, ODD_SHAPES, ODD_TYPES, Payload, header_of, npy, npy_of

MODEL = {"a.weight": np.ones((2, 3), np.float32), "a.bias": np.ones(2, np.float32), "count": np.array(7)}


def record(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: made if isinstance(made, Array) else Array(np.asarray(made)) for name, made in arrays.items()})


def of_bytes(data: bytes, dtype: str = "float32", shape: tuple[int, ...] = (2,), stype: str = "numpy.ndarray") -> Array:
    """An array as it comes over the network: its label, and bytes that may be anything."""
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


def case(what: str, function: str, do: Callable[[], object], *words: Word) -> Case:
    return Case(what, (Call(function, do),), words, nothing)


def replies(run: Run) -> Iterator[Case]:  # noqa: C901 # one kind after another
    """Arrays of a client that are not the model's."""
    layout = Layout.of(record(MODEL))
    before = layout.views(record(MODEL))

    def reply(what: str, arrays: dict[str, Any], *words: Word) -> Case:
        return case(what, "update", lambda: difference(layout.views(record(arrays)), before), *words)

    def bias(what: str, made: Any, *words: Word) -> Case:
        return reply(f"a bias: {what}", {**MODEL, "a.bias": made}, *words)

    for name in ("a.weight", "a.bias"):
        yield reply(f"without {name}", {k: v for k, v in MODEL.items() if k != name}, f"has no array '{name}'")
        yield reply(f"{name} renamed", {**{k: v for k, v in MODEL.items() if k != name}, f"{name}x": MODEL[name]}, f"'{name}x'")
    for name in ("more", "", "a.weight ", "A.weight", "../a", "\x1b[31m", "x" * 500):
        yield reply(f"with {name[:9]!r}", {**MODEL, name: np.ones(2)}, "which the model has not")
    shapes = ((), (1,), (3,), (2, 1), (1, 2), (2, 2), (0,), (2, 0), (1, 1, 2), (10**6,))
    for shape in shapes:
        yield bias(f"shape {shape}", np.ones(shape, np.float32), "'a.bias' is float32", "the model's")
        yield reply(f"weight of shape {shape}", {**MODEL, "a.weight": np.ones(shape, np.float32)}, "'a.weight' is float32")
    for dtype in ("int64", "int8", "uint8", "bool", "complex64", "complex128"):
        yield bias(dtype, np.ones(2, dtype), f"'a.bias' is {dtype}")
    for dtype in ("S4", "U4", "M8[s]", "m8[s]"):
        yield bias(dtype, of_bytes(npy(np.ones(2, "i8").astype(dtype) if dtype[0] in "SU" else np.ones(2, "i8").view(dtype))))
    objects = np.empty(2, dtype=object)
    objects[:] = Payload()
    yield bias("pickled objects", of_bytes(npy(objects)), "no header of a plain NumPy array")
    whole = npy(np.ones(2, np.float32))
    for cut in some(40, len(whole), seed=51):
        yield bias(f"cut at {cut}", of_bytes(whole[:cut]), ("header", "bytes"))
    for more in (1, 4, 1000):
        yield bias(f"{more} bytes more", of_bytes(whole + bytes(more)), "its header says 8")
    for shape in (*ODD_SHAPES, "(" * 5000, "(1099511627776,)"):
        yield bias(
            f"header of shape {shape[:30]}", of_bytes(npy_of(header_of("'<f4'", shape), bytes(8))), ("header", "bytes", "is")
        )
    for descr in ODD_TYPES:
        yield bias(f"header of type {descr!r}", of_bytes(npy_of(header_of(descr, "(2,)"), bytes(8))), ("header", "bytes"))
    for header in ODD_HEADERS:
        yield bias(f"header {header[:20]!r}", of_bytes(npy_of(header, bytes(8))), "no header of a plain NumPy array")
    for stype in ("", "pickle", "torch.Tensor", "numpy.ndarray ", "numpy", "\x1b[31m"):
        yield bias(f"stored as {stype!r}", of_bytes(whole, stype=stype), "not stored as NumPy")
    yield bias("a label of float32 over int64", of_bytes(npy(np.ones(2, np.int64))), "'a.bias' is int64")
    yield bias("a label of two over three", of_bytes(npy(np.ones(3, np.float32))), "'a.bias' is float32 (3,)")
    one = record(MODEL)
    for what, content in {"none": {}, "two": {"arrays": one, "more": one}}.items():
        yield case(f"{what} array records", "single_arrays", lambda c=content: single_arrays(RecordDict(c)), "ArrayRecords")
    for what, content in {
        "nothing": {},
        "arrays": {"arrays": one},
        "text": {"c": ConfigRecord({"hubbub_encrypted": "x"})},
        "numbers": {"c": ConfigRecord({"hubbub_encrypted": [1, 2]})},
        "two": {name: ConfigRecord({"hubbub_encrypted": b"x"}) for name in "cd"},
        "both": {"arrays": one, "c": ConfigRecord({"hubbub_encrypted": b"x"})},
    }.items():
        yield case(
            f"encrypted: {what}", "encrypted_vector", lambda c=content: encrypted_vector(RecordDict(c)), "encrypting_mod"
        )


# Agreements, and what holders of the key are told.

WRONG: dict[str, Any] = {
    "nothing": ...,
    "null": None,
    "true": True,
    "-1": -1,
    "0": 0,
    "1.5": 1.5,
    "text": "x\x1b[31m",
    "list": [1],
    "table": {"a": 1},
    "huge": 10**30,
}


@cache
def stated() -> dict[str, Any]:
    return paillier_nodes.agreed(paillier_nodes.dealt()[0].public_key).record()


def changed(path: tuple[str, ...], value: Any) -> bytes:
    found = json.loads(json.dumps(stated()))
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    if value is not ...:
        inner[path[-1]] = value
    return json.dumps(found).encode()


def agreements(run: Run) -> Iterator[Case]:
    """What a client is told to encrypt under."""

    def told(what: str, data: object) -> Case:
        return case(what, "agreement_of", lambda: agreement_of(data), ("agreement", "encrypt", "twice", "levels", "JSON"))

    # A run may have any name, and only a number above nothing is asked of some others.
    free = {("noising_holders", "0"), ("packing.noise", "0"), ("packing.noise", "nothing"), ("packing.clip", "1.5")}
    optional = {"min_contributions", "noising_holders", "whole_key", "server_noise", "packing.bits", "packing.clip"}
    optional |= {"packing.max_clients", "packing.key_bits"}
    for path in leaves(stated()):
        name = ".".join(path)
        for what, odd in WRONG.items():
            fits = name in ("short_exponents", "whole_key", "server_noise") and what == "true"
            if (name, what) not in free and not fits and not (name in optional and what == "nothing") and name != "n":
                yield told(f"{name}: {what}", changed(path, odd))
    modulus = stated()["n"]
    for what, odd in {
        **WRONG,
        "no number": "xyz",
        "signed": f"-{modulus}",
        "a prefix": f"0x{modulus}",
        "spaces": f" {modulus}",
        "even": modulus[:-1] + "0",
        "short": modulus[:100],
        "long": modulus * 20,
        "small": "f",
        "15": "0f",
        "of 3": f"{3 * (int(modulus, 16) // 3 | 1):x}",
        "a square": f"{int(modulus[:256], 16) ** 2:x}",
        "underscores": "_".join(modulus),
        "other digits": "\u0661" * 512,
    }.items():
        yield told(f"n: {what}", changed(("n",), odd))
    whole = json.dumps(stated()).encode()
    for cut in some(20, len(whole) - 1, seed=52):
        yield told(f"cut at {cut}", whole[:cut])
    for what, data in {
        "nothing": None,
        "text": whole.decode(),
        "empty": b"",
        "null": b"null",
        "a list": b"[" + whole + b"]",
        "twice": whole[:-1] + b',"run":"other"}',
        "NaN": whole[:-1] + b',"more":NaN}',
        "more": whole[:-1] + b',"more":1}',
        "deep": b"[" * DEEP,
        "long": whole + b" " * 2**20,
        "no UTF-8": b"\xff" + whole,
    }.items():
        yield told(what, data)


@cache
def request() -> dict[str, ConfigRecord]:
    """A request to open the sum of two clients, as a holder gets it."""
    agreement = paillier_nodes.agreed(paillier_nodes.dealt()[0].public_key)
    summing = Aggregator(agreement, 0)
    for name in ("c1", "c2"):
        summing.add(name, agreement.contribution(name, 0, np.arange(agreement.size)))
    parts = {f"contribution-{i}": ConfigRecord({"data": data}) for i, data in enumerate(summing.request().contributions)}
    return {"paillier": said(action="open", round=0), **parts, "total": ConfigRecord({"data": b""})}


def said(**others: Any) -> ConfigRecord:
    return ConfigRecord({"hubbub_agreement": strict_json.canonical(stated()), **others})


def holder_messages(run: Run) -> Iterator[Case]:  # noqa: C901 # one kind after another
    """What a holder is sent; nothing of it opens the round."""
    share = paillier_nodes.dealt()[1][0]

    def told() -> None:
        HolderFolder(share, Path("holder")).answer(RecordDict({"paillier": said(action="hello")}))

    def answered(content: dict[str, Any]) -> object:
        return HolderFolder(share, Path("holder")).answer(RecordDict(content))

    def asked(what: str, content: dict[str, Any], *words: Word) -> Case:
        return Case(what, (Call("answer", lambda: answered(content)),), words, told)

    good = request()
    for odd in ("", "OPEN", "decrypt", "hello ", 1, b"open", 1.5, True, ["open"], "\x1b[31m"):
        yield asked(f"action {odd!r}", {**good, "paillier": said(action=odd, round=0)}, "action = ")
    for odd in (-1, 1, 2, 2**31, 2**40, 1.0, "0", True, b"0", [0]):
        yield asked(f"round {odd!r}", {**good, "paillier": said(action="open", round=odd)}, ("round", "this is"))
    yield asked("no round", {**good, "paillier": said(action="open")}, "round = None")
    yield asked("no record", {k: v for k, v in good.items() if k != "paillier"}, "no ConfigRecord 'paillier'")
    yield asked("no agreement", {**good, "paillier": ConfigRecord({"action": "open", "round": 0})}, "hubbub_agreement")
    for name in ("contribution-0", "contribution-1", "total"):
        yield asked(f"without {name}", {k: v for k, v in good.items() if k != name}, ("ConfigRecord", "contributions came"))
        for odd in ("x", 7, [1, 2], 1.5, True):
            yield asked(f"{name}: {odd!r}", {**good, name: ConfigRecord({"data": odd})}, "data: must be bytes")
        yield asked(f"{name} without data", {**good, name: ConfigRecord({})}, "data: must be bytes")
        yield asked(f"{name} of arrays", {**good, name: record(MODEL)}, "no ConfigRecord")
    data = good["contribution-1"]["data"]
    assert isinstance(data, bytes)
    for bit in some(25, 8 * len(data), seed=53):
        yield asked(f"bit {bit}", {**good, "contribution-1": ConfigRecord({"data": flipped(data, bit)})}, "opens nothing")
    for cut in some(25, len(data), seed=54):
        yield asked(f"cut at {cut}", {**good, "contribution-1": ConfigRecord({"data": data[:cut]})}, "opens nothing")
    yield asked("one twice", {**good, "contribution-1": good["contribution-0"]}, "already")
    for count in (1, 5, 100):
        yield asked(f"{count} of noise", {**good, **{f"noise-{i}": good["contribution-0"] for i in range(count)}}, "noise")
    yield asked("more than agreed", {**good, **{f"contribution-{i}": good["contribution-0"] for i in range(9)}}, "at most 4")
    for key, odd in (("run", "other"), ("min_contributions", 3), ("size", 6), ("noising_holders", 1), ("whole_key", True)):
        other = ConfigRecord({"action": "open", "round": 0, "hubbub_agreement": strict_json.canonical({**stated(), key: odd})})
        yield asked(f"of another {key}", {**good, "paillier": other}, ("agree", "know", "holders", "whole"))
    for odd in (-1, 101, 1.0, "1", True, b"1", [1]):
        content = RecordDict({"paillier": ConfigRecord({"holder": odd, "key-id": "x"})})
        yield case(f"a node that says it holds {odd!r}", "Held.of", lambda c=content: Held.of(c), "holder = ")
    for odd in (1, b"x", 1.5, [1]):
        content = RecordDict({"paillier": ConfigRecord({"holder": 1, "key-id": odd})})
        yield case(f"a node with the key {odd!r}", "Held.of", lambda c=content: Held.of(c), "names no key")
    yield case(
        "no record at all", "request_of", lambda: request_of(RecordDict({}), 0, contributions=4, noise=1), "ConfigRecord"
    )
    yield case("no round at all", "round_of", lambda: round_of(ConfigRecord({})), "round = None")


# Folders.


def holder_folders(run: Run) -> Iterator[Case]:  # noqa: C901 # one kind after another
    """Of a holder that was told of a run."""
    share = paillier_nodes.dealt()[1][0]
    told = RecordDict({"paillier": said(action="hello")})
    HolderFolder(share, Path("made")).answer(told)
    (folder,) = Path("made").iterdir()
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for path in (*folder.iterdir(), folder, Path("made")):
        path.unlink() if path.is_file() else path.rmdir()

    def case_of(what: str, name: str, damage: Damage) -> Case:
        def whole() -> None:
            HolderFolder(share, Path("holder")).answer(told)

        def moved() -> None:
            (Path("holder") / folder.name / name).rename("file")
            damage()
            if Path("file").exists() or Path("file").is_symlink():
                Path("file").rename(Path("holder") / folder.name / name)

        call = Call("answer", lambda: HolderFolder(share, Path("holder")).answer(RecordDict(request())))
        return Case(f"{name}: {what}", (call,), ((name.removesuffix(".json"), "say hello"),), together(whole, moved))

    for name, content in files.items():
        for cut in some(15, len(content) - 1, seed=55):
            yield case_of(f"cut at {cut}", name, holding("file", content[:cut]))
        for bit in some(30, 8 * len(content), seed=56):
            yield case_of(f"bit {bit}", name, holding("file", flipped(content, bit)))
        yield case_of("missing", name, without("file"))
        for what, odd in {
            "empty": b"",
            "null": b"null",
            "a list": b"[]",
            "deep": b"[" * DEEP,
            "zeros": bytes(len(content)),
            "NaN": b'{"a":NaN}',
            "twice": content[:-1] + b',"agreement":"0"}',
            "long": content + b" " * 2**21,
        }.items():
            yield case_of(what, name, holding("file", odd))
        for kind in KINDS:
            if (name, kind) != ("agreement.json", "link"):
                yield case_of(kind, name, becoming("file", kind))
    done = json.loads(files["opened.json"])
    for key in done:
        for what, odd in WRONG.items():
            if (key, what) not in (("next_round", "0"), ("noise_round", "-1"), ("noise_round", "0")):
                other = {k: v for k, v in done.items() if k != key} | ({} if odd is ... else {key: odd})
                if (key, what) not in (("next_round", "huge"), ("noise_round", "huge")):
                    yield case_of(f"{key}: {what}", "opened.json", holding("file", json.dumps(other).encode()))


PROMISED = Promise(5, Mechanism(Identity(5), MinSeparation(1, 5), 1.0), settings={"clip_norm": 1.0})


def state_of() -> ServerState:
    layout = Layout.of(record(MODEL))
    return ServerState(PROMISED, layout, dim=layout.dim, clients=4, seed=0, folder=Path("served"))


def state_folders(run: Run) -> Iterator[Case]:  # noqa: C901 # one kind after another
    """Of a federation that ended after its first round."""
    state = state_of()
    strategy = FedAvg()
    state.path.start()
    total = LatticeSum(torch.zeros(8, dtype=torch.int64), Lattice(1.0), {})
    ticket = state.path.begin([1, 2], total, 1.0)
    state.path.commit(ticket, total.open(state.path.row(ticket)))
    state.rounds, state.clip_norm = 1, 1.0
    state.save(record(MODEL), strategy)
    state.close()
    files = {str(path): path.read_bytes() for path in sorted(Path("served").rglob("*")) if path.is_file()}
    for path in sorted(Path("served").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    Path("served").rmdir()
    name = "served/state/server.safetensors"
    content = files[name]

    def whole() -> None:
        for folder in ("served", "served/state", "served/state/keys", "served/state/releases"):
            Path(folder).mkdir(mode=0o700, exist_ok=True)
        for path, data in files.items():
            Path(path).write_bytes(data)
            Path(path).chmod(0o600)

    def opened() -> None:
        again = state_of()
        try:
            if again.restore(FedAvg()) is None:
                raise ValueError("accepted as none")
        finally:
            again.close()

    def case_of(what: str, damage: Damage, *words: Word) -> Case:
        return Case(what, (Call("restore", opened),), words or ("served/state/server.safetensors",), together(whole, damage))

    for what, data in attacks(content):
        yield case_of(what, holding(name, data))
    for bit in some(60, 8 * len(content), seed=57):
        yield case_of(f"bit {bit}", holding(name, flipped(content, bit)))
    for kind in KINDS:
        if kind not in ("dangling", "loop"):
            yield case_of(kind, together(becoming(name, kind)))
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for key, odds in {
        "rounds": ("-1", "2", "x", "", "1.5", "10" * 30),
        "clip_norm": ("nan", "inf", "x", ""),
        "sha256": ("", "0" * 64),
    }.items():
        for odd in odds:
            text = json.dumps({**header, "__metadata__": {**header["__metadata__"], key: odd}}).encode()
            yield case_of(f"{key} {odd[:9]!r}", holding(name, len(text).to_bytes(8, "little") + text + content[8 + length :]))
    for other in ("ledger.jsonl", "state/keys/run", "state/keys/epoch-0"):
        whole_of_it = files[f"served/{other}"]
        for what, data in {
            "empty": b"",
            "zeros": bytes(len(whole_of_it)),
            "half": whole_of_it[: len(whole_of_it) // 2],
        }.items():
            # Of a ledger that was torn the whole records are kept.
            if (other, what) != ("ledger.jsonl", "half"):
                yield case_of(f"{other}: {what}", holding(f"served/{other}", data), Path(other).name)
