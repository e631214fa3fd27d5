"""Manifests and checkpoints that are damaged, or hold no state of this run."""

import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np

from malformed.base import RESUME, Case, Run
from malformed.contents import DEEP, attacks, canonical, changed, flipped, leaves, sha256, some, tensors
from malformed.damages import Damage, holding, together


def manifests(run: Run) -> Iterator[Case]:
    name = "run/state/checkpoint.json"

    def case(what: str, content: bytes | dict[str, Any]) -> Case:
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        return Case(what, (RESUME,), ("checkpoint.json",), holding(name, text))

    whole = run.files["state/checkpoint.json"]
    good = json.loads(whole)
    checkpoint, noise = "checkpoint-6.safetensors", "noise-6.safetensors"
    for cut in some(12, len(whole) - 1, seed=9):
        yield case(f"cut at {cut}", whole[:cut])
    values: dict[str, Any] = {"null": None, "true": True, "-1": -1, "1.5": 1.5, "text": "\x1b[31m", "list": [6], "huge": 10**30}
    for path in leaves(good):
        yield case(f"no {'.'.join(path)}", changed(json.loads(whole), path))
        for kind, value in values.items():
            yield case(f"{'.'.join(path)}: {kind}", changed(json.loads(whole), path, value))
    for rounds in (0, 3, 7, 9, 12, 13, "6", 6.5, [6], 10**4000):
        yield case(f"rounds {str(rounds)[:20]}", {**good, "rounds": rounds})
    for schema in (0, 2, 99, "1", None):
        yield case(f"schema {schema!r}", {**good, "schema": schema})
    for head in ("", "0" * 64, good["head"].upper(), good["head"][:-1]):
        yield case(f"head {head[:10]!r} of {len(head)}", {**good, "head": head})
    odd_names = "../state/checkpoint-6.safetensors /etc/passwd . checkpoint-6 checkpoint-06.safetensors \0 \x1b[31m".split()
    for odd in (*odd_names, ""):
        yield case(f"{odd!r} for a name", {**good, "files": {odd: good["files"][checkpoint], noise: good["files"][noise]}})
        yield case(f"{odd!r} beside the names", {**good, "files": {**good["files"], odd: good["files"][checkpoint]}})
    yield case("the files swapped", {**good, "files": {checkpoint: good["files"][noise], noise: good["files"][checkpoint]}})
    yield case("no file of the noise", {**good, "files": {checkpoint: good["files"][checkpoint]}})
    yield case("no file of the model", {**good, "files": {noise: good["files"][noise]}})
    begin, inner = whole[:1], whole[1:]
    for what, text in {
        "empty": b"",
        "blank": b" \n",
        "NaN": whole.replace(b'"rounds":6', b'"rounds":NaN'),
        "1e999": whole.replace(b'"rounds":6', b'"rounds":1e999'),
        "-Infinity": whole.replace(b'"rounds":6', b'"rounds":-Infinity'),
        "a NaN that nobody reads": begin + b'"a":NaN,' + inner,
        "rounds twice": begin + b'"rounds":6,' + inner,
        "files twice": begin + b'"files":{},' + inner,
        "deep": begin + b'"a":' + b"[" * DEEP + b"]" * DEEP + b"," + inner,
        "long number": whole.replace(b'"rounds":6', b'"rounds":' + b"9" * DEEP),
        "no UTF-8": begin + b'"a":"\xff",' + inner,
        "UTF-16": whole.decode().encode("utf-16"),
        "byte order mark": b"\xef\xbb\xbf" + whole,
        "zeros": bytes(len(whole)),
        "more behind it": whole + b"{}",
        "a comma too many": whole[:-1] + b",}",
        "comment": whole + b"// last",
        "single quotes": whole.replace(b'"', b"'"),
        "two mebibytes": whole + b" " * 2**21,
        "null": b"null",
        "a number": b"6",
        "pickle": pickle.dumps(good),
    }.items():
        yield case(what, text)


def with_digest(run: Run, name: str, content: bytes, count: int | None = None) -> Damage:
    """A file of the checkpoint, and a manifest that says that it is right."""
    manifest = json.loads(run.files["state/checkpoint.json"])
    entry = manifest["files"][name]
    entry |= {"sha256": sha256(content), "bytes": len(content)}
    if count is not None:
        entry["tensors"] = count
    return together(holding(f"run/state/{name}", content), holding("run/state/checkpoint.json", canonical(manifest)))


