"""What clients of a federation may answer: every way that the tests know, and what of it counts.

A fault is a function of a client's honest reply, which it may spoil, and of a generator: it returns what arrives at the server.
"""

import io
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

import flower_arms
from flower_arms import Federation
from hubbub.flower import DPFedAvgAdaptive, DPFedAvgFixed
from hubbub.flower.messages import NORM_BIT
from hubbub.noise.lattice import Lattice

# An array with axes, one without, one of half precision, one of double.
MODEL: dict[str, npt.NDArray[Any]] = {
    "w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "scale": np.array(2.5, np.float32),
    "halves": np.array([0.5, -4.0], np.float16),
    "doubles": np.array([0.25]),
}
DIM = sum(array.size for array in MODEL.values())
Reply = Message | list[Message] | None
Fault = Callable[[Message, random.Random], Reply]
Changed = Mapping[str, Array]


def arrays_of(reply: Message) -> dict[str, Array]:
    return dict(reply.content.array_records["arrays"])


def with_arrays(change: Callable[[dict[str, Array], random.Random], Changed]) -> Fault:
    def fault(reply: Message, draw: random.Random) -> Reply:
        reply.content["arrays"] = ArrayRecord(dict(change(arrays_of(reply), draw)))
        return reply

    return fault


def with_all(change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Fault:
    return with_arrays(lambda arrays, draw: {name: Array(np.asarray(change(array.numpy()))) for name, array in arrays.items()})


def with_w(change: Callable[[npt.NDArray[Any]], Array]) -> Fault:
    return with_arrays(lambda arrays, draw: {**arrays, "w": change(arrays["w"].numpy())})


def with_entry(value: float) -> Fault:
    """One number of one array, whichever."""

    def change(arrays: dict[str, Array], draw: random.Random) -> Changed:
        name = draw.choice(list(arrays))
        numbers = arrays[name].numpy().copy()
        numbers.reshape(-1)[draw.randrange(numbers.size)] = value
        return {**arrays, name: Array(numbers)}

    return with_arrays(change)


def with_record(name: str, record: Any) -> Fault:
    def fault(reply: Message, draw: random.Random) -> Reply:
        reply.content[name] = record
        return reply

    return fault


def lying(shape: str) -> Callable[[npt.NDArray[Any]], Array]:
    """A header that says another shape than there is."""

    def change(numbers: npt.NDArray[Any]) -> Array:
        stream = io.BytesIO()
        np.save(stream, np.zeros((2, 3), np.float32))
        header, _, entries = stream.getvalue().partition(b"}")
        text = header.replace(b"(2, 3)", shape.encode())
        # As long as it was, so that its own length is right.
        blanks = entries[: entries.index(b"\n")]
        padded = blanks[: len(blanks) + len(header) - len(text)]
        return Array("float32", (2, 3), "numpy.ndarray", text + b"}" + padded + entries[len(blanks) :])

    return change


def pickled(numbers: npt.NDArray[Any]) -> Array:
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object))
    return Array("float32", (2, 3), "numpy.ndarray", stream.getvalue())


def failed(reason: str) -> Fault:
    def fault(reply: Message, draw: random.Random) -> Reply:
        error = Message(Error(code=2, reason=reason), reply_to=reply)
        error.metadata.__dict__.update(reply.metadata.__dict__)
        return error

    return fault


def emptied(reply: Message, draw: random.Random) -> Reply:
    reply.content = RecordDict()
    return reply


def without_metrics(reply: Message, draw: random.Random) -> Reply:
    del reply.content["metrics"]
    return reply


def of_another_round(reply: Message, draw: random.Random) -> Reply:
    reply.metadata.group_id = "of the round before"
    return reply


def from_a_stranger(reply: Message, draw: random.Random) -> Reply:
    reply.metadata.__dict__["_src_node_id"] = 424242
    return reply


def doubled(reply: Message, draw: random.Random) -> Reply:
    """The second answer would move the sum further."""
    second = Message(RecordDict({"arrays": ArrayRecord(arrays_of(reply))}), reply_to=reply)
    second.metadata.__dict__.update(reply.metadata.__dict__)
    spoilt = with_all(lambda numbers: numbers * 100)(second, draw)
    return [reply, spoilt, reply]


