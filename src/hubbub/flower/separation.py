"""Separation that devices keep: each remembers in which rounds of a run it was asked, and refuses one that comes too soon.

The server then needs to know nobody: it asks whom it likes, and a device whose turn it is not answers with an error. What a
device does not know of its own past counts as the worst that the pattern allows, so that one whose store was lost waits.
"""

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from hubbub._util import files, strict_json
from hubbub._util.checks import digest, integer
from hubbub.flower.messages import ROUND_INDEX, is_training, records_of
from hubbub.flower.mods import App, refusal
from hubbub.mechanism.participation import MinSeparation

__all__ = ["FOLDER", "require_kept", "separation_config", "separation_mod"]

# Of the node's configuration.
FOLDER = "separation-folder"
_RUN, _SEPARATION, _MOST = "hubbub_run", "hubbub_min_separation", "hubbub_max_participations"
_KEPT = "hubbub-separation"
_LONGEST = 2**24
_LOG = logging.getLogger("flwr")


def separation_config(run: str, round_index: int, pattern: MinSeparation) -> dict[str, str | int]:
    """What each device is told of a round: the run's name, which round it is, and the pattern."""
    return {
        _RUN: run,
        ROUND_INDEX: round_index,
        _SEPARATION: pattern.min_separation,
        _MOST: pattern.max_participations,
    }


def require_kept(content: RecordDict, told: Mapping[str, str | int]) -> None:
    """Refuse a reply of an app without :func:`separation_mod`: nobody has seen to it that the device may take part.

    Raises:
        ValueError: It is one.
    """
    if not any(record.get(_KEPT) == told[ROUND_INDEX] for record in records_of(content, MetricRecord)):
        raise ValueError("does not say that its device keeps the separation; its app needs separation_mod, first of its mods")


@dataclass(frozen=True)
class _Round:
    """A round that a device was asked for."""

    run: str
    round_index: int
    pattern: MinSeparation

    @classmethod
    def of(cls, config: Mapping[str, object]) -> "_Round":
        """What stands in the configuration of a round."""
        if missing := [name for name in (_RUN, ROUND_INDEX, _SEPARATION, _MOST) if name not in config]:
            raise KeyError(
                f"the server's configuration has no {missing[0]!r}, so that this device cannot tell whether it may take part; "
                "the strategy needs pattern_kept_by='devices'"
            )
        most = integer(_MOST, config[_MOST], at_least=1)
        pattern = MinSeparation(integer(_SEPARATION, config[_SEPARATION], at_least=1), most)
        return cls(digest(_RUN, config[_RUN]), integer(ROUND_INDEX, config[ROUND_INDEX], at_least=0), pattern)


@dataclass(frozen=True)
class _History:
    """What a device knows of its part in a run.

    Args:
        pattern: Of the run.
        known_from: The first round of which it knows whether it took part.
        rounds: In which it did since, in order.
    """

    pattern: MinSeparation
    known_from: int
    rounds: tuple[int, ...] = ()

    @classmethod
    def read(cls, path: Path, asked: _Round) -> "_History":
        """That of a file; where there is none, or no such, nothing is known of the rounds up to this one."""
        # Of the first round whoever is asked twice under one node answers once.
        new = cls(asked.pattern, asked.round_index + 1 if asked.round_index else 0)
        if not os.path.lexists(path):
            return new
        try:
            stated = strict_json.loads(files.read(path, at_most=_LONGEST))
            known_from, *rounds = (integer("rounds", t, at_least=0) for t in (stated["known_from"], *stated["rounds"]))
            pattern = MinSeparation(stated["min_separation"], stated["max_participations"])
            if rounds != sorted(set(rounds)) or min(rounds, default=known_from) < known_from:
                raise ValueError("its rounds are in no order")
            return cls(pattern, known_from, tuple(rounds))
        except (ValueError, TypeError, KeyError) as error:
            _LOG.warning("separation_mod: %s is damaged (%s); the device waits as if it were new", path, error)
            return new

    def write(self, path: Path) -> None:
        """Keep it, durably."""
        numbers = {"min_separation": self.pattern.min_separation, "max_participations": self.pattern.max_participations}
        content = {"schema": 1, **numbers, "known_from": self.known_from, "rounds": list(self.rounds)}
        files.write_atomic(path, strict_json.canonical(content))

    def joining(self, asked: _Round) -> "_History":
        """With one round more.

        Raises:
            ValueError: The pattern does not allow it, or the run has another one than before.
        """
        if asked.pattern != self.pattern:
            raise ValueError(f"the run promised {self.pattern} before, and says {asked.pattern} now")
        # Before it knew, it may have taken part as late, and as often, as the pattern allows.
        separation, unknown = self.pattern.min_separation, -(-self.known_from // self.pattern.min_separation)
        last = self.rounds[-1] if self.rounds else self.known_from - 1
        if asked.round_index < last + separation and (self.rounds or self.known_from):
            why = f"took part in round {last}" if self.rounds else f"does not know whether it took part in round {last}"
            raise ValueError(f"round {asked.round_index}: this device {why}, and may join from round {last + separation} on")
        if len(self.rounds) + unknown >= self.pattern.max_participations:
            doubt = f", and perhaps in {unknown} before it kept its history" if unknown else ""
            raise ValueError(
                f"round {asked.round_index}: this device took part in {len(self.rounds)} rounds{doubt}, and may in "
                f"{self.pattern.max_participations}"
            )
        return _History(self.pattern, self.known_from, (*self.rounds, asked.round_index))


def separation_mod(msg: Message, context: Context, call_next: App) -> Message:
    """Lets a device take part in a round only where the run's participation pattern allows it, by the device's own record.

    For a strategy with ``pattern_kept_by="devices"``. The record is a file for each run in the folder that the node's
    configuration names, ``separation-folder``; keep it over restarts and updates of the app. A round is on disk before the app
    trains, whatever becomes of the reply. A device that has no record of a run, since it is new or its folder was lost, counts
    every round before as one that it may have taken part in: it waits for ``min_separation`` rounds, its trust period, and may
    join so much less often. A device that lies, that is copied, or whose folder is set back is beyond what this can see.

    Returns:
        The reply, with a word that the device has seen to it; an error of the app as it is; or an error of code 6 where the
        device may not take part, the server does not say which round it is, or the record cannot be kept.

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
        asked = _Round.of(next(iter(records_of(msg.content, ConfigRecord)), ConfigRecord()))
        if FOLDER not in context.node_config:
            raise KeyError(f"the node's configuration names no {FOLDER!r}, the folder that keeps the rounds of this device")
        folder = Path(str(context.node_config[FOLDER])).expanduser().absolute()
        path = folder / f"{asked.run}.json"
        with _locked(folder):
            found = _History.read(path, asked)
            # Whatever follows, from here on the device knows.
            found.write(path)
            found.joining(asked).write(path)
    except (KeyError, TypeError, ValueError, OSError) as error:
        return refusal(msg, "separation_mod", error)
    reply = call_next(msg, context)
    if not reply.has_error():
        reply.content = RecordDict({**reply.content, _KEPT: MetricRecord({_KEPT: asked.round_index})})
    return reply


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes of this device out of the folder, which is made if it is not there."""
    files.make_folder(folder)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
