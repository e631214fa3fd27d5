"""What the server and the holders of the key say to each other on a grid, as records: both sides read them here.

The server asks with ``query.paillier`` messages: who holds what (*hello*), noise of a round, and to open a sum. The parts of a
large request are records of their own, which Flower carries one by one. Nothing in them is secret but what a sum says, in the
answer of the one owner of a whole key.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, MessageType, RecordDict

from hubbub._checks import integer, shown
from hubbub.secagg.aggregator import Aggregator, Request
from hubbub.secagg.key_holder import Opened
from hubbub.secagg.proofs import Proof
from hubbub.secagg.protocol import as_bytes, width
from hubbub.secagg.threshold import Partial, ThresholdKey

__all__ = [
    "ACTION",
    "ARRAYS",
    "CLIP_NORM",
    "HELLO",
    "NOISE",
    "OPEN",
    "PROMISE",
    "QUERY",
    "RECORD",
    "ROUND",
    "Held",
    "answer_record",
    "opened",
    "request_of",
    "request_records",
    "round_of",
    "said",
]

# What the holder's function is registered under, and the type of messages to it.
ACTION = "paillier"
QUERY = f"{MessageType.QUERY}.{ACTION}"
# The one record that every message has.
RECORD = "paillier"
HELLO, NOISE, OPEN = "hello", "noise", "open"
ROUND, CLIP_NORM, PROMISE, ARRAYS = "round", "clip-norm", "promise", "arrays"
_MOST_ROUNDS = 2**31
# That a decrypted number, which may be negative, needs beyond the bits of the key.
_SPARE_BYTES = 1
# Of the two numbers of a proof: more than one of a key of 16,384 bits has.
_LONGEST_PROOF = 16_384


@dataclass(frozen=True)
class Held:
    """What a node says that it holds.

    Args:
        holder: The number of its share, from 1; 1 for a whole key; 0 for nothing.
        key_id: Of the key that is shared, or of the whole key.
    """

    holder: int = 0
    key_id: str = ""

    def record(self) -> ConfigRecord:
        """As the answer to a hello."""
        return ConfigRecord({"holder": self.holder, "key-id": self.key_id})

    @classmethod
    def of(cls, content: RecordDict) -> "Held":
        """What an answer says.

        Raises:
            ValueError, TypeError: It is none.
        """
        record = said(content)
        key_id = record.get("key-id")
        if not isinstance(key_id, str):
            raise TypeError("names no key")
        return cls(integer("holder", record.get("holder"), at_least=0, at_most=100), key_id)


def said(content: RecordDict) -> ConfigRecord:
    """The one record that every message has.

    Raises:
        ValueError: It is missing.
    """
    if RECORD not in content.config_records:
        raise ValueError(f"has no ConfigRecord {RECORD!r}")
    return content.config_records[RECORD]


def request_records(request: Request) -> dict[str, ConfigRecord]:
    """What a holder is asked to open: its messages, each in a record of its own."""
    parts = {**_numbered("contribution", request.contributions), **_numbered("noise", request.noise)}
    return {**parts, "total": ConfigRecord({"data": request.total})}


def request_of(content: RecordDict, round_index: int, *, contributions: int, noise: int) -> Request:
    """The request that came, of at most so many messages.

    Raises:
        ValueError: It is none.
    """
    names = [_named(content, "contribution", contributions), _named(content, "noise", noise)]
    given = [tuple(_data(content, name) for name in some) for some in names]
    return Request(round_index, given[0], given[1], _data(content, "total"))


def answer_record(answer: Opened, key_bits: int) -> ConfigRecord:
    """A holder's answer: its part and the proof of it, or, of the owner of the whole key, what the sum says."""
    if not isinstance(answer, Partial):
        size = key_bits // 8 + _SPARE_BYTES
        plain = b"".join(int(number).to_bytes(size, "little", signed=True) for number in answer)
        return ConfigRecord({"plaintexts": plain})
    parts = b"".join(as_bytes(answer.integers, key_bits))
    proof = (answer.proof.challenge, answer.proof.response)
    numbers = [int(number).to_bytes((int(number).bit_length() + 7) // 8, "little") for number in proof]
    return ConfigRecord({"holder": answer.holder, "parts": parts, "challenge": numbers[0], "response": numbers[1]})


def opened(content: RecordDict, holder: int, aggregator: Aggregator, public: ThresholdKey | None) -> Opened:
    """The answer that came from a holder; whether it is true is not looked at.

    Args:
        content: What came.
        holder: Who was asked.
        aggregator: The sum that was asked for.
        public: The key that is shared out; ``None`` where one owner has it whole.

    Raises:
        ValueError, TypeError: It is no answer to what was asked.
    """
    record, total = said(content), aggregator.total
    bits, count = aggregator.agreement.public_key.bits, len(total.integers)
    if public is None:
        return tuple(_integers(record, "plaintexts", count, bits // 8 + _SPARE_BYTES, signed=True))
    if record.get("holder") != holder:
        raise ValueError(f"answers as holder {shown(record.get('holder'))}")
    parts = tuple(_integers(record, "parts", count, width(bits)))
    proof = Proof(*(int.from_bytes(_bytes(record, name, _LONGEST_PROOF), "little") for name in ("challenge", "response")))
    return Partial(public.key_id, holder, total.shape, tuple(int(c) for c in total.integers), parts, proof)


def round_of(record: ConfigRecord) -> int:
    """The round of a message, from 0.

    Raises:
        ValueError, TypeError: There is none.
    """
    return integer(ROUND, record.get(ROUND), at_least=0, at_most=_MOST_ROUNDS)


def _numbered(name: str, parts: Sequence[bytes]) -> dict[str, ConfigRecord]:
    return {f"{name}-{i}": ConfigRecord({"data": part}) for i, part in enumerate(parts)}


def _named(records: Iterable[str], name: str, most: int) -> list[str]:
    """The names of the parts of a kind, in order."""
    count = sum(1 for found in records if found.startswith(f"{name}-"))
    if count > most:
        raise ValueError(f"has {count} records of {name}, at most {most} were agreed on")
    return [f"{name}-{i}" for i in range(count)]


def _data(content: RecordDict, name: str) -> bytes:
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise ValueError(f"has no ConfigRecord {name!r}")
    return _bytes(record, "data", None)


def _bytes(record: ConfigRecord, name: str, at_most: int | None) -> bytes:
    value = record.get(name)
    if not isinstance(value, bytes) or (at_most is not None and len(value) > at_most):
        raise ValueError(f"{name}: must be bytes" + ("" if at_most is None else f", at most {at_most}"))
    return value


def _integers(record: ConfigRecord, name: str, count: int, size: int, *, signed: bool = False) -> list[int]:
    data = _bytes(record, name, None)
    if len(data) != count * size:
        raise ValueError(f"{name}: has {len(data)} bytes, {count} numbers of {size} were asked for")
    return [int.from_bytes(data[i : i + size], "little", signed=signed) for i in range(0, len(data), size)]