def told(**metrics: Any) -> Fault:
    return with_record("metrics", MetricRecord(metrics))


# Worth a reply that never came.
NOTHING: dict[str, Fault] = {
    "NaN in part": with_entry(math.nan),
    "infinity in part": with_entry(math.inf),
    "minus infinity in part": with_entry(-math.inf),
    "NaN everywhere": with_all(lambda numbers: np.full_like(numbers, np.nan)),
    "another shape": with_w(lambda w: Array(w.reshape(3, 2))),
    "transposed": with_w(lambda w: Array(w.T.copy())),
    "a shape that broadcasts": with_w(lambda w: Array(w[:1, :1])),
    "a further axis": with_w(lambda w: Array(w[None])),
    "no numbers": with_w(lambda w: Array(np.zeros((0, 3), np.float32))),
    "an axis for the number without axes": with_arrays(
        lambda arrays, draw: {**arrays, "scale": Array(arrays["scale"].numpy()[None])}
    ),
    "whole numbers": with_w(lambda w: Array(w.astype(np.int64))),
    "truth values": with_w(lambda w: Array(w.astype(bool))),
    "complex numbers": with_w(lambda w: Array(w.astype(np.complex64))),
    "text": with_w(lambda w: Array(w.astype("U8"))),
    "whole numbers under another label": with_w(
        lambda w: Array("float32", (2, 3), "numpy.ndarray", Array(w.astype(np.int32)).data)
    ),
    "an array that is cut": with_w(lambda w: Array("float32", (2, 3), "numpy.ndarray", Array(w).data[:-1])),
    "an array and a byte more": with_w(lambda w: Array("float32", (2, 3), "numpy.ndarray", Array(w).data + b"\0")),
    "bytes that are no array": with_w(lambda w: Array("float32", (2, 3), "numpy.ndarray", b"nonsense")),
    "a header that promises more": with_w(lying("(9, 9)")),
    "a header that promises 100 GB": with_w(lying("(5, 5000000000)")),
    "a pickled object": with_w(pickled),
    "another store": with_w(lambda w: Array("float32", (2, 3), "torch.tensor", Array(w).data)),
    "a name is missing": with_arrays(lambda arrays, draw: {"w": arrays["w"]}),
    "a name too many": with_arrays(lambda arrays, draw: {**arrays, "extra": arrays["w"]}),
    "a hundred names too many": with_arrays(lambda arrays, draw: {**arrays, **{f"w{i}": arrays["w"] for i in range(100)}}),
    "names exchanged": with_arrays(lambda arrays, draw: dict(zip(arrays, reversed(list(arrays.values())), strict=True))),
    "two models": with_record("more", ArrayRecord({})),
    "no model": with_record("arrays", MetricRecord({})),
    "nothing at all": emptied,
    "an error": failed("out of memory"),
    "an error with a long story": failed("secret\n\x1b[31m" * 10_000),
    "silence": lambda reply, draw: None,
    "late": of_another_round,
    "from a node that was not asked": from_a_stranger,
}
# Clipped like everybody's.
BOUNDED: dict[str, Fault] = {
    "1e30": with_all(lambda n: np.full_like(n, 6e4 if n.dtype == np.float16 else 1e30)),
    "-3e38": with_all(lambda n: np.full_like(n, -6e4 if n.dtype == np.float16 else -3e38)),
    "1e308 in float64": with_all(lambda n: np.full(n.shape, 1e308)),
    "a million in the number without axes": with_arrays(
        lambda arrays, draw: {**arrays, "scale": Array(np.array(1e6, np.float32))}
    ),
    "all in float16": with_all(lambda n: n.astype(np.float16)),
    "the largest of float16": with_all(lambda n: np.full(n.shape, 65504, np.float16)),
    "names in another order": with_arrays(lambda arrays, draw: dict(reversed(arrays.items()))),
    "big-endian": with_all(lambda n: n.astype(n.dtype.newbyteorder(">"))),
    "Fortran order": with_all(lambda n: np.array(n, order="F")),
    "the server's own model": with_all(lambda n: n),
    "a part of the server's own model, a little moved": with_w(lambda w: Array(np.nextafter(w, np.float32(9)))),
    "three answers": doubled,
    "weight 1e12": told(**{"num-examples": 10**12}),
    "weight -8": told(**{"num-examples": -8}),
    "weight 0": told(**{"num-examples": 0}),
    "weight NaN": told(**{"num-examples": math.nan}),
    "metrics that are none": told(train_loss=math.nan, loss=-math.inf, count=2**62),
    "no metrics": without_metrics,
    "a loss of 1e308": told(train_loss=1e308),
    "its own clip norm": with_record("told", ConfigRecord({"dpfedavg_clip_norm": 1e9})),
}
# Where the server counts who was not clipped.
LIES: dict[str, Fault] = {
    "the bit is 2^62": told(**{NORM_BIT: 2**62}),
    "the bit is -5": told(**{NORM_BIT: -5}),
    "the bit is turned over": told(**{NORM_BIT: 0}),
    "not clipped, says a client whose update is too long": lambda reply, draw: told(**{NORM_BIT: 1})(
        with_all(lambda n: np.full(n.shape, 1e5, np.float64))(reply, draw),  # type: ignore[arg-type] # one message
        draw,
    ),
}
NO_BITS = {"a half": 0.5, "NaN": math.nan, "a list": [1, 0]}
NO_BIT: dict[str, Fault] = {f"the bit is {what}": told(**{NORM_BIT: value}) for what, value in NO_BITS.items()}


