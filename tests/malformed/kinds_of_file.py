"""Folders, pipes, links and devices where a file is looked for."""

from collections.abc import Iterator
from pathlib import Path

from malformed.base import EVERY, LEDGER, NOISY, PLAN, RESUME, VERIFY, Case, Command, Run, Word
from malformed.contents import tensors_file
from malformed.damages import KINDS, becoming, holding, together
from malformed.matrices import C, npy

READ_BY: dict[str, tuple[Command, ...]] = {
    "ledger.jsonl": EVERY,
    "config.toml": (RESUME,),
    "metrics.jsonl": (VERIFY, RESUME),
    "guarantee.json": (VERIFY,),
    "strategy.safetensors": (VERIFY, LEDGER),
    "state/keys/run": (RESUME,),
    "state/keys/epoch-0": (RESUME,),
    "state/keys/epoch-1": (RESUME,),
    "state/releases/3.safetensors": (VERIFY,),
    "state/releases/7.safetensors": (VERIFY, RESUME),
    "state/checkpoint.json": (RESUME,),
    "state/checkpoint-6.safetensors": (RESUME,),
    "state/noise-6.safetensors": (RESUME,),
    "state/lock": (RESUME,),
    "model.safetensors": (VERIFY,),
}
FOLDERS: dict[str, tuple[Command, ...]] = {
    "state": (VERIFY, RESUME),
    "state/keys": (RESUME,),
    "state/releases": (VERIFY, RESUME),
}


def kinds_of_file(run: Run) -> Iterator[Case]:
    for name, commands in READ_BY.items():
        words: tuple[Word, ...] = (Path(name).name if "releases" not in name else ("releases", Path(name).name),)
        for kind in KINDS:
            # A link to the very file is as good as the file where only its content counts.
            if (name, kind) != ("config.toml", "link"):
                made = holding("run/model.safetensors", tensors_file({}, b""))
                first = (made,) if name == "model.safetensors" else ()
                yield Case(f"{name}: {kind}", commands, words, together(*first, becoming(f"run/{name}", kind)))
        if name not in ("metrics.jsonl", "state/lock"):
            yield Case(f"{name}: empty", commands, words_of_empty(name, words), holding(f"run/{name}", b""))
    for name, commands in FOLDERS.items():
        for kind in ("file", "pipe", "link", "endless", "dangling"):
            yield Case(f"{name}: {kind}", commands, (("run/" + name, "release", name),), becoming(f"run/{name}", kind))
    for kind in ("file", "pipe", "endless", "dangling"):
        yield Case(f"the run: {kind}", EVERY, ("run",), becoming("run", kind))
    for kind in KINDS:
        if kind != "link":
            yield Case(f"a config: {kind}", (PLAN, ("train", "plan.toml")), ("plan.toml",), becoming("plan.toml", kind))


def words_of_empty(name: str, words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Empty settings are settings, which say too little."""
    return ("noise_multiplier",) if name == "config.toml" else words


def kinds_of_matrix(run: Run) -> Iterator[Case]:
    """Something else than a file where a matrix or data are named by a setting."""
    dense = ("--set", "privacy.strategy=dense", "--set", "privacy.matrix=C.npy")
    data = ("--set", "data.name=mnist", "--set", "data.path=mnist.npz")
    for kind in KINDS:
        if kind != "link":
            damage = together(holding("C.npy", npy(C)), becoming("C.npy", kind))
            commands = ((*NOISY, "--mechanism", "C.npy"), (*NOISY, "--strategy", "dense", "--matrix", "C.npy"), (*PLAN, *dense))
            yield Case(f"matrix: {kind}", commands, ("C.npy",), damage)
            damage = together(holding("mnist.npz", b""), becoming("mnist.npz", kind))
            yield Case(f"data: {kind}", (("plan", "plan.toml", "--measure", *data),), ("mnist.npz",), damage)
