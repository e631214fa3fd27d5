"""Releases and keys that are damaged, missing, or those of something else."""

from collections.abc import Iterator

import numpy as np
from safetensors.numpy import load

from malformed.base import RESUME, VERIFY, Case, Run, Word, round_of
from malformed.contents import attacks, canonical, flipped, sha256, some, tensors
from malformed.damages import Damage, forged, having_mode, holding, together, without


def released(run: Run, content: bytes) -> Damage:
    """Another release of the last round, and a ledger that says that it is right."""
    records = run.records()
    records[-1]["release"] = sha256(content)
    return together(holding("run/state/releases/7.safetensors", content), forged(canonical(record) for record in records))


def releases(run: Run) -> Iterator[Case]:
    names = [name for name in run.files if round_of(name) is not None]
    for name in names:
        content, number = run.files[name], round_of(name) or 0
        # Those before the checkpoint are not needed to go on.
        commands = (VERIFY, RESUME) if number >= 6 else (VERIFY,)
        words: tuple[Word, ...] = (("release", f"{number}.safetensors"), str(number))
        for bit in some(8, 8 * len(content), seed=110 + number):
            yield Case(f"{name}: bit {bit}", commands, words, holding(f"run/{name}", flipped(content, bit)))
        for cut in some(3, len(content), seed=120 + number):
            yield Case(f"{name}: cut at {cut}", commands, words, holding(f"run/{name}", content[:cut]))
        yield Case(f"{name}: longer", commands, words, holding(f"run/{name}", content + b"\0"))
        yield Case(f"{name}: missing", commands, words, without(f"run/{name}"))
        other = run.files[names[(names.index(name) + 1) % len(names)]]
        yield Case(f"{name}: another round's", commands, words, holding(f"run/{name}", other))
    content = run.files["state/releases/7.safetensors"]
    for number in (8, 9, 11, 12, 10**6, 10**200):
        damage = holding(f"run/state/releases/{number}.safetensors", content)
        yield Case(f"of round {number}", (VERIFY, RESUME), ("release", str(number)), damage)
    aborted = holding("run/state/releases/4.safetensors", content)
    yield Case("of the round that aborted", (VERIFY,), ("release", "4"), aborted)


def release_formats(run: Run) -> Iterator[Case]:
    whole = run.files["state/releases/7.safetensors"]
    words = (("7.safetensors", "release"), "7")
    for number, (what, content) in enumerate(attacks(whole)):
        yield Case(what, (RESUME,) if number % 2 else (VERIFY,), words, released(run, content))
    held = load(whole)
    steps, step = held["steps"], held["step"]
    values = steps * step
    for what, arrays in {
        "steps: NaN": {"steps": values * np.nan, "step": step},
        "steps: real": {"steps": steps.astype(np.float64), "step": step},
        "steps: short integers": {"steps": (steps % 100).astype(np.uint8), "step": step},
        "steps: folded": {"steps": steps.reshape(2, 4), "step": step},
        "steps: one number": {"steps": steps[0], "step": step},
        "steps: short": {"steps": steps[:7], "step": step},
        "steps: empty": {"steps": steps[:0], "step": step},
        "steps: long": {"steps": np.concatenate([steps, steps[:1]]), "step": step},
        "steps: no step": {"steps": steps},
        "steps: alone": {"step": step},
        "step: two": {"steps": steps, "step": np.array([step, step])},
        "step: NaN": {"steps": steps, "step": step * np.nan},
        "step: infinite": {"steps": steps, "step": step * np.inf},
        "step: another": {"steps": steps, "step": step * 0.75},
        "step: smaller": {"steps": steps, "step": step * 2.0**-40},
        "step: short": {"steps": steps, "step": step.astype(np.float32)},
        "step: whole": {"steps": steps, "step": np.array(1)},
        "three": {"steps": steps, "step": step, "release": values},
        "NaN": {"release": values * np.nan},
        "infinity": {"release": np.where(np.arange(8) == 5, -np.inf, values)},
        "off the lattice": {"release": values + 1e-9},
        "float32": {"release": values.astype(np.float32)},
        "whole numbers": {"release": values.astype(np.int64)},
        "truths": {"release": values > 0},
        "folded": {"release": values.reshape(2, 4)},
        "short": {"release": values[:7]},
        "long": {"release": np.concatenate([values, [0.0]])},
        "another name": {"update": values},
        "two": {"release": values, "update": values},
        "none": {},
    }.items():
        yield Case(f"tensors: {what}", (VERIFY,), words, released(run, tensors(**arrays)))


def keys(run: Run) -> Iterator[Case]:
    names = ("state/keys/run", "state/keys/epoch-0", "state/keys/epoch-1")
    for name in names:
        whole, words = run.files[name], (name.rpartition("/")[2], "key")
        yield Case(f"{name}: missing", (RESUME,), words, without(f"run/{name}"))
        for length in (0, 1, 16, 31, 33, 64, 1000):
            yield Case(f"{name}: {length} bytes", (RESUME,), words, holding(f"run/{name}", (whole * 40)[:length]))
        contents = {
            "zeros": bytes(32),
            "text": b"0123456789abcdef0123456789abcdef",
            "backwards": whole[::-1],
            "hexadecimal": whole.hex().encode(),
            "line end": whole[:31] + b"\n",
            "another key": run.files[names[(names.index(name) + 1) % 3]],
        }
        for what, content in contents.items():
            if content != whole:
                yield Case(f"{name}: {what}", (RESUME,), words, holding(f"run/{name}", content))
        for bit in some(4, 256, seed=len(name)):
            yield Case(f"{name}: bit {bit}", (RESUME,), words, holding(f"run/{name}", flipped(whole, bit)))
        for mode in (0o644, 0o640, 0o604, 0o666, 0o620, 0o601, 0o777):
            damage = having_mode(f"run/{name}", mode)
            yield Case(f"{name}: mode {mode:o}", (VERIFY, RESUME), (name.rpartition("/")[2], "mode"), damage)
    for name in ("ledger.jsonl", "state/noise-6.safetensors"):
        for mode in (0o644, 0o666):
            yield Case(f"{name}: mode {mode:o}", (VERIFY,), (name, "mode"), having_mode(f"run/{name}", mode))
