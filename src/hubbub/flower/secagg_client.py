"""The client of secure aggregation: the mod that encrypts updates, and nodes that hold shares of the key.

::

    app = ClientApp(mods=[encrypting_mod, clipping_mod])
    app = ClientApp(mods=[encrypting_mod, noising_mod, clipping_mod])     # with noise by the clients
    app = hold(app)                                                       # nodes may open sums, too

The mod is the first of the list, the outermost. It fails closed: if it cannot encrypt, it replies with an error of code 6, and
nothing that the app made leaves in the clear, the app's error messages included. It compares the server's agreement with that
of earlier rounds, and its key with the ``paillier-key-id`` of the node's configuration. Without ``paillier-key-id`` it trusts
the key that the server names first. What it has seen it forgets when it restarts, or ``flwr run`` is given again.

A node holds the share that its configuration names, ``--node-config 'paillier-share="/srv/share-1.json"'``; all others answer
that they hold nothing. A node may hold a share and train as well.
"""

import logging
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hubbub._util.checks import integer, shown
from hubbub.errors import HubbubError, KeyFileError, NoiseExhaustedError, SumNotOpenedError
from hubbub.flower.holder_messages import ACTION, AGREEMENT, HELLO, RECORD, agreement_of, held, said
from hubbub.flower.messages import ENCRYPTED, ROUND_INDEX, first_config, is_training, noised_steps, norm_bit, single_arrays
from hubbub.flower.mods import App, Request, Sent, discreet, refusal
from hubbub.secagg import key_files
from hubbub.secagg.paillier import PrivateKey
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.threshold import KeyShare

# In a node's configuration: the key under which alone it encrypts.
_KEY_ID = "paillier-key-id"
# In a node's configuration: the file of a share or of a whole private key; the holder's folder, by default that of the file;
# and the seed of its noise in a simulation, which is no secret.
SHARE, FOLDER, SEED = "paillier-share", "paillier-folder", "paillier-noise-seed"
# Errors whose reason the server gets; the reason of others, such as an unreadable file, stays in the node's log.
_SENT = (ValueError, TypeError, NoiseExhaustedError, SumNotOpenedError)
_PINNED = "hubbub-encrypting"
_LOG = logging.getLogger("flwr")


