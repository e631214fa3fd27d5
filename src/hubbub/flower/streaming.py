"""A grid that yields replies as they arrive, a handful in memory at a time, until all have come or the time is up."""

import time
from collections.abc import Iterable, Iterator

from flwr.app import Message
from flwr.serverapp import Grid

from hubbub.errors import ConfigError
from hubbub.flower.local_grid import LocalGrid
from hubbub.flower.messages import ForwardingGrid, is_training

__all__ = ["Streaming"]

# Messages that are pushed at once, and replies that are pulled at once.
_PUSHED, _PULLED = 256, 8
# Seconds between two polls of all missing replies, at first and at most.
_SOON, _LATER = 0.05, 3.0


class Streaming(ForwardingGrid):
    """Another grid, with at most a handful of its replies in memory at once.

    Args:
        grid: Any grid.
        deadline: Seconds after which a round of training ends; ``None`` waits for the caller's timeout.

    Raises:
        ConfigError: A deadline for a LocalGrid, whose nodes work one after another.

    Example:
        >>> from flwr.app import ConfigRecord, RecordDict
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp()
        >>> @app.query()
        ... def answer(message, context):
        ...     return Message(RecordDict(), reply_to=message)
        >>> grid = Streaming(LocalGrid(app, num_nodes=3))
        >>> content = RecordDict({"about": ConfigRecord()})
        >>> len(list(grid.send_and_receive([Message(content, node, "query") for node in grid.get_node_ids()])))
        3
    """

    def __init__(self, grid: Grid, deadline: float | None = None) -> None:
        if deadline is not None and isinstance(grid, LocalGrid):
            raise ConfigError(
                f"deadline = {deadline}: the nodes of a LocalGrid work one after another, so that it would cut off who "
                "comes last; leave it out of a simulation"
            )
        super().__init__(grid)
        self._deadline = deadline

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Push the messages, then yield each reply as it arrives; late ones are dropped."""
        messages = list(messages)
        closes = self._deadline if all(is_training(message.metadata.message_type) for message in messages) else None
        waits = min((seconds for seconds in (timeout, closes) if seconds is not None), default=None)
        until = None if waits is None else time.monotonic() + waits
        if isinstance(self._grid, LocalGrid):
            # Its nodes work one after another, when a message is pushed, so that there is nothing to wait for.
            return (reply for message in messages for reply in self._grid.send_and_receive([message], timeout=timeout))
        ids = [
            message_id
            for start in range(0, len(messages), _PUSHED)
            for message_id in self._grid.push_messages(messages[start : start + _PUSHED])
        ]
        return self._pulled([message_id for message_id in ids if message_id], until)

    def _pulled(self, missing: list[str], until: float | None) -> Iterator[Message]:
        """Poll for missing replies until all have come or the time is up."""
        pause = _SOON
        while missing:
            # The last poll, at the deadline, covers all that is missing: every reply until then counts.
            left, late = list[str](), until is not None and time.monotonic() >= until
            for start in range(0, len(missing), _PULLED):
                asked = missing[start : start + _PULLED]
                replies = list(self._grid.pull_messages(asked))
                arrived = {reply.metadata.reply_to_message_id for reply in replies}
                left += [message_id for message_id in asked if message_id not in arrived]
                # The reader holds the last reference, and drops a reply before it takes the next.
                while replies:
                    yield replies.pop(0)
            if late:
                return
            pause = _SOON if len(left) < len(missing) else min(2 * pause, _LATER)
            missing = left
            if missing:
                time.sleep(pause if until is None else max(0.0, min(pause, until - time.monotonic())))
