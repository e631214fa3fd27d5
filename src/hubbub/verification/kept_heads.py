"""Kept heads against the ledgers of a run: whether these have them all, in order, and whether they are signed."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from hubbub._util import strict_json
from hubbub._util.checks import shown
from hubbub._util.ssh_signatures import PublicKey, require_signed
from hubbub.errors import ConfigError
from hubbub.ledger.chain import Chain
from hubbub.training.head_hook import signed_part

__all__ = ["compared", "kept_lines"]

_BARE = re.compile(rb"[0-9a-fA-F]{64}")
_NAMES = {"head", "rounds", "run"}


def kept_lines(path: Path) -> list[bytes]:
    """The non-empty lines of a file of heads.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        return [line.strip() for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"heads = {str(path)!r}: cannot be read ({error.strerror}); name the list that was kept") from error


def compared(
    chains: Sequence[Chain], lines: Sequence[bytes], keys: Collection[PublicKey] | None
) -> tuple[list[str], list[int]]:
    """The faults of the lines, in words, and the number of rounds that the others reach in each ledger.

    A line is the input of a head hook, or a bare head. Lines may repeat: a hook gets each head at least once.

    Args:
        chains: The run's ledger, and that of its private evaluations if there is one.
        lines: In the order of their receipt.
        keys: Public keys, one of which must have signed each line; ``None`` skips the signatures.
    """
    places = {head: (number, place) for number, chain in enumerate(chains) for place, head in enumerate(chain.hashes)}
    rounds_of = {head: rounds for chain in chains for rounds, head in chain.round_heads()}
    faults, seen, last = list[str](), set[bytes](), [0] * len(chains)
    for number, line in enumerate(lines, start=1):
        try:
            run, head, rounds = _stated([chain.hashes[0] for chain in chains], line, keys)
            own, place = places.get(head, (-1, -1))
            if own < 0 or run not in (None, own):
                raise ValueError(f"head {shown(head)} is not in the ledger, which was rolled back or is of another run")
            if rounds is not None and rounds_of.get(head) != rounds:
                raise ValueError(f"says {rounds} rounds, and the ledger had {rounds_of.get(head)} with this head")
            if line not in seen and place < last[own]:
                raise ValueError("was received after a later head")
            seen.add(line)
            last[own] = max(last[own], place)
        except ValueError as error:
            faults.append(f"line {number} of the kept heads: {error}")
    reached = [chain.rounds_at(chain.hashes[place]) or 0 for chain, place in zip(chains, last, strict=True)]
    return faults if lines else ["no head was kept"], reached


def _stated(runs: Sequence[str], line: bytes, keys: Collection[PublicKey] | None) -> tuple[int | None, str, int | None]:
    """The place of a line's run among the given ones, its head, and its number of rounds; ``None`` if a bare head."""
    if _BARE.fullmatch(line):
        if keys is not None:
            raise ValueError("has no signature")
        return None, line.decode().lower(), None
    body = strict_json.loads(line)
    if not isinstance(body, dict) or body.keys() - {"signature"} != _NAMES or type(body["rounds"]) is not int:
        raise ValueError("is neither a head nor what a hook is given")
    if body["run"] not in runs:
        raise ValueError(f"is of run {shown(body['run'])}, this ledger is of {runs[0]}; compare each run with its lines")
    if keys is not None:
        if not isinstance(body.get("signature"), str):
            raise ValueError("has no signature")
        require_signed(signed_part(body), body["signature"], keys)
    return runs.index(body["run"]), str(body["head"]), body["rounds"]
