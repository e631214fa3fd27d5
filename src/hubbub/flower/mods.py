"""Mods of a ``ClientApp``: they clip what a client sends, hide it where the server leaves that to clients, and keep a pause.

::

    app = ClientApp(mods=[timer_mod(24 * 3600), noising_mod, clipping_mod])

The first of the list is the outermost: the app's reply is clipped, then hidden. They act on messages of type ``"train"`` and
``"train.<action>"`` alone: evaluation and queries pass untouched, and what an app answers to those is neither clipped nor
hidden. Where a mod cannot keep its word, it replies with an error of code 6 (Flower's "a mod's precondition failed") and a
reason, never with what it should have changed. What it is told stands in the first ConfigRecord of the message.

A client that is not honest can leave a mod out. So the server clips again wherever it sees the update.
"""

import copy
import logging
import time
from collections.abc import Callable

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from hubbub._checks import finite, positive
from hubbub.flower.messages import NOISE_STDDEV, NORM_BIT, is_training, norm_bit
from hubbub.flower.update import Request, Sent, within_by_all

__all__ = ["App", "Mod", "clipping_mod", "noising_mod", "timer_mod"]

App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]

# Flower's MOD_FAILED_PRECONDITION.
_FAILED_PRECONDITION = 6
_TIMER = "hubbub-timer"
_LAST = "last-training"
_LOG = logging.getLogger("flwr")
_ORDER = "list both, mods=[noising_mod, clipping_mod]: the first is the outermost, and the last to touch the reply"


def clipping_mod(msg: Message, context: Context, call_next: App) -> Message:
    """The app's reply with its update clipped, and with the indicator bit where the server counts.

    The update is what the app changed, over all floating arrays as one vector, matched by name; one that is not finite becomes
    zero. The server computes an update of norm at most ``dpfedavg_clip_norm`` × (1 + 2⁻²⁰) from the reply, at any precision of
    the weights. Dtypes and shapes stay, and buffers are as the app returned them. With ``dpfedavg_adaptive_clip_enabled`` the
    first MetricRecord gets ``dpfedavg_norm_bit``: 1 if the norm was at most the clip norm before, else 0.

    Returns:
        The reply; an error of the app as it is; or an error of code 6 where there is no usable ``dpfedavg_clip_norm``, the
        reply's arrays are not those that were sent, or noise is asked for which no :func:`noising_mod` around this mod adds.

    Source: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", Algorithm 1,
    https://arxiv.org/abs/1710.06963; the bit: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping",
    Algorithm 1, https://arxiv.org/abs/1905.03871.
    """
    if not is_training(msg.metadata.message_type):
        return call_next(msg, context)
    try:
        request = Request.of(_config(msg.content)[1])
        if request.noise_stddev is not None:
            # A noising_mod around this one takes the key out.
            raise ValueError(f"{NOISE_STDDEV} is asked for, and no noising_mod stands before this mod; {_ORDER}")
        sent = Sent(_arrays(msg.content)[1])
    except (KeyError, TypeError, ValueError) as error:
        return _refusal(msg, "clipping_mod", error)
    reply = call_next(msg, context)
    if reply.has_error():
        return reply
    try:
        name, trained = _arrays(reply.content)
        clipped, within = sent.clipped(trained, request.clip_norm)
        content = RecordDict({**reply.content, name: clipped})
        if request.counted:
            label, metrics = next(iter(content.metric_records.items()), (_free(content), MetricRecord()))
            bit = within_by_all(within, norm_bit(content))
            content[label] = MetricRecord({**metrics, NORM_BIT: bit})
    except (TypeError, ValueError) as error:
        return _refusal(msg, "clipping_mod", error)
    # Of its own, since an app may send back the very records that it was sent.
    reply.content = content
    return reply