def encrypting_mod(msg: Message, context: Context, call_next: App) -> Message:
    """The app's update, clipped and encrypted, and nothing else of the app's reply.

    The update is rounded to whole steps of the server's lattice, which bounds it by ``dpfedavg_clip_norm`` exactly, then packed
    and encrypted by the agreement. With noise by the clients, the noised steps of :func:`.noising_mod` are encrypted. With
    adaptive clipping the indicator is one more number of the vector. The reply has a ConfigRecord with ``hubbub_encrypted`` and
    a MetricRecord with ``num-examples``, which is 1.

    The first message's agreement is kept in ``context.state``: the mod encrypts for no other run, under no other key, and for
    no round twice.

    Messages that do not request training, and the app's replies to them, pass unencrypted.

    Returns:
        The encrypted reply, or an error of code 6; if the app's reply cannot be encrypted, the reason is only in the client's
        log.

    Example:
        >>> from hubbub.flower import clipping_mod
        >>> app = ClientApp(mods=[encrypting_mod, clipping_mod])

    Source: Paillier 1999, https://doi.org/10.1007/3-540-48910-X_16; Zhang et al. 2020, "BatchCrypt",
    https://www.usenix.org/conference/atc20/presentation/zhang-chengliang (packing).
    """
    if not is_training(msg.metadata.message_type):
        return call_next(msg, context)
    try:
        config = first_config(msg.content)
        agreement = agreement_of(config.get(AGREEMENT))
        round_index = integer(ROUND_INDEX, config.get(ROUND_INDEX), at_least=0, at_most=2**31)
        request = Request.of(config)
        sent = Sent(single_arrays(msg.content))
        _require_room(agreement, request, sent)
        _pin(agreement, round_index, context, noised=request.noise_stddev is not None)
    except (KeyError, TypeError, ValueError) as error:
        # The reason is about what the server sent, and may be sent back.
        return refusal(msg, "encrypting_mod", error)
    reply = discreet(msg, "encrypting_mod", lambda: call_next(msg, context))
    if reply.has_error():
        return reply
    try:
        noise: npt.NDArray[np.int64] | None = None
        if request.noise_stddev is None:
            bit = norm_bit(reply.content) if request.counted else None
            steps = sent.steps(single_arrays(reply.content), request, bit).numpy()
        else:
            mods = "[encrypting_mod, noising_mod, clipping_mod]"
            whole = noised_steps(sent.layout, reply.content, counted=request.count_scale is not None, mods=mods).numpy()
            limit = agreement.packing.fixed_point.limit
            steps = whole.clip(-limit, limit)
            noise = whole - steps
        data = agreement.contribution(str(context.node_id), round_index, steps, noise)
    except Exception as error:  # noqa: BLE001 # what an exception says may be of the client's data, and would reach the server
        _LOG.error("encrypting_mod: nothing was sent", exc_info=error)
        return refusal(msg, "encrypting_mod", "the app's reply cannot be encrypted; see the client's log")
    content = RecordDict({"encrypted": ConfigRecord({ENCRYPTED: data}), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=msg)


def _require_room(agreement: Agreement, request: Request, sent: Sent) -> None:
    """Refuse, before the app trains, an update that could not be encrypted afterwards."""
    if request.counted and request.count_scale is None:
        raise ValueError("the clip norm is adaptive, and how the indicator enters the sum is missing")
    size = sent.layout.dim + (request.count_scale is not None)
    if agreement.size != size:
        raise ValueError(f"the agreement is on {agreement.size} numbers, the update of this model has {size}")
    limit = agreement.packing.fixed_point.limit
    if request.lattice.radius > limit:
        raise ValueError(
            f"a clip norm has {request.lattice.radius} steps of the lattice, {agreement.packing.bits} bits hold {limit}: an "
            "update might not fit"
        )


def _pin(agreement: Agreement, round_index: int, context: Context, *, noised: bool) -> None:
    """Keep the agreement and the round before the app runs; refuse another agreement or an earlier round."""
    key_id = agreement.public_key.key_id
    wanted = context.node_config.get(_KEY_ID, key_id)
    if wanted != key_id:
        raise ValueError(f"the server's key is {key_id!r}, this node encrypts under {shown(wanted)} only ({_KEY_ID})")
    kept: dict[str, str | bool] = {
        "key-id": key_id,
        "run": agreement.run,
        "agreement": agreement.digest.hex(),
        "noised": noised,
    }
    before = context.state.get(_PINNED)
    if isinstance(before, ConfigRecord):
        for name, otherwise in (
            ("key-id", f"the server's key is {key_id!r}, before it was {before['key-id']!r}"),
            ("run", f"the server's run is {agreement.run!r}, before it was {before['run']!r}"),
            ("agreement", "the terms of secure aggregation are others than before in this run"),
            ("noised", "whether clients add noise is otherwise than before in this run"),
        ):
            if before[name] != kept[name]:
                raise ValueError(otherwise)
        if round_index < integer("next-round", before["next-round"], at_least=0):
            raise ValueError(f"this client has answered round {round_index + 1} or a later one already")
    context.state[_PINNED] = ConfigRecord({**kept, "next-round": round_index + 1})


def hold(app: ClientApp) -> ClientApp:
    """Let nodes whose configuration names a key open sums.

    Registers the query ``"paillier"``. A holder keeps the agreement of a run, from the first message, in ``paillier-folder``
    (by default that of the share's file), one folder a run. It opens sums of that agreement only, each round once, restarts
    included. If it adds noise, its log has the guarantee of the run.

    Args:
        app: Without a query ``"paillier"``.

    Returns:
        The same app.

    Raises:
        TypeError: ``app`` is no ``ClientApp``.
        ValueError: It has a query of this name already.

    Example:
        >>> app = hold(ClientApp(mods=[encrypting_mod]))
    """
    if not isinstance(app, ClientApp):
        raise TypeError(f"app = {shown(app)}: must be a flwr.clientapp.ClientApp")
    app.query(ACTION)(_answer)
    return app


def _answer(msg: Message, context: Context) -> Message:
    try:
        record = said(msg.content)
        if SHARE not in context.node_config:
            if record.get("action") != HELLO:
                raise ValueError(f"this node holds no share of a key: its configuration has no {SHARE!r}")
            return Message(RecordDict({RECORD: held()}), reply_to=msg)
        # Only a holder loads accounting and noise.
        from hubbub.flower.holders import answer

        config, path = context.node_config, Path(str(context.node_config[SHARE]))
        key, root = _key(path, path.lstat().st_ino, path.lstat().st_ctime_ns), Path(str(config.get(FOLDER, path.parent)))
        seed = integer(SEED, config[SEED], at_least=0) if SEED in config else None
        return Message(RecordDict({RECORD: answer(msg.content, key, root, seed, node=context.node_id)}), reply_to=msg)
    except (HubbubError, ValueError, TypeError, OSError) as error:
        if isinstance(error, _SENT):
            return refusal(msg, ACTION, error)
        _LOG.warning("paillier: %s", error)
        return refusal(msg, ACTION, "the holder cannot; see its log")


@lru_cache(maxsize=16)
def _key(path: Path, inode: int, changed: int) -> KeyShare | PrivateKey:
    """The share or the whole key in a file; checked once in a process as long as the file does not change."""
    try:
        return key_files.read_share(path)
    except KeyFileError as no_share:
        try:
            return key_files.read_private(path)
        except KeyFileError as no_key:
            raise KeyFileError(f"holds no share of a key ({no_share}), nor a whole one ({no_key})") from None
