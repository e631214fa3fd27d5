"""Records of the messages between the server and the holders of the key, for both sides.

The server sends ``query.paillier`` messages: *hello* (what a node holds, and proves to hold), *noise* (of a round), *take*
(contributions of a large round, one message after another) and *open* (a sum, with the last or all of its contributions).
Each contribution is a record of its own, since Flower transfers records one by one. Nothing is secret but an opened sum, in
the answer of the owner of a whole key.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from flwr.app import ConfigRecord, MessageType, RecordDict

from hubbub._util import strict_json
from hubbub._util.checks import integer, shown
from hubbub.secagg import paillier, threshold
from hubbub.secagg.aggregator import Aggregator, Request
from hubbub.secagg.ciphertext import width
from hubbub.secagg.key_holder import Opened
from hubbub.secagg.paillier import PrivateKey, PublicKey
from hubbub.secagg.proofs import Proof
from hubbub.secagg.protocol import Agreement, as_bytes
from hubbub.secagg.threshold import KeyShare, Partial, ThresholdKey

# The name of the holder's query function and of the record that every message has; the type of messages to it.
ACTION = RECORD = "paillier"
QUERY = f"{MessageType.QUERY}.{ACTION}"
HELLO, NOISE, TAKE, OPEN = "hello", "noise", "take", "open"
# With a hello: random bytes, to which a holder proves what it has. The number of a share is no secret, and the key is public.
CHALLENGE, CHALLENGE_BYTES = "hubbub-challenge", 32
# In that record, and in the configuration of clients' messages: the agreement.
AGREEMENT = "hubbub_agreement"
ROUND, CLIP_NORM, PROMISE, ARRAYS = "round", "clip-norm", "promise", "arrays"
# How many contributions of the round went in messages before this one, and a secret that these messages share: with
# contributions of others before its own, a node that is not the server could have a single one opened.
FIRST, SERIES = "first", "series"
# Bytes of contributions in one message.
_TOGETHER = 2**25
_LARGEST_AGREEMENT = 10_000
# Of a decrypted number, which may be negative, beyond the bits of the key.
_SPARE_BYTES = 1
# Of each number of a proof: more than a key of 16,384 bits needs.
_LONGEST_PROOF = 16_384


def said(content: RecordDict, name: str = RECORD) -> ConfigRecord:
    """A record of configuration; by default the one that every message has."""
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise ValueError(f"has no ConfigRecord {name!r}")
    return record


def agreement_of(data: object) -> Agreement:
    """An agreement received as strict JSON. The last few are cached with their tables of powers."""
    if not isinstance(data, bytes):
        raise ValueError(
            f"there is no {AGREEMENT!r} in the configuration, so that nothing would be encrypted; the server's strategy needs "
            "secagg, or the client no encrypting_mod"
        )
    if len(data) > _LARGEST_AGREEMENT:
        raise ValueError(f"{AGREEMENT}: has {len(data)} bytes, an agreement at most {_LARGEST_AGREEMENT}")
    return _read(data)


@lru_cache(maxsize=4)
def _read(data: bytes) -> Agreement:
    try:
        record = strict_json.loads(data)
    except ValueError as error:
        raise ValueError(f"{AGREEMENT}: is no strict JSON ({error})") from error
    return Agreement.from_record(record)


def held(key: KeyShare | PrivateKey | None = None, challenge: object = None, node: int = 0) -> ConfigRecord:
    """A node's answer to a hello: the number of its share, 1 for a whole key, 0 for nothing, the key's id, and the proof."""
    if key is None:
        return ConfigRecord({"holder": 0, "key-id": ""})
    answer = ConfigRecord({"holder": key.holder, "key-id": key.public.key_id})
    if isinstance(challenge, bytes) and len(challenge) == CHALLENGE_BYTES:
        proof = key.identified(_of_node(challenge, node))
        answer.update(_numbers(vars(proof) if isinstance(proof, Proof) else {"response": proof}))
    return answer


def claimed(content: RecordDict, key: PublicKey | ThresholdKey, challenge: bytes, node: int) -> int:
    """The number of the share of a key that a node proves to have, 1 for a whole key; 0 if it holds nothing of this key."""
    record = said(content)
    number = integer("holder", record.get("holder"), at_least=0, at_most=100)
    if not 0 < number <= key.holders or record.get("key-id") != key.key_id:
        return 0
    asked = _of_node(challenge, node)
    if isinstance(key, ThresholdKey):
        proved = threshold.identifies(key, number, asked, _proof(record))
    else:
        proved = paillier.identifies(key, asked, _number(record, "response"))
    if not proved:
        raise ValueError(f"claims to be holder {number} of the key, and does not prove it")
    return number


def _of_node(challenge: bytes, node: int) -> bytes:
    """A challenge to one node, whose answer is of no use to another."""
    return challenge + str(node).encode()


def _numbers(named: Mapping[str, int]) -> dict[str, bytes]:
    """The numbers of a proof for a record."""
    return {name: int(number).to_bytes((number.bit_length() + 7) // 8, "little") for name, number in named.items()}


def _number(record: ConfigRecord, name: str) -> int:
    return int.from_bytes(bytes_of(record, name, _LONGEST_PROOF), "little")


def _proof(record: ConfigRecord) -> Proof:
    return Proof(_number(record, "challenge"), _number(record, "response"))


def requests(request: Request) -> Iterator[tuple[str, int, dict[str, ConfigRecord]]]:
    """A request to open a sum, in messages of bounded size: the action, how many contributions went before, and the records."""
    first, some, size = 0, list[bytes](), 0
    for data in request.contributions:
        if some and size + len(data) > _TOGETHER:
            yield TAKE, first, _records({"contribution": some})
            first, some, size = first + len(some), [], 0
        some.append(data)
        size += len(data)
    total = {"total": ConfigRecord({"data": request.total})}
    yield OPEN, first, {**_records({"contribution": some, "noise": request.noise}), **total}


def answer_record(answer: Opened, key_bits: int) -> ConfigRecord:
    """A holder's answer: its partial decryption with the proof; the owner of the whole key answers with the plaintexts."""
    if not isinstance(answer, Partial):
        size = key_bits // 8 + _SPARE_BYTES
        return ConfigRecord({"plaintexts": b"".join(int(m).to_bytes(size, "little", signed=True) for m in answer)})
    parts = b"".join(as_bytes(answer.integers, key_bits))
    return ConfigRecord({"holder": answer.holder, "parts": parts, **_numbers(vars(answer.proof))})


