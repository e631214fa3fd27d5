"""What comes over a network, and what its parties keep: the laws of the formats, under digests that are right and wrong."""

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
from hubbub import Mechanism, MinSeparation
from hubbub._util import strict_json
from hubbub.flower.arrays import Layout, difference
from hubbub.flower.holder_messages import agreement_of
from hubbub.flower.holders import answer
from hubbub.flower.options import Options
from hubbub.flower.state import ServerState
from hubbub.ledger.promise import Promise
from hubbub.mechanism.strategies import Identity
from hubbub.noise.lattice import Lattice
from hubbub.secagg import packing, threshold
from hubbub.secagg.aggregator import Aggregator, Request
from hubbub.secagg.key_holder import Holder
from hubbub.secagg.protocol import Agreement
from hubbub.training.aggregate import LatticeSum
from malformed import contents, laws
from malformed.contents import flipped, npy, sha256
from malformed.place import KINDS, Call, Case, Damage, Run, Word, becoming, holding, nothing, together, without
from small_keys import SAFE

# Messages of encrypted sums.

PUBLIC, SHARES = threshold.deal(*SAFE, holders=3, threshold=2, min_contributions=2)
PLAN = packing.Packing(bits=16, clip=1.0, max_clients=4, key_bits=512)
AGREED = Agreement(PUBLIC.public_key, PLAN, 2 * PLAN.slots - 3, run="a run", server_noise=False)
# Magic, kind, agreement, round, lengths of the name and of the ciphertexts; and the digest at the end.
HEAD, DIGEST = 47, 32
# Each value of a record wrong: what may be so here, since any name, zero noise and any number above zero are right somewhere.
FREE = frozenset({"noising_holders: 0", "packing.noise: 0", "packing.noise: nothing", "packing.clip: 1.5", "whole_key: true",
                  "short_exponents: true", "server_noise: true"})  # fmt: skip
OPTIONAL = ("min_contributions", "noising_holders", "whole_key", "server_noise", "packing.bits", "packing.clip",
            "packing.max_clients", "packing.key_bits")  # fmt: skip


def case(what: str, function: str, do: Callable[[], object], *words: Word) -> Case:
    return Case(what, (Call(function, do),), words, nothing)


@cache
def sent(name: str) -> bytes:
    steps = np.random.default_rng(len(name)).integers(-30_000, 30_000, AGREED.size)
    return AGREED.contribution(name, 0, steps)


def contributions(run: Run) -> Iterator[Case]:
    """A contribution of a client, at the server and at a holder who is asked to open its sum."""
    server, holder = Aggregator(AGREED, 0), Holder(SHARES[0], AGREED)
    whole, other = sent("c7"), sent("c1")
    server.add("c1", other)
    damaged = dict(laws.of_bytes(whole, flips=80, cuts=40))
    # The header under a digest that was made anew: of the other bits a forger knows no better than a client.
    for bit in range(8 * (HEAD + 2)):
        body = flipped(whole, bit)[:-DIGEST]
        damaged[f"bit {bit} of the header, with its digest"] = body + bytes.fromhex(sha256(body))
    damaged |= {f"{more} bytes more": whole + bytes(more) for more in (1, 32, 10**6)}
    for what, data in damaged.items():
        yield case(f"to the server: {what}", "add", lambda d=data: server.add("c7", d), "client 'c7'")
        # A holder does not know from whom a contribution should be; another round is another request.
        if "header" not in what:
            yield case(f"to a holder: {what}", "open", lambda d=data: holder.open(Request(0, (other, d), ())), "holder 1")
    for odd in (None, whole.hex(), [whole], bytearray(whole), 7, {}):
        yield case(f"a {type(odd).__name__}", "add", lambda d=odd: server.add("c7", d), "client 'c7'")


# Messages of Flower.

MODEL = {"a.weight": np.ones((2, 3), np.float32), "a.bias": np.ones(2, np.float32), "count": np.array(7)}


def record(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: made if isinstance(made, Array) else Array(np.asarray(made)) for name, made in arrays.items()})


def replies(run: Run) -> Iterator[Case]:
    """Arrays of a client that are not the model's."""
    layout = Layout.of(record(MODEL))
    before = layout.views(record(MODEL))

    def reply(what: str, arrays: dict[str, Any], *words: Word) -> Case:
        return case(what, "update", lambda: difference(layout.views(record(arrays)), before), *words)

    for name in ("a.weight", "a.bias"):
        rest = {key: value for key, value in MODEL.items() if key != name}
        yield reply(f"without {name}", rest, f"'{name}'")
        yield reply(f"{name} renamed", {**rest, f"{name}x": MODEL[name]}, f"'{name}x'")
        for shape in ((), (1,), (3,), (2, 1), (1, 2), (2, 2), (0,), (2, 0), (1, 1, 2), (10**6,)):
            yield reply(f"{name} of shape {shape}", {**MODEL, name: np.ones(shape, np.float32)}, f"'{name}'", "float32")
        for dtype in ("int64", "int8", "uint8", "bool", "complex64"):
            yield reply(f"{name} of {dtype}", {**MODEL, name: np.ones(MODEL[name].shape, dtype)}, f"'{name}'", dtype)
    for name in ("more", "", "a.weight ", "A.weight", "../a", "\x1b[31m", "x" * 500):
        yield reply(f"with {name[:9]!r}", {**MODEL, name: np.ones(2)}, "which the model has not")
    for what, data in laws.of_npy(np.ones(2, np.float32).tobytes(), "'<f4'", "(2,)"):
        bias = Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=data)
        yield reply(f"a bias: {what}", {**MODEL, "a.bias": bias}, ("header", "bytes", "is"))
    for stype in ("", "pickle", "torch.Tensor", "numpy.ndarray ", "\x1b[31m"):
        bias = Array(dtype="float32", shape=(2,), stype=stype, data=npy(np.ones(2, np.float32)))
        yield reply(f"stored as {stype!r}", {**MODEL, "a.bias": bias}, "not stored as NumPy")


