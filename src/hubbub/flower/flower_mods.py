"""What Flower's own clipping mods look for in a message, and what they say in their reply."""

import copy
from collections.abc import Iterable

from flwr.app import Message, MetricRecord, RecordDict

from hubbub.flower.messages import CLIP_NORM, NORM_BIT, first_config

__all__ = ["with_flowers_key", "with_our_bit"]

_FLOWER_CLIP_NORM = "clipping_norm"
# 1 if the update was clipped, while ours is 1 if it was not.
_FLOWER_NORM_BIT = "norm_bit"


def with_flowers_key(messages: Iterable[Message]) -> list[Message]:
    """The messages of a round, each with the clip norm where Flower's mods look for it."""
    messages = list(messages)
    for message in messages:
        config = first_config(message.content)
        config[_FLOWER_CLIP_NORM] = config[CLIP_NORM]
    return messages


def with_our_bit(reply: Message) -> Message:
    """A reply in which Flower's bit, 1 if the update was clipped, stands as ours, 1 if it was not; a bit of ours goes first."""
    if reply.has_error() or any(NORM_BIT in record for record in reply.content.metric_records.values()):
        return reply
    for name, record in reply.content.metric_records.items():
        if _FLOWER_NORM_BIT in record:
            told = record[_FLOWER_NORM_BIT]
            # What is no whole number stays what it is: the sum refuses it, and counts the reply as nothing.
            bit = 1 - told if isinstance(told, int) else told
            translated = copy.copy(reply)
            translated.content = RecordDict({**reply.content, name: MetricRecord({**record, NORM_BIT: bit})})
            return translated
    return reply
