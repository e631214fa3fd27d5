"""Flower mods for clients: clipping, noise and a timer; ``DPNumPyClient`` uses the same clipping and noise."""

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from hubbub._util.checks import boolean, finite, lattice_bits, positive, scale
from hubbub._util.prf import fresh_key
from hubbub.flower import messages
from hubbub.flower.arrays import Layout, Views, difference, native
from hubbub.flower.messages import CLIP_NORM, COUNT_SCALE, ENABLED, NOISE_STDDEV, NORM_BIT, is_training, norm_bit, single_arrays
from hubbub.mechanism.discrete_gaussian import discrete_gaussian
from hubbub.noise.lattice import Lattice
from hubbub.training.clipping import clip, with_indicator

# Entries of any floating dtype.
_Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Request:
    """The server's settings for a client's update.

    ``counted`` says whether the server counts the updates whose norm was at most the clip norm; ``noise_stddev``, in the unit
    of the update, is of the client's noise share (``None`` if the server adds all noise); ``count_scale`` scales the indicator
    in the vector, if the client is counted and adds noise or encrypts; ``bits`` are the lattice's.
    """

    clip_norm: float
    counted: bool
    noise_stddev: float | None
    count_scale: float | None
    bits: int = 24

    @classmethod
    def of(cls, config: Mapping[str, object]) -> "Request":
        """The settings in the configuration of a round."""
        if CLIP_NORM not in config:
            raise KeyError(
                f"the server's configuration has no {CLIP_NORM!r}, so that nothing would bound this client's update; use a "
                "strategy of hubbub.flower"
            )
        counted = boolean(ENABLED, config.get(ENABLED, False))
        noise = positive(NOISE_STDDEV, config[NOISE_STDDEV]) if NOISE_STDDEV in config else None
        if noise is not None and counted and COUNT_SCALE not in config:
            raise KeyError(f"the server's configuration has no {COUNT_SCALE!r}, without which the indicator cannot be hidden")
        count_scale = scale(COUNT_SCALE, config[COUNT_SCALE]) if counted and COUNT_SCALE in config else None
        bits = lattice_bits(messages.LATTICE_BITS, config.get(messages.LATTICE_BITS, 24))
        return cls(scale(CLIP_NORM, config[CLIP_NORM]), counted, noise, count_scale, bits)

    @property
    def lattice(self) -> Lattice:
        """The lattice of the sum, for an update with its indicator if there is one."""
        return Lattice(math.hypot(self.clip_norm, (self.count_scale or 0.0) / 2), self.bits)


class Sent:
    """A copy of the arrays that a client received, since its app may change them in place."""

    def __init__(self, arrays: ArrayRecord) -> None:
        self.layout = Layout.of(arrays)
        self._before = [native(view) for view in self.layout.views(arrays)]

    def clipped(self, reply: ArrayRecord, clip_norm: float) -> tuple[ArrayRecord, bool]:
        """The reply with its update clipped, and whether the update was within the clip norm before.

        The update is what the server computes from the reply's numbers in their own precision. A clipped reply is rounded to
        that precision; if this makes the update longer than the clip norm, each number is rounded towards what was sent. So
        the clip norm is exceeded by a factor of at most 1 + 2⁻²⁰, at any precision of the weights. A reply within the norm and
        all buffers stay as they are.
        """
        after = self.layout.views(reply)
        bounded, was_clipped = clip(difference(after, self._before), clip_norm)
        if not was_clipped:
            return reply, True
        steps = [part.numpy() for part in bounded.split(self.layout.sizes)]
        # In the wider of both precisions, in which what was sent is exact and nothing overflows.
        moved: Views = [
            (b.astype(np.float64) + step).astype(np.promote_types(a.dtype, b.dtype))
            for a, b, step in zip(after, self._before, steps, strict=True)
        ]
        if float(difference(moved, self._before).to(torch.float64).norm()) > clip_norm:
            moved = [_towards(m, b, step) for m, b, step in zip(moved, self._before, steps, strict=True)]
        fresh = self.layout.record(moved)
        return ArrayRecord({name: fresh.get(name, array) for name, array in reply.items()}), False

    def steps(self, reply: ArrayRecord, request: Request, bit: int | None) -> torch.Tensor:
        """The clipped update in whole steps of the lattice, ``(dim,)`` int64, the indicator last."""
        update = difference(self.layout.views(reply), self._before)
        if request.count_scale is not None:
            update, _ = with_indicator(update, request.clip_norm, request.count_scale, within_by_all(True, bit))
        return request.lattice.encode(update)[0]

    def hidden(self, reply: ArrayRecord, request: Request, bit: int | None) -> tuple[ArrayRecord, int | None]:
        """The clipped update in whole steps of a lattice, plus a discrete Gaussian noise share whose key is not kept.

        The share has at least the requested standard deviation.

        Returns:
            int64 arrays under the names of the floating ones; and the noised indicator in steps, if the client is counted.
        """
        if request.noise_stddev is None:
            raise ValueError(f"{NOISE_STDDEV}: is missing, so that nothing would hide the update")
        steps = self.steps(reply, request, bit)
        # A step is a power of two: the division is exact, and rounding up never takes noise away.
        stddev = math.ceil(request.noise_stddev / request.lattice.step)
        noised = steps.numpy() + discrete_gaussian(fresh_key(), stddev, len(steps))
        parts = np.split(noised, np.cumsum(self.layout.sizes))
        # The part after the last array is empty, or the indicator.
        return self.layout.record(parts[:-1]), int(noised[-1]) if request.count_scale is not None else None


