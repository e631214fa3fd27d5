"""Many nodes in one process, as a SuperLink sees them: TLS, a registered key each, and answers that get lost or come late.

``python many_nodes.py FOLDER PORT APP`` reads the names and keys of ``FOLDER/keys`` and the data of ``FOLDER``, and works until
it is ended. What became of each message is a line of ``FOLDER/answers/NAME``.
"""

import json
import random
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

LOST, LATE = 0.1, 0.1
# Seconds by which a late answer comes after a round's deadline, and between two looks for work.
TOO_LATE, POLL = 3.0, 0.5


def serve(folder: Path, port: str, app: Path, name: str, deadline: float) -> None:
    """One node: answers what it is asked, but for the answers that are lost or late."""
    sys.path.insert(0, str(app))
    from digits_app.client_app import app as client

    fate = random.Random(name)  # noqa: S311 # fates of a test
    private = load_ssh_private_key((folder / "keys" / name).read_bytes(), password=None)
    authority = (folder / "keys" / "ca.crt").read_bytes()
    keys = (private, private.public_key())
    answers = (folder / "answers" / name).open("a", buffering=1)
    with http_request_response(f"127.0.0.1:{port}", False, authority, keys) as connection:
        node, receive, send, _, _, pull, push, confirm = connection
        print(f"{name} {node}", flush=True)  # noqa: T201 # who waits for the nodes reads it
        while True:
            try:
                if (received := receive()) is None:
                    time.sleep(POLL)
                    continue
                announced, tree = received
                run = announced.metadata.run_id
                message = pull_and_inflate_object_from_tree(
                    tree, lambda i, r=run: pull(r, i), lambda i, r=run: confirm(r, i), return_type=Message
                )
            except (Exception, RunNotRunningException) as error:  # noqa: BLE001 # of a run that was killed meanwhile
                print(f"{name}: {type(error).__name__}: {error}", flush=True)  # noqa: T201
                continue
            message.metadata.__dict__["_message_id"] = tree.object_id
            model = sha256(message.content["arrays"]["weight"].numpy().tobytes()).hexdigest()
            chance = fate.random()
            what = "lost" if chance < LOST else "late" if chance < LOST + LATE else "sent"
            group = message.metadata.group_id.partition("-")[0]
            print(json.dumps({"group": group, "model": model, "what": what}), file=answers)
            if what != "lost":
                if what == "late":
                    time.sleep(deadline + TOO_LATE)
                config = {"name": name, "data": str(folder / f"{name}.npz")}
                context = Context(run, node, config, RecordDict(), {"hang-in-round": 0, "record": ""})
                answer(client(message, context), send, push)


def answer(reply: Message, send: object, push: object) -> None:
    """Send a reply as a SuperNode does; one of a round that is over is refused, and that is all."""
    try:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            wanted, session = send(reply, get_object_tree(reply), 0.1)
            run = reply.metadata.run_id
            parts = get_all_nested_objects(reply)
            push_objects(parts, lambda i, content: push(run, session, i, content), object_ids_to_push=wanted)
    except (Exception, RunNotRunningException) as error:  # noqa: BLE001 # the run ended, or was killed
        print(f"reply: {type(error).__name__}: {error}", flush=True)  # noqa: T201


if __name__ == "__main__":
    where, at, of, seconds = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])
    names = sorted(path.stem for path in (where / "keys").glob("node-*.pub"))
    workers = [threading.Thread(target=serve, args=(where, at, of, name, seconds), daemon=True) for name in names]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
