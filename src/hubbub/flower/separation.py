"""Participation patterns enforced by devices: each records its rounds of a run, and refuses one that comes too soon.

The server needs no identities: it asks any devices, and one that may not join answers with an error. Rounds that a device has
no record of count as the most that the pattern allows, so that a device whose record was lost waits.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from flwr.app import Context, Message, MetricRecord, RecordDict

from hubbub._util import files, strict_json
from hubbub._util.checks import digest, integer
from hubbub.flower.messages import ROUND_INDEX, first_config, is_training, records_of
from hubbub.flower.mods import App, refusal
from hubbub.mechanism.participation import MinSeparation

# Of the node's configuration.
FOLDER = "separation-folder"
_RUN, _SEPARATION, _MOST = "hubbub_run", "hubbub_min_separation", "hubbub_max_participations"
_KEPT = "hubbub-separation"
_LONGEST = 2**24
_SCHEMA = 1
_LOG = logging.getLogger("flwr")


def separation_config(run: str, round_index: int, pattern: MinSeparation) -> dict[str, str | int]:
    """The settings for devices: the run's name, the round, and the pattern."""
    return {_RUN: run, ROUND_INDEX: round_index, _SEPARATION: pattern.min_separation, _MOST: pattern.max_participations}


def require_kept(content: RecordDict, settings: Mapping[str, str | int]) -> None:
    """Refuse a reply that does not confirm the separation, as of an app without :func:`separation_mod`."""
    if not any(record.get(_KEPT) == settings[ROUND_INDEX] for record in records_of(content, MetricRecord)):
        raise ValueError("does not say that its device keeps the separation; its app needs separation_mod, first of its mods")


@dataclass(frozen=True)
class _Record:
    """A device's rounds in a run from ``known_from`` on, in order."""

    pattern: MinSeparation
    known_from: int
    rounds: tuple[int, ...] = ()

    @classmethod
    def read(cls, path: Path, pattern: MinSeparation, round_index: int) -> "_Record":
        """The record in a file; a new one, which does not cover the rounds so far, if the file is missing or damaged."""
        new = cls(pattern, round_index + 1)
        if not os.path.lexists(path):
            # Before round 0 there is nothing to record.
            return new if round_index else replace(new, known_from=0)
        try:
            stated = strict_json.loads(files.read(path, at_most=_LONGEST))
            if stated["schema"] != _SCHEMA:
                raise ValueError(f"schema = {stated['schema']!r}: this hubbub reads schema {_SCHEMA}")
            known_from, *rounds = (integer("rounds", t, at_least=0) for t in (stated["known_from"], *stated["rounds"]))
            if rounds != sorted(set(rounds)) or min(rounds, default=known_from) < known_from:
                raise ValueError("its rounds are in no order")
            return cls(MinSeparation(stated["min_separation"], stated["max_participations"]), known_from, tuple(rounds))
        except (ValueError, TypeError, KeyError) as error:
            _LOG.warning("separation_mod: %s is damaged (%s); the device waits as if it were new", path, error)
            return new

    def write(self, path: Path) -> None:
        """Write the record durably."""
        content = {"schema": _SCHEMA, **asdict(self.pattern), "known_from": self.known_from, "rounds": list(self.rounds)}
        files.write_atomic(path, strict_json.canonical(content))

    def with_round(self, pattern: MinSeparation, round_index: int) -> "_Record":
        """The record with one more round."""
        if pattern != self.pattern:
            raise ValueError(f"the run promised {self.pattern} before, and says {pattern} now")
        # Before the record begins the device may have taken part as late and as often as the pattern allows.
        separation, unknown = self.pattern.min_separation, -(-self.known_from // self.pattern.min_separation)
        last = self.rounds[-1] if self.rounds else self.known_from - 1
        if round_index < last + separation and (self.rounds or self.known_from):
            why = f"took part in round {last}" if self.rounds else f"does not know whether it took part in round {last}"
            raise ValueError(f"round {round_index}: this device {why}, and may join from round {last + separation} on")
        if len(self.rounds) + unknown >= self.pattern.max_participations:
            doubt = f", and perhaps in {unknown} before it kept its history" if unknown else ""
            raise ValueError(
                f"round {round_index}: this device took part in {len(self.rounds)} rounds{doubt}, and may in "
                f"{self.pattern.max_participations}"
            )
        return replace(self, rounds=(*self.rounds, round_index))


def separation_mod(msg: Message, context: Context, call_next: App) -> Message:
    """Let a device join a round only if the participation pattern allows it by the device's own record.

    For a strategy with ``pattern_kept_by="devices"``. The record is one file a run in the folder ``separation-folder`` of the
    node's configuration; keep it over restarts and updates of the app. A round is on disk before the app trains. A device
    without a record of earlier rounds, because it is new or its folder was lost, counts as if it had taken part in them: it
    waits ``min_separation`` rounds and has fewer participations left. Devices that lie, copies of a device, and folders
    restored from a backup are not detected.

    Returns:
        The reply, with the device's confirmation; an error of the app as it is; or an error of code 6 if the device may not
        join, the server does not say which round it is, or the record cannot be written.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> from hubbub.flower import clipping_mod
        >>> app = ClientApp(mods=[separation_mod, clipping_mod])

    Source: Xu et al. 2023, "Federated Learning of Gboard Language Models with Differential Privacy",
    https://arxiv.org/abs/2305.18465, section 3.
    """
    if not is_training(msg.metadata.message_type):
        return call_next(msg, context)
    try:
        config = first_config(msg.content)
        if missing := [name for name in (_RUN, ROUND_INDEX, _SEPARATION, _MOST) if name not in config]:
            raise KeyError(
                f"the server's configuration has no {missing[0]!r}, so that this device cannot tell whether it may take part; "
                "the strategy needs pattern_kept_by='devices'"
            )
        pattern = MinSeparation(*(integer(name, config[name], at_least=1) for name in (_SEPARATION, _MOST)))
        run, round_index = digest(_RUN, config[_RUN]), integer(ROUND_INDEX, config[ROUND_INDEX], at_least=0)
        if FOLDER not in context.node_config:
            raise KeyError(f"the node's configuration names no {FOLDER!r}, the folder that keeps the rounds of this device")
        folder = Path(str(context.node_config[FOLDER])).expanduser().absolute()
        path = folder / f"{run}.json"
        with files.locked_folder(folder):
            record = _Record.read(path, pattern, round_index)
            # From here on the record covers this run, even if the round is refused.
            record.write(path)
            record.with_round(pattern, round_index).write(path)
    except (KeyError, TypeError, ValueError, OSError) as error:
        return refusal(msg, "separation_mod", error)
    reply = call_next(msg, context)
    if not reply.has_error():
        reply.content = RecordDict({**reply.content, _KEPT: MetricRecord({_KEPT: round_index})})
    return reply
