"""The replies of one round, read as they arrive, and their sum on the lattice, on a server that sees them.

A grid yields one reply at a time, until all have come or the time is up, so that no more are in memory.
"""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from hubbub.errors import ConfigError
from hubbub.flower.arrays import Layout, difference
from hubbub.flower.local_grid import LocalGrid
from hubbub.flower.messages import (
    CLIP_NORM,
    COUNT_SCALE,
    ENABLED,
    NOISE_STDDEV,
    ForwardingGrid,
    RoundMessages,
    is_training,
    noised_steps,
    norm_bit,
    records_of,
    single_arrays,
)
from hubbub.flower.separation import require_kept
from hubbub.mechanism import Mechanism
from hubbub.noise.lattice import Lattice
from hubbub.noise.steps import DEVIATIONS, LARGEST, share_stddev
from hubbub.training.aggregate import LatticeSum, lattice_of, statistics
from hubbub.training.clipping import CountSplit, with_indicator

TRAIN_LOSS = "train_loss"
# Messages that are pushed at once.
_PUSHED = 256
# Seconds between two polls of all missing replies, at first and at most.
_SOON, _LATER = 0.05, 3.0
# Raised by Flower for a reply that is no message.
_UNREADABLE = (MemoryError, ValueError, TypeError, LookupError, AttributeError, RecursionError, DecodeError)
_LOG = logging.getLogger("flwr")


class Streaming(ForwardingGrid):
    """Another grid, one of its replies in memory at once; a round of training ends after ``deadline`` seconds."""

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
        nodes = dict[str | None, int]()
        for start in range(0, len(messages), _PUSHED):
            some = messages[start : start + _PUSHED]
            nodes.update(zip(self._grid.push_messages(some), (message.metadata.dst_node_id for message in some), strict=False))
        return self._pulled({message_id: node for message_id, node in nodes.items() if message_id}, until)

    def _pulled(self, missing: dict[str, int], until: float | None) -> Iterator[Message]:
        pause = _SOON
        while missing:
            # The last poll, at the deadline, covers all that is missing: every reply until then counts.
            left, late = dict[str, int](), until is not None and time.monotonic() >= until
            for asked, node in missing.items():
                # One by one: a SuperLink compares no reply with the metadata in it, by which a node could answer in the name
                # of another, and one reply that cannot be read would take all that come with it along.
                try:
                    replies = [r for r in self._grid.pull_messages([asked]) if r.metadata.reply_to_message_id == asked]
                except _UNREADABLE as error:
                    _LOG.info("counted as nothing: node %s: its reply cannot be read (%s)", node, type(error).__name__)
                    continue
                if not replies:
                    left[asked] = node
                # The reader holds the last reference, and drops a reply before it takes the next.
                while replies:
                    yield replies.pop(0)
            if late:
                return
            pause = _SOON if len(left) < len(missing) else min(2 * pause, _LATER)
            missing = left
            if missing:
                time.sleep(pause if until is None else max(0.0, min(pause, until - time.monotonic())))


@dataclass(frozen=True)
class Summing:
    """How the replies of one round are summed.

    With a ``split`` each client's indicator is one more coordinate. The shares of ``mechanism`` say whether clients add the
    noise. A reply that does not confirm ``separation``, the settings for devices that keep it, is not counted.
    """

    layout: Layout
    clip_norm: float
    split: CountSplit | None = None
    mechanism: Mechanism | None = None
    lattice_bits: int = 24
    separation: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def lattice(self) -> Lattice:
        """The lattice of the sum, for the clip norm of a client's update together with its indicator."""
        return lattice_of(self.clip_norm, self.split, self.lattice_bits)

    def config(self) -> dict[str, float | bool | str]:
        """The settings that clients get."""
        settings: dict[str, float | bool | str] = {CLIP_NORM: float(self.clip_norm), **self.separation}
        if share := self._share_stddev():
            settings[NOISE_STDDEV] = share * self.lattice.step
        if self.split:
            settings[ENABLED] = True
            if share:
                settings[COUNT_SCALE] = self.split.count_scale(self.clip_norm)
        return settings

    def _share_stddev(self) -> int:
        """Of a client's share of the noise, in steps; 0 where clients add none."""
        if self.mechanism is None or self.mechanism.shares is None:
            return 0
        lattice = self.lattice
        return share_stddev(self.mechanism.noise_multiplier, lattice.clip_norm, self.mechanism.shares.clients, lattice.bits)

    def of(self, messages: RoundMessages, replies: Iterable[Message], arrays: ArrayRecord) -> tuple[LatticeSum, int, int]:
        """The sum of a round, the number of replies, and the number of them in the sum.

        A reply that cannot be read, is not finite, or does not fit the model counts as zero, with the reason in
        ``messages.faults``.
        """
        before = self.layout.views(arrays)
        shares = self.mechanism.shares if self.mechanism else None
        dim = self.layout.dim + (self.split is not None)
        # Whole numbers that float64 adds exactly; with noise by the clients they may be larger.
        total = torch.zeros(dim, dtype=torch.float64, device="cpu")
        noised = torch.zeros(dim if shares else 0, dtype=torch.int64, device="cpu")
        came, clipped, losses = 0, 0, list[float]()
        for client, content in messages.contents(replies):
            came += 1
            try:
                if self.separation:
                    require_kept(content, self.separation)
                if shares:
                    noised += self._noised(content, len(messages.messages))
                else:
                    update = difference(self.layout.views(single_arrays(content)), before)
                    clipped += self._add(update, content, total)
                losses.append(train_loss(content))
            except Exception as error:  # noqa: BLE001 # whatever one client sends, the round must not depend on it
                messages.refuse(client, error)
        steps = noised if shares else total.to(torch.int64)
        return LatticeSum(steps, self.lattice, statistics(len(messages.clients), clipped, losses)), came, len(losses)

    def _add(self, update: torch.Tensor, content: RecordDict, total: torch.Tensor) -> bool:
        """Add a client's steps to a sum, ``(dim,)``, its indicator last; whether the update was clipped."""
        if not bool(torch.isfinite(update).all()):
            raise ValueError("its update is not finite")
        was_clipped: bool | None = None
        if self.split is not None:
            scale = self.split.count_scale(self.clip_norm)
            update, was_clipped = with_indicator(update, self.clip_norm, scale, norm_bit(content))
        rounded = self.lattice.add(update, total)
        return bool(rounded) if was_clipped is None else was_clipped

    def _noised(self, content: RecordDict, cohort: int) -> torch.Tensor:
        """A client's noised steps, ``(dim,)`` int64, which the server cannot clip again."""
        steps = noised_steps(self.layout, content, counted=self.split is not None, mods="[noising_mod, clipping_mod]")
        # Not by abs(), which leaves the least int64 negative.
        largest = min(self.lattice.radius + DEVIATIONS * self._share_stddev(), int(LARGEST) // cohort)
        if max(int(steps.max()), -int(steps.min())) > largest:
            raise ValueError(f"its numbers are larger than an update and its noise can be, {largest} steps")
        return steps


def train_loss(content: RecordDict) -> float:
    """The training loss that a client states; NaN if it states none."""
    values = (record.get(TRAIN_LOSS) for record in records_of(content, MetricRecord))
    return next((float(value) for value in values if isinstance(value, int | float)), math.nan)
