"""A node trains on the digits that its configuration names."""

import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app import task

# Seconds; longer than any test waits: whoever hangs is killed.
HANGS = 600.0

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    if message.content["config"]["server-round"] == context.run_config["hang-in-round"]:
        hang(Path(context.run_config["record"]) / "hangs", str(context.node_config["name"]))
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    trained = task.train(model, Path(context.node_config["data"]))
    arrays = ArrayRecord({name: Array(array) for name, array in trained.items()})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


def hang(file: Path, name: str) -> None:
    """Write the node's name into the file, and stay here; whoever finds the file there goes on."""
    try:
        with file.open("x") as opened:
            opened.write(f"{name}\n")
    except FileExistsError:
        return
    time.sleep(HANGS)