def opened(content: RecordDict, holder: int, aggregator: Aggregator, public: ThresholdKey | None) -> Opened:
    """A holder's answer as received; its proof is not verified here."""
    record, total = said(content), aggregator.total
    bits, count = aggregator.agreement.public_key.bits, len(total.integers)
    if public is None:
        return tuple(_integers(record, "plaintexts", count, bits // 8 + _SPARE_BYTES, signed=True))
    if record.get("holder") != holder:
        raise ValueError(f"answers as holder {shown(record.get('holder'))}")
    powers = tuple(_integers(record, "parts", count, width(bits)))
    return Partial(public.key_id, holder, total.shape, tuple(int(c) for c in total.integers), powers, _proof(record))


def _records(messages: Mapping[str, Iterable[bytes]]) -> dict[str, ConfigRecord]:
    return {f"{name}-{i}": ConfigRecord({"data": data}) for name, some in messages.items() for i, data in enumerate(some)}


def parts(content: RecordDict, name: str, most: int) -> tuple[bytes, ...]:
    """The contributions or the noise in a message."""
    count = sum(found.startswith(f"{name}-") for found in content)
    if count > most:
        raise ValueError(f"has {count} records of {name}, at most {most} were agreed on")
    return tuple(data_of(content, f"{name}-{i}") for i in range(count))


def data_of(content: RecordDict, name: str) -> bytes:
    """The bytes of a record of its own."""
    return bytes_of(said(content, name), "data")


def bytes_of(record: ConfigRecord, name: str, at_most: int | None = None) -> bytes:
    """The bytes under a name."""
    value = record.get(name)
    if not isinstance(value, bytes) or (at_most is not None and len(value) > at_most):
        raise ValueError(f"{name}: must be bytes" + ("" if at_most is None else f", at most {at_most}"))
    return value


def _integers(record: ConfigRecord, name: str, count: int, size: int, *, signed: bool = False) -> list[int]:
    data = bytes_of(record, name)
    if len(data) != count * size:
        raise ValueError(f"{name}: has {len(data)} bytes, {count} numbers of {size} were asked for")
    return [int.from_bytes(data[i : i + size], "little", signed=signed) for i in range(0, len(data), size)]