@cache
def stated() -> dict[str, Any]:
    return paillier_nodes.agreed(paillier_nodes.dealt()[0].public_key).record()


def agreements(run: Run) -> Iterator[Case]:
    """What a client is told to encrypt under."""

    def told(what: str, data: object) -> Case:
        return case(what, "agreement_of", lambda: agreement_of(data), ("agreement", "encrypt", "twice", "levels", "JSON"))

    whole, modulus = json.dumps(stated()).encode(), stated()["n"]
    for what, odd in laws.of_record(stated(), FREE | {f"{name}: nothing" for name in OPTIONAL}):
        yield told(what, json.dumps(odd).encode())
    for what, data in (dict(laws.of_json(whole)) | dict(laws.of_bytes(whole))).items():
        yield told(f"as a whole: {what}", data)
    for what, odd in {
        "no number": "xyz", "signed": f"-{modulus}", "a prefix": f"0x{modulus}", "spaces": f" {modulus}", "small": "f",
        "even": modulus[:-1] + "0", "short": modulus[:100], "long": modulus * 20, "underscores": "_".join(modulus),
        "of 3": f"{3 * (int(modulus, 16) // 3 | 1):x}", "a square": f"{int(modulus[:256], 16) ** 2:x}",
        "digits": "\u0661" * 512,
    }.items():  # fmt: skip
        yield told(f"n is {what}", json.dumps({**stated(), "n": odd}).encode())


def said(**others: Any) -> ConfigRecord:
    return ConfigRecord({"hubbub_agreement": strict_json.canonical(stated()), **others})


@cache
def request() -> dict[str, ConfigRecord]:
    """A request to open the sum of two clients, as a holder gets it."""
    agreement = paillier_nodes.agreed(paillier_nodes.dealt()[0].public_key)
    summing = paillier_nodes.summed(agreement, [np.arange(agreement.size)] * 2)
    parts = {f"contribution-{i}": ConfigRecord({"data": data}) for i, data in enumerate(summing.request().contributions)}
    return {"paillier": said(action="open", round=0), **parts, "total": ConfigRecord({"data": b""})}


def holder_messages(run: Run) -> Iterator[Case]:
    """Each record of what a holder is sent, wrong or missing; nothing of it opens the round."""
    share, good = paillier_nodes.dealt()[1][0], request()

    def told() -> None:
        answer(RecordDict({"paillier": said(action="hello")}), share, Path("holder"))

    def asked(what: str, content: dict[str, Any], *words: Word) -> Case:
        call = Call("answer", lambda: answer(RecordDict(content), share, Path("holder")))
        return Case(what, (call,), words, told)

    for odd in ("", "OPEN", "decrypt", "hello ", 1, b"open", 1.5, True, ["open"], "\x1b[31m"):
        yield asked(f"action {odd!r}", {**good, "paillier": said(action=odd, round=0)}, "action = ")
    for odd in (-1, 1, 2, 2**31, 2**40, 1.0, "0", True, b"0", [0]):
        yield asked(f"round {odd!r}", {**good, "paillier": said(action="open", round=odd)}, ("round", "this is"))
    yield asked("no agreement", {**good, "paillier": ConfigRecord({"action": "open", "round": 0})}, "hubbub_agreement")
    for name in good:
        words: Word = ("ConfigRecord", "contributions came", "data: must be bytes", "action = ")
        yield asked(f"without {name}", {key: value for key, value in good.items() if key != name}, words)
        yield asked(f"{name} of arrays", {**good, name: record(MODEL)}, words)
        for odd in ("x", 7, [1, 2], 1.5, True):
            yield asked(f"{name}: {odd!r}", {**good, name: ConfigRecord({"data": odd})}, (*words, "hubbub_agreement"))
    data = good["contribution-1"]["data"]
    for what, odd in laws.of_bytes(data, flips=25, cuts=25):
        yield asked(what, {**good, "contribution-1": ConfigRecord({"data": odd})}, "opens nothing")
    yield asked("one twice", {**good, "contribution-1": good["contribution-0"]}, "already")
    yield asked("more than agreed", {**good, **{f"contribution-{i}": good["contribution-0"] for i in range(9)}}, "at most 4")
    for key, odd in (("run", "other"), ("min_contributions", 3), ("size", 6), ("noising_holders", 1), ("whole_key", True)):
        other = ConfigRecord({"action": "open", "round": 0, "hubbub_agreement": strict_json.canonical({**stated(), key: odd})})
        yield asked(f"of another {key}", {**good, "paillier": other}, ("agree", "know", "holders", "whole"))


