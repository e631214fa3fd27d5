"""A ClientApp whose nodes may hold the key of a secure aggregation, or a share of it, and open sums of many clients.

::

    app = hold(ClientApp(mods=[encrypting_mod, clipping_mod]))

A node holds what its configuration names, ``--node-config 'paillier-share="/srv/share-1.json"'``; all others answer that they
hold nothing. A node may hold a share and train as well.
"""

import functools
import logging
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from hubbub._checks import shown
from hubbub.errors import HubbubError, KeyFileError, NoiseExhaustedError, SumNotOpenedError
from hubbub.flower.holder_messages import ACTION, HELLO, RECORD, Held, said
from hubbub.secagg import key_files
from hubbub.secagg.paillier import PrivateKey
from hubbub.secagg.threshold import KeyShare

__all__ = ["FOLDER", "SEED", "SHARE", "hold"]

# In a node's configuration: the file of a share, or of a whole private key; where the holder keeps what it did, by default
# beside that; and, of a simulation, the seed of its noise, which is then no secret.
SHARE, FOLDER, SEED = "paillier-share", "paillier-folder", "paillier-noise-seed"
# What the server is told the reason of; of the others, such as a file that cannot be read, the owner of the node alone.
_TOLD = (ValueError, TypeError, NoiseExhaustedError, SumNotOpenedError)
# Flower's MOD_FAILED_PRECONDITION.
_FAILED_PRECONDITION = 6
_LOG = logging.getLogger("flwr")


def hold(app: ClientApp) -> ClientApp:
    """Let the nodes of an app open sums, where their configuration gives them a key.

    It registers the query ``"paillier"``. What a holder agreed to for a run, with its first message, is kept in its folder:
    ``paillier-folder``, or that of the share's file, with one folder for each run. Under a run's name it opens sums by that
    agreement alone, each round once, and a restart does not make it forget. The guarantee of a run to whose sums it adds noise
    is in its log.

    Args:
        app: Which has no such query.

    Returns:
        The same app.

    Raises:
        TypeError: It is no ``ClientApp``.
        ValueError: It has a query of this name already.
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
            return Message(RecordDict({RECORD: Held().record()}), reply_to=msg)
        path = Path(str(context.node_config[SHARE]))
        # Only a holder loads accounting and noise.
        from hubbub.flower.holder_folder import HolderFolder

        holder = HolderFolder(
            _key(path, path.lstat().st_ino, path.lstat().st_ctime_ns),
            Path(str(context.node_config.get(FOLDER, path.parent))),
            seed=context.node_config.get(SEED),
        )
        return Message(RecordDict({RECORD: holder.answer(msg.content)}), reply_to=msg)
    except (HubbubError, ValueError, TypeError, OSError) as error:
        _LOG.warning("paillier: %s", error)
        why = error if isinstance(error, _TOLD) else "the holder cannot; see its log"
        return Message(Error(code=_FAILED_PRECONDITION, reason=f"paillier: {why}"), reply_to=msg)


@functools.lru_cache(maxsize=16)
def _key(path: Path, inode: int, changed: int) -> KeyShare | PrivateKey:
    """What a file holds, a share or the whole key; checked once in a process for as long as the file is the same.

    Raises:
        KeyFileError: It is neither, or is open to others.
    """
    try:
        return key_files.read_share(path)
    except KeyFileError as no_share:
        try:
            return key_files.read_private(path)
        except KeyFileError as no_key:
            raise KeyFileError(f"holds no share of a key ({no_share}), nor a whole one ({no_key})") from None
