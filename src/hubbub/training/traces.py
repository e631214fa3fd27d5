"""What a run leaves in its folder beside the ledger, and whether the ledger accounts for it.

A trace is written after the record that it follows from; only the key of an epoch comes before. So neither a crash nor a run at
work leaves one without its record: where the record is missing, the ledger was rolled back, or is another run's.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hubbub import files, strict_json
from hubbub._checks import integer
from hubbub.accounting.chain import Chain
from hubbub.accounting.history import History
from hubbub.errors import RunFolderError
from hubbub.training.metrics import rounds_shown
from hubbub.training.store import RunStore

__all__ = ["Traces", "key_ahead", "unknown_releases"]

_LARGEST_MANIFEST = 2**20


def unknown_releases(kept: Iterable[int], states: Sequence[str]) -> list[int]:
    """The rounds of kept releases that are neither committed nor under way by the states on record, in order."""
    known = {round_index for round_index, state in enumerate(states) if state != "burned"}
    return sorted(set(kept) - known)


def key_ahead(keyed: int, epochs: int) -> str:
    """Which key shows that more than ``epochs`` starts were made, in words; empty where none does.

    Args:
        keyed: One more than the last epoch that has a key.
        epochs: How many starts are on record. The key of one more may be there, since it comes first.
    """
    return f"the key of epoch {keyed - 1}" if keyed > epochs + 1 else ""


@dataclass(frozen=True)
class Traces:
    """What lies in a folder beside its ledger.

    Args:
        releases: The SHA-256 of each release, by round.
        checkpoint: How many rounds the last one holds, and the head of the ledger that goes with it.
        shown: How many rounds the metrics go to.
        keyed: One more than the last epoch that has a key.
    """

    releases: Mapping[int, str]
    checkpoint: tuple[int, str] | None
    shown: int
    keyed: int

    @classmethod
    def of(cls, store: RunStore) -> "Traces":
        """Those of a folder. Gather them before the ledger is read: a run at work then has recorded each of them.

        Raises:
            RunFolderError: One that cannot be read.
        """
        return cls(
            releases={t: hashlib.sha256(store.release_content(t)).hexdigest() for t in store.released()},
            checkpoint=_checkpoint(store.folder / "state" / "checkpoint.json"),
            shown=rounds_shown(store.folder),
            keyed=store.epochs(),
        )

    @property
    def tell(self) -> bool:
        """Whether there is anything that shows how far the run went."""
        return bool(self.releases) or self.checkpoint is not None or self.shown > 0

    def unknown(self, chain: Chain, history: History) -> Iterator[str]:
        """What the ledger does not account for, in words."""
        rounds = history.rounds
        beyond = unknown_releases(self.releases, [entry.state for entry in rounds])
        yield from (f"state/releases/{t}.safetensors is no release of it" for t in beyond)
        for t in sorted(set(self.releases) - set(beyond)):
            if rounds[t].state == "committed" and rounds[t].release != self.releases[t]:
                yield f"state/releases/{t}.safetensors is not what it says was released"
        if self.checkpoint is not None and chain.rounds_at(self.checkpoint[1]) != self.checkpoint[0]:
            yield f"state/checkpoint.json goes with a ledger of {self.checkpoint[0]} rounds, with a head that it never had"
        if self.shown > len(rounds):
            yield f"metrics.jsonl goes to {self.shown} rounds"
        if key := key_ahead(self.keyed, len(history.epochs)):
            yield f"{key} is there, of which it does not know"


def _checkpoint(path: Path) -> tuple[int, str] | None:
    """What the manifest says; its files are not read, since those of a closed run are gone in part."""
    if not os.path.lexists(path):
        return None
    try:
        manifest = strict_json.loads(files.read(path, at_most=_LARGEST_MANIFEST))
        return integer("rounds", manifest["rounds"], at_least=1), str(manifest["head"])
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror}); restore it") from error
    except (ValueError, TypeError, KeyError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise RunFolderError(f"{path}: is no manifest of a checkpoint ({what}); restore it") from error
