"""What a message becomes on its way: records of its own, equal to those that were sent.

Text, numbers and lists go through Flower's own serialisation. Arrays are new objects around the same bytes: bytes cannot be
changed, so a copy of them would differ in nothing but time.
"""

import copy
from typing import Any, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

__all__ = ["copied", "delivered", "received", "returned", "stamp"]

# Flower's code for a ClientApp whose process ended without a reply, as it does when the reply cannot be sent.
_APP_CRASHED = 8

_Record = ArrayRecord | MetricRecord | ConfigRecord


def received(content: RecordDict) -> RecordDict:
    """What arrives of records that are sent.

    Raises:
        TypeError, ValueError: A value that cannot be sent, such as a whole number of more than 64 bits.
    """
    return RecordDict({name: _received(record) for name, record in content.items()})


def copied(content: RecordDict) -> RecordDict:
    """Another copy of what was received, at a tenth of the cost."""
    return RecordDict({name: _copied(record) for name, record in content.items()})


def delivered(message: Message, content: RecordDict) -> Message:
    """The message as the node gets it: the metadata of ``message``, a copy of the received ``content``."""
    arrived = Message(copied(content), message.metadata.dst_node_id, message.metadata.message_type)
    arrived.metadata.__dict__.update(message.metadata.__dict__)
    return arrived


def returned(answer: object, message: Message) -> Message | None:
    """What the server gets of a ClientApp's answer to ``message``: nothing of one in another's name, as at a SuperLink."""
    if not isinstance(answer, Message):
        reason = f"the ClientApp returned {type(answer).__name__}, not a Message"
        return Message(Error(_APP_CRASHED, reason), reply_to=message)
    said, asked = answer.metadata, message.metadata
    # The ids are the sender's word; a SuperLink checks these two.
    if (said.reply_to_message_id, said.src_node_id) != (asked.message_id, asked.dst_node_id):
        return None
    try:
        if answer.has_error():
            reply = Message(Error(answer.error.code, answer.error.reason), reply_to=message)
        else:
            reply = Message(received(answer.content), reply_to=message)
        # These are the sender's word as well, and nobody checks them on the way.
        reply.metadata.group_id = said.group_id
        reply.metadata.message_type = said.message_type
    except (TypeError, ValueError) as error:
        return Message(Error(_APP_CRASHED, f"the ClientApp's reply cannot be sent: {error}"), reply_to=message)
    return reply


def stamp(message: Message, message_id: str) -> str:
    """Give the message its id, which is for the grid to give, and return it."""
    message.metadata.__dict__["_message_id"] = message_id
    return message_id


def _received(record: _Record) -> _Record:
    if not isinstance(record, ArrayRecord):
        return type(record).inflate(record.deflate())
    arrays = ArrayRecord()
    for name, array in record.items():
        # Fields can be set to anything after an array was made; its constructor takes only what can be sent.
        arrays[name] = Array(array.dtype, tuple(array.shape), array.stype, array.data)
    return arrays


def _copied(record: _Record) -> _Record:
    if not isinstance(record, ArrayRecord):
        values: Any = record.copy()
        for name, value in record.items():
            # Lists are all that can be changed in place.
            if isinstance(value, list):
                values[name] = list(value)
        return cast(MetricRecord | ConfigRecord, values)
    arrays = record.copy()
    for name, array in record.items():
        arrays[name] = copy.copy(array)
    return arrays