def within_by_all(within: bool, bit: int | None) -> int:
    """The indicator: 1 if the update was within the clip norm, both here and by the bit of an inner clip."""
    if bit not in (None, 0, 1):
        # Its value may be the client's own.
        raise ValueError(f"{NORM_BIT}: must be 0 or 1; the name is kept for the indicator of the clip")
    return int(within and bit != 0)


def _towards(moved: _Numbers, before: _Numbers, step: npt.NDArray[np.float64]) -> _Numbers:
    """``moved``, with each number that went further than ``step`` replaced by the next one towards ``before``."""
    too_far = np.abs(moved.astype(np.float64) - before) > np.abs(step)
    return np.where(too_far, np.nextafter(moved, before.astype(moved.dtype)), moved)


App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]

_TIMER = "hubbub-timer"
_LAST = "last-training"
_LOG = logging.getLogger("flwr")


def clipping_mod(msg: Message, context: Context, call_next: App) -> Message:
    """The app's reply with its update clipped, and with the indicator bit if the server counts.

    The update is the change of all floating arrays as one vector, matched by name; one that is not finite becomes zero. The
    server computes an update of norm at most ``dpfedavg_clip_norm`` × (1 + 2⁻²⁰) from the reply, at any precision of the
    weights. Dtypes, shapes and buffers stay. With ``dpfedavg_adaptive_clip_enabled`` the first MetricRecord gets
    ``dpfedavg_norm_bit``: 1 if the norm was at most the clip norm before, else 0.

    Returns:
        The reply; an error of the app as it is; or an error of code 6 if there is no usable ``dpfedavg_clip_norm``, the
        reply's arrays do not match those received, or noise is requested and no :func:`noising_mod` around this mod adds it.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[clipping_mod])

    Source: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", Algorithm 1,
    https://arxiv.org/abs/1710.06963; the bit: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping",
    Algorithm 1, https://arxiv.org/abs/1905.03871.
    """
    if not is_training(msg.metadata.message_type):
        return call_next(msg, context)
    try:
        request = Request.of(messages.first_config(msg.content))
        if request.noise_stddev is not None:
            # A noising_mod around this one removes the key.
            raise ValueError(
                f"{NOISE_STDDEV} is asked for, and no noising_mod stands before this mod; list both, "
                "mods=[noising_mod, clipping_mod]: the first is the outermost, and the last to touch the reply"
            )
        sent = Sent(single_arrays(msg.content))
    except (KeyError, TypeError, ValueError) as error:
        return refusal(msg, "clipping_mod", error)
    reply = call_next(msg, context)
    if reply.has_error():
        return reply
    try:
        trained = single_arrays(reply.content)
        clipped, within = sent.clipped(trained, request.clip_norm)
        content = RecordDict({name: clipped if record is trained else record for name, record in reply.content.items()})
        if request.counted:
            label, metrics = next(iter(content.metric_records.items()), (_free(content), MetricRecord()))
            content[label] = MetricRecord({**metrics, NORM_BIT: within_by_all(within, norm_bit(content))})
    except (TypeError, ValueError) as error:
        return refusal(msg, "clipping_mod", error)
    # A new record, since an app may return the records that it received.
    reply.content = content
    return reply


