"""A federation in one process is as one over a network: real apps, records that nobody else can reach, errors as replies."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_arms import record
from hubbub.flower.local_grid import LocalGrid, received

Model = dict[str, npt.NDArray[Any]]

START: Model = {"weight": np.arange(6.0).reshape(2, 3), "bias": np.array([1.0, -1.0]), "scale": np.array(3.0)}


def client(behaviour: Callable[[Message, Context], Any]) -> ClientApp:
    """An app that does the same whatever it is asked."""
    app = ClientApp()
    for category in (app.train, app.evaluate, app.query):
        category()(behaviour)
    return app


def echo(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)


def ask(grid: LocalGrid, content: RecordDict | None = None, kind: str = "query", group: str = "1") -> list[Message]:
    """What all nodes reply to the same records."""
    sent = RecordDict({"config": ConfigRecord({"x": 1})}) if content is None else content
    return grid.send_and_receive([Message(sent, node, kind, group_id=group) for node in grid.get_node_ids()])


def partition(message: Message) -> int:
    return message.metadata.src_node_id - LocalGrid(client(echo), num_nodes=1).get_node_ids()[0]


def flowers_own(sent: Any) -> Any:
    """Taken apart and put together by Flower itself, down to the chunks of arrays."""
    children = {key: flowers_own(child) for key, child in (sent.children or {}).items()}
    return type(sent).inflate(sent.deflate(), children)


def everything() -> RecordDict:
    values = {"a": 1, "b": [True, False], "c": b"\x00\xff", "d": "x", "e": [1.5, 2.5], "f": [], "g": np.float64(0.1)}
    metrics = MetricRecord({"n": np.float64(2), "list": [1, 2], "big": 2**63 - 1, "nan": float("inf")})
    arrays = record({**START, "half": np.ones((0, 2), np.float16), "count": np.array(7), "fortran": np.ones((2, 3), order="F")})
    return RecordDict({"config": ConfigRecord(values), "metrics": metrics, "arrays": arrays, "empty": ArrayRecord()})


def typed(content: RecordDict) -> list[Any]:
    """All of it, with the type of every value."""
    return [(name, type(held), key, type(value), repr(value)) for name, held in content.items() for key, value in held.items()]


def test_what_arrives_is_what_flower_s_own_serialisation_gives() -> None:
    sent = everything()
    expected = typed(flowers_own(sent))
    assert typed(received(sent)) == expected
    grid = LocalGrid(client(echo), num_nodes=2)
    assert [typed(reply.content) for reply in ask(grid, sent)] == [expected, expected]


def spoil(content: RecordDict) -> None:
    """Change all that can be changed."""
    for held in content.values():
        for key, value in list(held.items()):
            if isinstance(value, Array):
                value.data = b"spoilt"
                value.shape = (9,)
            if isinstance(value, list):
                value.append(value[0] if value else 5)
            del held[key]
    content["left over"] = ConfigRecord({"by": "a client"})


def test_nothing_that_a_client_does_to_a_message_reaches_the_server_or_another_client() -> None:
    seen = []

    def hostile(message: Message, context: Context) -> Message:
        seen.append(typed(message.content))
        reply = Message(RecordDict(), reply_to=message)
        spoil(message.content)
        message.metadata.group_id = "spoilt"
        message.metadata.dst_node_id = 5
        return reply

    sent = everything()
    before = typed(sent)
    arrived = typed(flowers_own(sent))
    grid = LocalGrid(client(hostile), num_nodes=3)
    messages = [Message(sent, node, "train", group_id="g") for node in grid.get_node_ids()]
    replies = grid.send_and_receive(messages)
    assert (seen, typed(sent)) == ([arrived] * 3, before)
    assert [m.metadata.group_id for m in messages] == ["g"] * 3
    assert [m.metadata.dst_node_id for m in messages] == [r.metadata.src_node_id for r in replies] == grid.get_node_ids()


def test_what_a_client_raises_is_an_error_reply_that_names_it() -> None:
    def fails(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 1:
            raise ZeroDivisionError("no data")
        return echo(message, context)

    good, bad, after = ask(LocalGrid(client(fails), num_nodes=3), group="g")
    assert good.has_content()
    assert after.has_content()
    assert (bad.error.code, bad.error.reason) == (2, "<class 'ZeroDivisionError'>:<'no data'>")
    assert (bad.metadata.group_id, partition(bad)) == ("g", 1)


def test_a_reply_in_another_s_name_does_not_arrive() -> None:
    kept: list[Message] = []

    def forging(message: Message, context: Context) -> Message:
        kept.append(message)
        return Message(RecordDict(), reply_to=kept[0])

    replies = ask(LocalGrid(client(forging), num_nodes=3))
    assert [partition(reply) for reply in replies] == [0]


def test_each_node_keeps_its_own_state_over_messages_and_rounds() -> None:
    def counting(message: Message, context: Context) -> Message:
        before = context.state["n"]["n"] if "n" in context.state else 0
        context.state["n"] = MetricRecord({"n": before + 1})
        return Message(RecordDict({"n": context.state["n"]}), reply_to=message)

    grid = LocalGrid(client(counting), num_nodes=3)
    grid.offline(grid.get_node_ids()[:1])
    ask(grid, kind="train")
    grid.offline([])
    replies = ask(grid, kind="evaluate")
    assert [reply.content["n"]["n"] for reply in replies] == [1, 2, 2]
    spoil(replies[1].content)
    assert [reply.content["n"]["n"] for reply in ask(grid)] == [2, 3, 3]


def test_nodes_are_the_same_in_every_grid_and_known_by_their_keys() -> None:
    small, large = LocalGrid(client(echo), num_nodes=3), LocalGrid(client(echo), num_nodes=5)
    assert large.get_node_ids()[:3] == small.get_node_ids() == sorted(small.get_node_ids())
    keys = [node.public_key for node in large.get_nodes()]
    assert [node.node_id for node in large.get_nodes()] == large.get_node_ids()
    assert keys[:3] == [node.public_key for node in small.get_nodes()]
    assert len(set(keys)) == 5
    assert {(type(key), len(key)) for key in keys} == {(bytes, 32)}
    assert {node.public_key for node in LocalGrid(client(echo), num_nodes=3, keys=False).get_nodes()} == {b""}
