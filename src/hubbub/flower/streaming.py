"""Replies as they come: pulled by the ids of their messages, a handful at a time, until all are there or time is up."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from hubbub.errors import ConfigError
from hubbub.flower.local_grid import LocalGrid
from hubbub.flower.messages import is_training

__all__ = ["Streaming"]

# Messages that are pushed, and replies that are pulled, at once.
_PUSHED, _PULLED = 256, 8
# Seconds between two looks at all that is missing, at first and at most.
_SOON, _LATER = 0.05, 3.0


class Streaming(Grid):
    """Another grid, of whose replies no more than a handful are in memory at once.

    Args:
        grid: Any grid.
        deadline: Seconds after which a round of training is over, whatever else is to come; ``None`` waits as long as a caller
            says.

    Raises:
        ConfigError: A deadline, and nodes that work one after another.

    Example:
        >>> from flwr.app import ConfigRecord
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
        self._grid, self._deadline = grid, deadline

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Push the messages, then yield each reply as it comes; whoever is late is not heard."""
        messages = list(messages)
        closes = self._deadline if all(is_training(message.metadata.message_type) for message in messages) else None
        waits = min((seconds for seconds in (timeout, closes) if seconds is not None), default=None)
        until = None if waits is None else time.monotonic() + waits
        if isinstance(self._grid, LocalGrid):
            # Its nodes work one after another, when they are asked, and nobody waits for them.
            return (reply for message in messages for reply in self._grid.send_and_receive([message], timeout=timeout))
        ids = [
            message_id
            for start in range(0, len(messages), _PUSHED)
            for message_id in self._grid.push_messages(messages[start : start + _PUSHED])
        ]
        return self._pulled([message_id for message_id in ids if message_id], until)

    def _pulled(self, missing: list[str], until: float | None) -> Iterator[Message]:
        """Look through all that is missing again and again."""
        pause = _SOON
        while missing:
            # The look that begins last, at the deadline, is a whole one: all that came until then counts.
            left, late = list[str](), until is not None and time.monotonic() >= until
            for start in range(0, len(missing), _PULLED):
                asked = missing[start : start + _PULLED]
                replies = list(self._grid.pull_messages(asked))
                came = {reply.metadata.reply_to_message_id for reply in replies}
                left += [message_id for message_id in asked if message_id not in came]
                # The last reference is the reader's, who forgets a reply before it takes the next.
                while replies:
                    yield replies.pop(0)
            if late:
                return
            pause = _SOON if len(left) < len(missing) else min(2 * pause, _LATER)
            missing = left
            if missing:
                time.sleep(pause if until is None else max(0.0, min(pause, until - time.monotonic())))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the grid does."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As the grid does."""
        return self._grid.pull_messages(message_ids)

    def get_node_ids(self) -> Iterable[int]:
        """As the grid does."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """As the grid does."""
        return self._grid.get_nodes()

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """As the grid does."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def set_run(self, run: Any) -> None:
        """That of the grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """That of the grid."""
        return self._grid.run