def noising_mod(msg: Message, context: Context, call_next: App) -> Message:
    """The app's update with this client's noise share, and nothing else of the app's reply.

    Without ``dpfedavg_noise_stddev`` the server adds all noise, and everything passes. With it, the reply's ArrayRecord holds
    int64 arrays under the names of the floating ones: the update, clipped to ``dpfedavg_clip_norm``, in whole steps of the
    lattice, plus a discrete Gaussian share whose key comes from the operating system and is not kept. With adaptive clipping
    the indicator is one more number of the noised vector, scaled by ``dpfedavg_count_scale``, and ``dpfedavg_norm_bit`` is that
    noised number, in steps. Buffers, metrics and other records of the app have no noise: they are dropped, and
    ``num-examples`` is 1. The app's error messages stay in the client's log for the same reason.

    Returns:
        The noised reply; or an error of code 6 if the app failed or replied with an error, the configuration is incomplete,
        the reply's arrays do not match those received, or the noise is too large to draw.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[noising_mod, clipping_mod])

    Source: Kairouz et al. 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation",
    https://arxiv.org/abs/2102.06387 (shares); Canonne et al. 2020, https://arxiv.org/abs/2004.00010 (the exact noise).
    """
    config = messages.first_config(msg.content)
    if not is_training(msg.metadata.message_type) or NOISE_STDDEV not in config:
        return call_next(msg, context)
    try:
        request = Request.of(config)
        sent, (name,) = Sent(single_arrays(msg.content)), msg.content.array_records
    except (KeyError, TypeError, ValueError) as error:
        return refusal(msg, "noising_mod", error)
    # The key tells an inner mod that no noise will be added, so it is removed; from a copy, since a grid may send the same
    # message again.
    inner = copy.copy(msg)
    left = ConfigRecord({key: value for key, value in config.items() if key != NOISE_STDDEV})
    inner.content = RecordDict({name: left if record is config else record for name, record in msg.content.items()})
    reply = discreet(msg, "noising_mod", lambda: call_next(inner, context))
    if reply.has_error():
        return reply
    try:
        bit = norm_bit(reply.content) if request.counted else None
        hidden, count = sent.hidden(single_arrays(reply.content), request, bit)
    except (TypeError, ValueError) as error:
        return refusal(msg, "noising_mod", error)
    metrics = MetricRecord({"num-examples": 1} if count is None else {"num-examples": 1, NORM_BIT: count})
    content = RecordDict({name: hidden})
    content[_free(content)] = metrics
    return Message(content, reply_to=msg)


def timer_mod(min_seconds: float, *, clock: Callable[[], float] = time.time) -> Mod:
    """A mod that refuses training until ``min_seconds`` have passed since the client last began to train.

    The local timer of published deployments. No guarantee relies on it: a client may leave it out, its clock may be wrong, and
    it is lost with the run's state on this node. The guarantee relies on the server's ledger.

    Args:
        min_seconds: The pause, above 0.
        clock: Seconds since a moment that is the same for every process of this node. If it goes back, the client does not
            train until it has caught up.

    Returns:
        A mod, best the first of the list. It refuses with an error of code 6, and keeps the time of the last training in
        ``context.state``.

    Raises:
        ValueError: The pause is not above 0.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[timer_mod(min_seconds=24 * 3600), clipping_mod])

    Source: Xu et al. 2023, "Federated Learning of Gboard Language Models with Differential Privacy",
    https://arxiv.org/abs/2305.18465.
    """
    pause = positive("min_seconds", min_seconds)

    def timed(msg: Message, context: Context, call_next: App) -> Message:
        if not is_training(msg.metadata.message_type):
            return call_next(msg, context)
        try:
            now, before = finite("clock", clock()), context.state.get(_TIMER)
            passed = math.inf if before is None else now - finite(f"context.state[{_TIMER!r}]", before.get(_LAST))
            if passed < 0:
                raise ValueError(
                    f"the clock went back by {-passed:.0f} s since this client took part; it waits until it has caught up"
                )
            if passed < pause:
                raise ValueError(f"took part {passed:.0f} s ago, and may again {pause:g} s after that")
        except (TypeError, ValueError) as error:
            return refusal(msg, "timer_mod", error)
        # Before the app runs: a participation counts from its beginning, even if the app fails.
        context.state[_TIMER] = MetricRecord({_LAST: now})
        return call_next(msg, context)

    return timed


def _free(content: RecordDict) -> str:
    return "metrics" if "metrics" not in content else NORM_BIT


def discreet(msg: Message, mod: str, call: Callable[[], Message]) -> Message:
    """The app's reply; if it fails, a refusal without the app's own words, which may be of its data and stay in the log."""
    try:
        reply = call()
        if not reply.has_error():
            return reply
    except Exception as error:  # noqa: BLE001 # any error of the app would reach the server with its text
        _LOG.error("%s: the app failed, and nothing was sent", mod, exc_info=error)
        return refusal(msg, mod, "the app failed; see the client's log")
    _LOG.warning("%s: the app replied with error %s: %s", mod, reply.error.code, reply.error.reason)
    return refusal(msg, mod, "the app replied with an error; see the client's log")


def refusal(msg: Message, mod: str, error: object) -> Message:
    """A reply with error code 6, of a mod that cannot do its part; the reason is in the client's log, too."""
    # Of a KeyError, str() is the repr of its text.
    why = error.args[0] if isinstance(error, KeyError) else error
    # The server's log does not repeat the reasons of clients.
    _LOG.warning("%s: %s", mod, why)
    return Message(Error(code=messages.FAILED_PRECONDITION, reason=f"{mod}: {why}"), reply_to=msg)