def update_of(reply: Message) -> torch.Tensor:
    """A reply's update, in the order of the model, computed by NumPy alone, ``(dim,)``."""
    parts = []
    arrays = reply.content.array_records["arrays"]
    for name, before in MODEL.items():
        after = arrays[name].numpy()
        wide = after.dtype.newbyteorder("=") if after.dtype.newbyteorder("=") == before.dtype != np.float16 else np.float64
        parts.append((after.astype(wide) - before.astype(wide)).astype(np.float64).reshape(-1))
    return torch.from_numpy(np.concatenate(parts))


def steps_of(reply: Message, lattice: Lattice) -> torch.Tensor:
    """What a reply adds to a sum, in whole steps, ``(dim,)``."""
    return lattice.encode(update_of(reply))[0]


# Federations of ten clients.

CLIENTS, FAULTY, CLIP = 10, 3, 1.0
Strategy = DPFedAvgFixed | DPFedAvgAdaptive
fixed, adaptive = (partial(make, simulation_seed=3) for make in (flower_arms.fixed, flower_arms.adaptive))


def trained(model: dict[str, Any], index: int) -> dict[str, Any]:
    """Some updates are longer than the clip norm, some are shorter; NumPy keeps each array's type."""
    return {name: values + values.dtype.type((-1) ** index * 0.07 * (index + 1)) for name, values in model.items()}


class Opened(NamedTuple):
    """A sum that was released, in whole steps of its lattice."""

    lattice: Lattice
    steps: torch.Tensor
    release: torch.Tensor


def spied(patch: pytest.MonkeyPatch) -> list[Opened]:
    """The sums that are released from now on."""
    sums: list[Opened] = []
    release = Lattice.release

    def spy(lattice: Lattice, steps: torch.Tensor, row: torch.Tensor | None) -> torch.Tensor:
        sums.append(Opened(lattice, steps.clone(), release(lattice, steps, row)))
        return sums[-1].release

    patch.setattr(Lattice, "release", spy)
    return sums


def outcome(make: Callable[[], Strategy], fault: Fault | None, silent: Sequence[int] = ()) -> tuple[Any, ...]:
    """The model and the clip norm after a round in which client 2 has a fault, bit for bit."""
    strategy, federation = make(), Federation(CLIENTS, trained, silent=silent)
    second = federation.grid.get_node_ids()[2]
    draw = random.Random(1)  # noqa: S311 # of a test
    if fault is not None:
        federation.grid.reply_filter = lambda reply: fault(reply, draw) if reply.metadata.src_node_id == second else reply
    arrays, told = strategy.aggregate_train(1, federation.ask(strategy, MODEL))
    return b"".join(array.data for array in arrays.values()), told, strategy.clip_norm
