"""The file of cohorts of a ledger, read and written from its definition, for the tests of who took part when."""

import hashlib
import json
import struct
from collections.abc import Sequence
from pathlib import Path


def block(round_index: int, known: Sequence[int], new: Sequence[int]) -> bytes:
    head = struct.pack("<3I", round_index, len(known), len(new))
    return head + struct.pack(f"<{len(known)}I", *known) + struct.pack(f"<{len(new)}Q", *new)


def bound(cohort: bytes) -> dict[str, int | str]:
    """What the record of a round says of its block."""
    _, known, new = struct.unpack_from("<3I", cohort)
    return {"clients": known + new, "cohort": hashlib.sha256(cohort).hexdigest()}


def blocks(content: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(content):
        _, known, new = struct.unpack_from("<3I", content, at)
        end = at + 12 + 4 * known + 8 * new
        found.append(content[at:end])
        at = end
    return found


def name_of(secret: bytes, client: str) -> str:
    """As which a ledger knows a client."""
    tag = hashlib.blake2b(client.encode(), digest_size=8, key=secret, person=b"client").digest()
    return f"{int.from_bytes(tag, 'little'):016x}"


def cohorts(ledger: Path) -> list[list[str]]:
    """For each round that the lines of a ledger begin, the clients that its cohort names; their digests are compared."""
    file, bodies = ledger.with_suffix(".cohorts"), [json.loads(line)["body"] for line in ledger.read_text().splitlines()]
    kept = iter(blocks(file.read_bytes()) if file.exists() else [])
    names, found = list[str](), list[list[str]]()
    for body in bodies:
        if body["kind"] == "begin":
            assert body["round"] == len(found)
            found.append([])
            if body["cohort"] is None:
                assert body["clients"] is None
                continue
            cohort = next(kept)
            assert bound(cohort) == {name: body[name] for name in ("clients", "cohort")}
            stated, known, new = struct.unpack_from("<3I", cohort)
            numbers = struct.unpack_from(f"<{known}I", cohort, 12)
            assert stated == body["round"]
            assert list(numbers) == sorted(set(numbers))
            fresh = [f"{tag:016x}" for tag in struct.unpack_from(f"<{new}Q", cohort, 12 + 4 * known)]
            found[-1] = [names[number] for number in numbers] + fresh
            names += fresh
            assert len(set(names)) == len(names)
    return found


def joined(ledger: Path) -> dict[str, list[int]]:
    """For each client that the cohorts of a ledger name, the rounds that were begun with it."""
    found: dict[str, list[int]] = {}
    for round_index, clients in enumerate(cohorts(ledger)):
        for client in clients:
            found.setdefault(client, []).append(round_index)
    return found