def checkpoint_bits(run: Run) -> Iterator[Case]:
    for name, seed in (("checkpoint-6.safetensors", 101), ("noise-6.safetensors", 102)):
        content = run.files[f"state/{name}"]
        for bit in some(45, 8 * len(content), seed):
            damage = holding(f"run/state/{name}", flipped(content, bit))
            yield Case(f"{name}: bit {bit}", (RESUME,), (name, "SHA-256"), damage)
        for cut in some(15, len(content), seed + 10):
            yield Case(f"{name}: cut at {cut}", (RESUME,), (name,), holding(f"run/state/{name}", content[:cut]))


def checkpoint_formats(run: Run) -> Iterator[Case]:
    for name in ("checkpoint-6.safetensors", "noise-6.safetensors"):
        for what, content in attacks(run.files[f"state/{name}"]):
            yield Case(f"{name}: {what}", (RESUME,), (name,), with_digest(run, name, content))


def noise_rows() -> dict[str, np.ndarray]:
    """What a run of three bands remembers of its noise."""
    row = np.ones(8)
    return {"drawn": np.array(6), "memory__000000": row, "memory__000001": row}


def checkpoint_tensors(run: Run) -> Iterator[Case]:
    """Files of the right format that hold no state of this run, under digests that are right."""
    checkpoint, noise = "checkpoint-6.safetensors", "noise-6.safetensors"
    model = np.arange(8, dtype=np.float32)
    for what, arrays in {
        "NaN": {"model": model * np.float32("nan")},
        "one NaN": {"model": np.where(model == 3, np.float32("nan"), model)},
        "infinity": {"model": np.where(model == 3, np.float32("inf"), model)},
        "whole numbers": {"model": np.arange(8)},
        "float16": {"model": model.astype(np.float16)},
        "truths": {"model": model > 3},
        "short": {"model": model[:7]},
        "long": {"model": np.arange(9, dtype=np.float32)},
        "folded": {"model": model.reshape(2, 4)},
        "one number": {"model": model[0]},
        "empty": {"model": model[:0]},
        "other name": {"weights": model},
        "nothing": {},
    }.items():
        damage = with_digest(run, checkpoint, tensors(**arrays), len(arrays))
        yield Case(f"model: {what}", (RESUME,), (("checkpoint",),), damage)
    six, row, good = np.array(6), np.ones(8), noise_rows()
    for what, changes in {
        "drawn -1": {"drawn": np.array(-1)},
        "drawn 5": {"drawn": np.array(5)},
        "drawn 7": {"drawn": np.array(7)},
        "drawn 10^15": {"drawn": np.array(10**15)},
        "drawn 6.5": {"drawn": np.array(6.5)},
        "drawn NaN": {"drawn": np.array(np.nan)},
        "drawn infinity": {"drawn": np.array(np.inf)},
        "drawn true": {"drawn": np.array(True)},
        "drawn twice": {"drawn": np.array([6, 6])},
        "drawn empty": {"drawn": np.array([], dtype=np.int64)},
        "a number that no run has": {"rounds_per_pass": np.array(1)},
        "a row of NaN": {"memory__000001": row * np.nan},
        "a row with infinity": {"memory__000001": np.where(np.arange(8) == 2, np.inf, row)},
        "a row of whole numbers": {"memory__000001": np.arange(8)},
        "a row of truths": {"memory__000001": row > 0},
        "a short row": {"memory__000001": row[:7]},
        "a long row": {"memory__000001": np.ones(9)},
        "a folded row": {"memory__000001": row.reshape(2, 4)},
        "a row too many": {"memory__000002": row},
        "a row of another name": {"extra": row},
    }.items():
        arrays = {**good, **changes}
        yield Case(f"noise: {what}", (RESUME,), (("noise",),), with_digest(run, noise, tensors(**arrays), len(arrays)))
    for gone in good:
        arrays = {name: array for name, array in good.items() if name != gone}
        damage = with_digest(run, noise, tensors(**arrays), len(arrays))
        yield Case(f"noise: no {gone}", (RESUME,), (("noise",),), damage)
    both = tensors(drawn=six), 1
    yield Case("noise: no rows", (RESUME,), (("noise",),), with_digest(run, noise, *both))
