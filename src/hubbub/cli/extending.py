"""``hubbub extend``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hubbub import config as configs
from hubbub._checks import integer
from hubbub.accounting import rounded_up
from hubbub.accounting.actual_cost import spent
from hubbub.accounting.chain import read_chain
from hubbub.accounting.statement import no_less
from hubbub.cli.output import console, say
from hubbub.cli.training import How, begin
from hubbub.errors import ConfigError
from hubbub.extended import extension
from hubbub.training.run_folder.record import ledger_of, read_run

__all__ = ["Asked", "extend"]

# What a clip norm that moved leaves behind when it stands still from here on.
_OF_ADAPTIVE = ("target_quantile", "clip_norm_learning_rate", "clip_count_stddev")


@dataclass(frozen=True)
class Asked:
    """How a run is to go on; ``None`` leaves it to the command."""

    rounds: int
    assignments: Sequence[str]
    out: Path | None
    head: str | None


def extend(folder: Path, asked: Asked, how: How, *, allow_import: bool, as_json: bool) -> None:
    """Go on from a finished run in a folder of its own."""
    integer("--rounds", asked.rounds, at_least=1)
    told = configs.overrides(asked.assignments)
    if "rounds" in told.get("training", {}):
        raise ConfigError("--set training.rounds: is what --rounds says; leave it out")
    if asked.head is not None:
        read_chain(ledger_of(folder)).require_head(asked.head)
    recorded, layer = read_run(folder), extension(folder)
    cost, done = spent(recorded.promise, recorded.history).guarantee, len(recorded.history.rounds)
    screen = console(stderr=as_json)
    said = f"epsilon {rounded_up(cost.epsilon)} at delta {no_less(cost.delta)}" if cost.private else "no privacy guarantee"
    say(screen, f"{folder}: {done} of {recorded.promise.rounds} rounds, {said}")
    if others := layer["privacy"]["earlier_runs"][1:]:
        say(screen, f"Charged as well, since they belong to it: {', '.join(others)}")
    if told.get("privacy", {}).get("clipping") == "fixed":
        for key in _OF_ADAPTIVE:
            layer["privacy"].pop(key, None)
    if layer["privacy"].get("bands", 0) > asked.rounds:
        # As many as fewer rounds have, by default.
        layer["privacy"].pop("bands")
    layers = [layer, {"training": {"rounds": asked.rounds}}, told]
    begin(layers, asked.out, f"{folder.resolve().name}-extended", how, allow_import=allow_import, as_json=as_json)
