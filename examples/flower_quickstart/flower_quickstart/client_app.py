"""The client: trains as any Flower client does; ``clipping_mod`` bounds what leaves it."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_quickstart import task
from hubbub.flower import clipping_mod

app = ClientApp()


@app.train(mods=[clipping_mod])
def train(message: Message, context: Context) -> Message:
    """Train the model that came on this node's examples."""
    settings, node = context.run_config, context.node_config
    model = task.new_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    examples = task.examples_of(int(node["partition-id"]), int(node["num-partitions"]))
    task.train(model, examples, settings["local-epochs"], settings["learning-rate"])
    # Each client counts the same, whatever it states; private federated averaging takes no weights.
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)