def noising_mod(msg: Message, context: Context, call_next: App) -> Message:
    """The app's update with this client's share of the noise, and nothing else of the app's reply.

    Without ``dpfedavg_noise_stddev`` the server adds all noise, and everything passes. With it, the reply's ArrayRecord holds
    int64 arrays under the names of the floating ones: the update, clipped to ``dpfedavg_clip_norm``, in whole steps of the
    lattice, plus a discrete Gaussian share whose key is drawn from the operating system and forgotten. With adaptive
    clipping the indicator is one more number of the noised vector, scaled by ``dpfedavg_count_scale``, and
    ``dpfedavg_norm_bit`` is that noised number, in steps. Buffers, metrics and all further records of the app would leave
    without noise: they are dropped, and ``num-examples`` is 1.

    The app's own words for what went wrong would leave without noise as well: they stand in the client's log alone.

    Returns:
        The noised reply; or an error of code 6 where the app failed or replied with an error, the configuration is incomplete,
        the reply's arrays are not those that were sent, or the noise is more than can be drawn.

    Source: Kairouz et al. 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation",
    https://arxiv.org/abs/2102.06387 (shares); Canonne et al. 2020, https://arxiv.org/abs/2004.00010 (the exact noise).
    """
    label, config = _config(msg.content)
    if not is_training(msg.metadata.message_type) or NOISE_STDDEV not in config:
        return call_next(msg, context)
    try:
        request = Request.of(config)
        name, arrays = _arrays(msg.content)
        sent = Sent(arrays)
    except (KeyError, TypeError, ValueError) as error:
        return _refusal(msg, "noising_mod", error)
    # This mod answers for the noise from here on; one that still reads the key knows that nobody does. The message itself
    # stays as it is, since a grid may hand the same one out again.
    inner = copy.copy(msg)
    inner.content = RecordDict(
        {**msg.content, label: ConfigRecord({key: value for key, value in config.items() if key != NOISE_STDDEV})}
    )
    try:
        reply = call_next(inner, context)
    except Exception as error:  # noqa: BLE001 # what an exception says may be of the client's data, and would reach the server
        _LOG.error("noising_mod: the app failed, and nothing was sent", exc_info=error)
        return _refusal(msg, "noising_mod", ValueError("the app failed; see the client's log"))
    if reply.has_error():
        _LOG.warning("noising_mod: the app replied with error %s: %s", reply.error.code, reply.error.reason)
        return _refusal(msg, "noising_mod", ValueError("the app replied with an error; see the client's log"))
    try:
        bit = norm_bit(reply.content) if request.counted else None
        hidden, count = sent.hidden(_arrays(reply.content)[1], request, bit)
    except (TypeError, ValueError) as error:
        return _refusal(msg, "noising_mod", error)
    metrics = MetricRecord({"num-examples": 1} if count is None else {"num-examples": 1, NORM_BIT: count})
    content = RecordDict({name: hidden})
    content[_free(content)] = metrics
    return Message(content, reply_to=msg)


def timer_mod(min_seconds: float, *, clock: Callable[[], float] = time.time) -> Mod:
    """A mod by which this client does not train again before ``min_seconds`` have passed since it last began to.

    The local timer of published deployments. It is policy and never proof: a client may leave it out, its clock may be
    wrong, and it forgets with the run's state on this node. What a guarantee counts on is the server's ledger.

    Args:
        min_seconds: The pause, above 0.
        clock: Seconds since a moment that is the same for every process of this node. Where it goes back, the client does not
            train until it has caught up.

    Returns:
        A mod, best the first of the list. It refuses with an error of code 6, and keeps in ``context.state`` when the client
        last began to train.

    Raises:
        ValueError: The pause is not above 0.

    Source: Xu et al. 2023, "Federated Learning of Gboard Language Models with Differential Privacy",
    https://arxiv.org/abs/2305.18465.
    """
    pause = positive("min_seconds", min_seconds)

    def timed(msg: Message, context: Context, call_next: App) -> Message:
        if not is_training(msg.metadata.message_type):
            return call_next(msg, context)
        try:
            now = finite("clock", clock())
            last = _last_training(context.state)
            if last is not None:
                _require_pause(now - last, pause)
        except (TypeError, ValueError) as error:
            return _refusal(msg, "timer_mod", error)
        # Before the app runs: taking part counts from the beginning, whatever becomes of it.
        context.state[_TIMER] = MetricRecord({_LAST: now})
        return call_next(msg, context)

    return timed


def _last_training(state: RecordDict) -> float | None:
    record = state.get(_TIMER)
    return None if record is None else finite(f"context.state[{_TIMER!r}]", record.get(_LAST))


def _require_pause(passed: float, pause: float) -> None:
    if passed < 0:
        raise ValueError(f"the clock went back by {-passed:.0f} s since this client took part; it waits until it has caught up")
    if passed < pause:
        raise ValueError(f"took part {passed:.0f} s ago, and may again {pause:g} s after that")


def _config(content: RecordDict) -> tuple[str, ConfigRecord]:
    """The first ConfigRecord and its name; an empty one where there is none."""
    return next(iter(content.config_records.items()), ("config", ConfigRecord()))


def _arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The only ArrayRecord and its name."""
    found = list(content.array_records.items())
    if len(found) != 1:
        raise ValueError(f"there are {len(found)} ArrayRecords, {[name for name, _ in found]}: there must be one, the model's")
    return found[0]


def _free(content: RecordDict) -> str:
    """A name for a further MetricRecord."""
    return "metrics" if "metrics" not in content else NORM_BIT


def _refusal(msg: Message, mod: str, error: Exception) -> Message:
    # Of a KeyError, str() is the repr of its text.
    why = error.args[0] if isinstance(error, KeyError) else error
    # The server's log repeats no reasons of clients, so that this one must stand in the client's own.
    _LOG.warning("%s: %s", mod, why)
    return Message(Error(code=_FAILED_PRECONDITION, reason=f"{mod}: {why}"), reply_to=msg)