# Folders.


def made(folder: str) -> dict[str, bytes | None]:
    """What a folder holds, which is removed; a folder in it has no content."""
    found = [Path(folder), *sorted(Path(folder).rglob("*"))]
    files = {str(path): path.read_bytes() if path.is_file() else None for path in found}
    for path in reversed(found):
        path.unlink() if path.is_file() else path.rmdir()
    return files


def laid_out(files: dict[str, bytes | None]) -> None:
    """The folder of a party as it was made, closed to others."""
    for name, content in files.items():
        if content is None:
            Path(name).mkdir(mode=0o700, exist_ok=True)
        else:
            Path(name).write_bytes(content)
            Path(name).chmod(0o600)


def holder_folders(run: Run) -> Iterator[Case]:
    share = paillier_nodes.dealt()[1][0]
    answer(RecordDict({"paillier": said(action="hello")}), share, Path("holder"))
    files = made("holder")
    call = Call("answer", lambda: answer(RecordDict(request()), share, Path("holder")))
    # Nothing was opened so far: the next round is the first, whichever the last was.
    free = frozenset({"noise_round: -1", "noise_round: huge", "next_round: huge"})
    for name, content in files.items():
        if content and name.endswith(".json"):
            bad = list(laws.of_bytes(content))
            bad += [(f"JSON: {what}", odd) for what, odd in laws.of_json(content) if what != "a name more"]
            if Path(name).name == "opened.json":
                bad += [(what, json.dumps(odd).encode()) for what, odd in laws.of_record(json.loads(content), free)]
            damages: dict[str, Damage] = {what: holding(name, odd) for what, odd in bad}
            damages |= {"missing": without(name), **{kind: becoming(name, kind) for kind in KINDS}}
            for what, damage in damages.items():
                if (Path(name).name, what) != ("agreement.json", "link"):
                    whole = together(lambda: laid_out(files), damage)
                    yield Case(f"{Path(name).name}: {what}", (call,), ((Path(name).stem, "say hello"),), whole)


PROMISED = Promise(5, Mechanism(Identity(5), MinSeparation(1, 5), 1.0), settings={"clip_norm": 1.0})


def state_of() -> ServerState:
    layout = Layout.of(record(MODEL))
    return ServerState(PROMISED, layout, Options(num_sampled_clients=4, state="served"), layout.dim)


def state_folders(run: Run) -> Iterator[Case]:  # noqa: C901 # one kind after another
    """The files of a federation that ended after its first round."""
    state = state_of()
    state.path.start()
    total = LatticeSum(torch.zeros(8, dtype=torch.int64), Lattice(1.0), {})
    ticket = state.path.begin([1, 2], total, 1.0)
    state.path.commit(ticket, total.open(state.path.row(ticket)))
    state.rounds, state.clip_norm = 1, 1.0
    state.save(record(MODEL), FedAvg())
    state.close()
    files = made("served")

    def opened() -> None:
        again = state_of()
        try:
            if again.restore(FedAvg()) is None:
                raise ValueError("accepted as none")
        finally:
            again.close()

    def case_of(what: str, name: str, damage: Damage) -> Case:
        whole = together(lambda: laid_out(files), damage)
        return Case(f"{name}: {what}", (Call("restore", opened),), (Path(name).name,), whole)

    model = "served/state/server.safetensors"
    content = files[model] or b""
    header, data = contents.opened(content)
    bad = [*laws.of_safetensors(content), *((f"as bytes: {what}", odd) for what, odd in laws.of_bytes(content, flips=60))]
    rounds = ("-1", "2", "x", "", "1.5", "10" * 30)
    for key, odds in {"rounds": rounds, "clip_norm": ("nan", "inf", "x", ""), "sha256": ("", "0" * 64)}.items():
        for odd in odds:
            changed = {**header, "__metadata__": {**header["__metadata__"], key: odd}}
            bad.append((f"{key} {odd[:9]!r}", contents.tensors_file(changed, data)))
    for what, odd in bad:
        yield case_of(what, model, holding(model, odd))
    for name in (model, "served/ledger.jsonl", "served/state/keys/run", "served/state/keys/epoch-0"):
        for what, odd in () if name == model else laws.of_bytes(files[name] or b""):
            # Of a ledger that was torn the whole records are kept.
            if "ledger" not in name or "cut" not in what:
                yield case_of(what, name, holding(name, odd))
        for kind in KINDS:
            if name != model or kind not in ("dangling", "loop"):
                yield case_of(kind, name, becoming(name, kind))
