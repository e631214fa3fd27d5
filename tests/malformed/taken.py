"""Whole files made by the hands that make the malformed ones, which hubbub must take."""

import json
from collections.abc import Iterator

import numpy as np
from safetensors.numpy import load

from malformed.base import CALIBRATE, EVERY, LEDGER, NOISY, PLAN, RESUME, VERIFY, Case, Run
from malformed.checkpoints import noise_rows, with_digest
from malformed.contents import canonical, tensors
from malformed.damages import forged, holding, nothing
from malformed.matrices import C, npy, proto
from malformed.releases import released
from malformed.statements import COEFFICIENTS, bound_model, model_of


def whole(run: Run) -> Iterator[Case]:
    """What the cases are made from, made by the same hands: it is taken."""
    head = json.loads(run.lines[-1])["hash"]
    epoch = {**run.records()[12], "epoch": 2, "first_row": 8, "key": "0" * 64}
    begin = {**run.records()[2], "round": 8, "epoch": 2, "clients": None, "cohort": None}
    later = forged([*run.bodies, canonical(epoch), canonical(begin), canonical({"kind": "abort", "round": 8})])
    release = load(run.files["state/releases/7.safetensors"])
    checkpoint, noise = "checkpoint-6.safetensors", "noise-6.safetensors"
    model = tensors(model=np.arange(8, dtype=np.float32))
    manifest = json.dumps(json.loads(run.files["state/checkpoint.json"]), indent=1).encode()
    dense = ("--mechanism", "C")
    yield Case("a config", (PLAN,), (), nothing)
    yield Case("a run", EVERY, (), nothing)
    yield Case("its head", (("verify", "run", "--head", head.upper()), (*RESUME, "--head", head)), (), nothing)
    yield Case("a ledger", EVERY, (), forged(run.bodies))
    yield Case("later records", (LEDGER,), (), later)
    yield Case("a manifest", (RESUME,), (), holding("run/state/checkpoint.json", manifest))
    yield Case("a checkpoint", (RESUME,), (), with_digest(run, checkpoint, model))
    yield Case("rows of noise", (RESUME,), (), with_digest(run, noise, tensors(**noise_rows())))
    yield Case("a release", (VERIFY, RESUME), (), released(run, tensors(**release)))
    yield Case("a model", (VERIFY,), (), bound_model(run, model_of(head)))
    yield Case("a strategy", (VERIFY,), (), holding("run/strategy.safetensors", tensors(coefficients=COEFFICIENTS)))
    for name, content in {"npy": npy(C), "Fortran": npy(np.asfortranarray(C)), "proto": proto(2, C.shape, C.tobytes())}.items():
        yield Case(f"a matrix as {name}", ((*NOISY, *dense), (*CALIBRATE, *dense)), (), holding("C", content))
