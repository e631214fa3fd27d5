"""Rounds in which 30 % of the clients are faulty or hostile: each is released, and the honest part of its sum is exact."""

import itertools
import math
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.clientapp import ClientApp
from torch import nn

import bad_replies as bad
from flower_arms import Federation, Told, fixed, record, training_app
from flower_defects import logged
from hubbub.errors import ParticipationError
from hubbub.flower import GridPopulation, LocalGrid, clipping_mod, noising_mod
from hubbub.flower.arrays import Layout
from hubbub.noise.lattice import Lattice
from hubbub.training.aggregate import statistics
from hubbub.training.clipping import clip
from refusals import traced

pytestmark = pytest.mark.usefixtures("quiet")


@dataclass
class Spoiler:
    """A network on which some clients' replies are spoilt; what should count is noted, by NumPy and the lattice alone.

    Args:
        nothing: Faults of replies that count as nothing.
        bounded: Faults of replies that count.
        steps: What a reply that counts adds to the sum.
    """

    nothing: dict[str, bad.Fault]
    bounded: dict[str, bad.Fault]
    steps: Callable[[Message], torch.Tensor]
    draw: random.Random = field(default_factory=lambda: random.Random(5))  # noqa: S311 # which faults a test tries
    faulty: frozenset[int] = frozenset()
    honest: list[torch.Tensor] = field(default_factory=list)
    others: list[torch.Tensor] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    late: list[Message] = field(default_factory=list)

    def begin(self, nodes: Sequence[int]) -> None:
        """A further round, with others faulty."""
        self.faulty = frozenset(self.draw.sample(list(nodes), bad.FAULTY))
        self.honest, self.others = [], []

    def __call__(self, reply: Message) -> bad.Reply:
        if reply.metadata.src_node_id not in self.faulty:
            self.honest.append(self.steps(reply))
            return reply
        names = [*self.nothing, *self.bounded]
        # Each once in turn, then at random.
        name = next((name for name in names if name not in self.tried), None) or self.draw.choice(names)
        self.tried.add(name)
        arrived = (self.nothing | self.bounded)[name](reply, self.draw)
        if name in self.nothing:
            # Beside it, what somebody sent in a round before.
            return [*self.late, arrived] if isinstance(arrived, Message) else arrived
        first = arrived[0] if isinstance(arrived, list) else arrived
        self.others.append(self.steps(first))
        self.late = [first]
        return arrived

    def require_exact(self, total: torch.Tensor) -> None:
        """The sum without what hostile clients added, each clipped, is that of the honest clients, to the last step."""
        for part in self.others:
            total = total - part
        assert torch.equal(total, torch.stack(self.honest).sum(dim=0))


def run_with_faults(strategy: bad.Strategy, spoiler: Spoiler, rounds: int) -> None:
    """Every round is released, with the exact sum, and every fault is met."""
    federation = Federation(bad.CLIENTS, bad.trained)
    federation.grid.reply_filter = spoiler
    with pytest.MonkeyPatch.context() as patch:
        sums = bad.spied(patch)
        for _ in range(rounds):
            spoiler.begin(federation.grid.get_node_ids())
            released, told = federation.round(strategy, bad.MODEL)
            assert told["released"] == 1
            assert all(np.isfinite(numbers).all() for numbers in released.values())
            spoiler.require_exact(sums.pop()[1])
    assert spoiler.tried == {*spoiler.nothing, *spoiler.bounded}
    assert strategy.rounds_charged == rounds


@pytest.mark.parametrize("rounds", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_cli_6_flw_3_rounds_with_faulty_clients_are_released_and_their_honest_part_is_exact(rounds: int) -> None:
    lattice = Lattice(bad.CLIP)
    run_with_faults(bad.fixed(), Spoiler(bad.NOTHING, bad.BOUNDED, lambda reply: bad.steps_of(reply, lattice)), rounds)


@pytest.mark.parametrize("rounds", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_cli_6_ada_4_so_they_are_with_adaptive_clipping_and_lies_about_the_norm(rounds: int) -> None:
    strategy = bad.adaptive()

    def joint_steps(reply: Message) -> torch.Tensor:
        """Of an update beside its indicator: what a client says of its norm is heard only where it may be true."""
        summing = strategy._run.summing()
        update, was_clipped = clip(bad.update_of(reply), summing.clip_norm)
        said = [r["dpfedavg_norm_bit"] for r in reply.content.metric_records.values() if "dpfedavg_norm_bit" in r]
        bit = 0 if was_clipped or (said and int(said[0]) <= 0) else 1
        indicator = torch.tensor([(bit - 0.5) * summing.split.count_scale(summing.clip_norm)], dtype=torch.float64)
        return summing.lattice.encode(torch.cat([update, indicator]))[0]

    run_with_faults(strategy, Spoiler(bad.NOTHING | bad.NO_BIT, bad.BOUNDED | bad.LIES, joint_steps), rounds)


class Model(nn.Module):
    """The parameters of the replies' model."""

    def __init__(self) -> None:
        super().__init__()
        for name, numbers in bad.MODEL.items():
            self.register_parameter(name, nn.Parameter(torch.from_numpy(numbers.copy())))


def app() -> ClientApp:
    return training_app(lambda model, index: bad.trained(bad.MODEL, index))


@pytest.mark.parametrize("rounds", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_cli_6_so_they_are_where_the_loop_runs_on_a_grid(rounds: int) -> None:
    """The other door to a grid: its model stays as it was, so that replies can be compared with it."""
    grid = LocalGrid(app(), bad.CLIENTS)
    lattice = Lattice(bad.CLIP)
    spoiler = Spoiler(bad.NOTHING, bad.BOUNDED, lambda reply: bad.steps_of(reply, lattice))
    grid.reply_filter = spoiler
    clients = GridPopulation(grid, grid.get_node_ids())
    model = Model()
    for round_index in range(rounds):
        spoiler.begin(grid.get_node_ids())
        total = clients.collect(clients.clients, model, bad.CLIP, round_index)
        spoiler.require_exact(total.total)
        assert total.total.abs().max() > 0
    assert spoiler.tried == {*bad.NOTHING, *bad.BOUNDED}


@pytest.mark.parametrize(
    "beside", ["weight 1e12", "weight -8", "weight 0", "weight NaN", "no metrics", "metrics that are none", "its own clip norm"]
)
@pytest.mark.parametrize("make", [bad.fixed, bad.adaptive], ids=["fixed", "adaptive"])
def test_cli_2_flw_3_what_a_client_says_beside_its_update_changes_no_bit(make: Callable[[], bad.Strategy], beside: str) -> None:
    assert bad.outcome(make, bad.BOUNDED[beside]) == bad.outcome(make, None)


def ladder(loss: float) -> list[float]:
    """Losses whose sum by math.fsum with one more overflows exactly where that one is at least ``loss``."""
    return [0.25 - loss, sys.float_info.max, *(2.0 ** (970 - 54 * k) - 2.0 ** (917 - 54 * k) for k in range(18))]


@pytest.mark.parametrize("others", [[1e308] * 9, [-sys.float_info.max] * 20, ladder(0.5)])
def test_cli_2_no_losses_that_clients_state_end_a_round(others: list[float]) -> None:
    """Else what the others state would tell whether the loss of one is above theirs, whatever the noise."""
    assert {statistics(len(others) + 1, 0, [*others, own])["train_loss"] < 1e100 for own in (0.3, 0.7)} == {True}
    federation = Federation(bad.CLIENTS, bad.trained)
    federation.grid.reply_filter = lambda reply: bad.BOUNDED["a loss of 1e308"](reply, random.Random(1))  # noqa: S311 # of a test
    assert federation.round(bad.fixed(), bad.MODEL)[1]["released"] == 1


def test_cli_3_of_three_answers_the_first_counts_and_the_others_are_in_the_log() -> None:
    with logged() as lines:
        assert bad.outcome(bad.fixed, bad.BOUNDED["three answers"]) == bad.outcome(bad.fixed, None)
    assert sum("answered twice; the first answer counts" in line for line in lines) == 2


class Clock(LocalGrid):
    """A grid with a clock: answers take as long as a test says, and those that come after the deadline do not arrive."""

    seconds: dict[int, float]
    waited: list[float | None]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        self.waited += [timeout, *(message.metadata.ttl for message in messages)]
        deadline = math.inf if timeout is None else timeout
        replies = super().send_and_receive(messages)
        return [reply for reply in replies if self.seconds.get(reply.metadata.src_node_id, 1.0) <= deadline]


def clocked(seconds: float) -> Clock:
    made = Clock(app(), bad.CLIENTS)
    made.seconds, made.waited = {made.get_node_ids()[2]: seconds}, []
    return made


@pytest.mark.parametrize("seconds", [1e6, math.inf])
def test_cli_7_flw_9_a_client_that_is_too_slow_is_a_missing_reply(seconds: float) -> None:
    slow, gone = clocked(seconds), clocked(1.0)
    gone.offline([gone.get_node_ids()[2]])
    made = [bad.fixed().start(grid, record(bad.MODEL), num_rounds=2, timeout=60.0).arrays for grid in (slow, gone)]
    assert {name: array.data for name, array in made[0].items()} == {name: array.data for name, array in made[1].items()}
    # All that waits, waits until the deadline; a message lives longer, so that what came until then can be read.
    assert set(slow.waited) == {60.0, 120.0}
    populations = [GridPopulation(on, on.get_node_ids(), timeout=60.0) for on in (slow, gone)]
    sums = [population.collect(range(bad.CLIENTS), Model(), bad.CLIP, 0) for population in populations]
    assert torch.equal(sums[0].total, sums[1].total)
    assert set(slow.waited) == {60.0, 120.0}


def test_cli_8_an_array_of_another_size_is_refused_by_its_header_and_not_copied() -> None:
    huge = Array(np.zeros(2**23))
    layout = Layout.of(record(bad.MODEL))
    replies = [ArrayRecord({**record(bad.MODEL), "w": huge}), ArrayRecord({**record(bad.MODEL), "more": huge})]
    with traced() as memory:
        for reply in replies:
            with pytest.raises(ValueError, match=r"the model's float16 or float32 or float64 \(2, 3\)|which the model has not"):
                layout.views(reply)
        _, peak = memory()
    assert peak < 2**20 < len(huge.data)


def test_cli_8_answers_without_end_fill_neither_memory_nor_log() -> None:
    strategy, federation = bad.fixed(), Federation(bad.CLIENTS, bad.trained)
    replies = federation.ask(strategy, bad.MODEL)
    with traced() as memory, logged() as lines:
        arrays, _ = strategy.aggregate_train(1, itertools.chain(replies, itertools.repeat(replies[3], 10**5)))
        _, peak = memory()
    assert b"".join(array.data for array in arrays.values()) == bad.outcome(bad.fixed, None)[0]
    assert peak < 2**21
    assert len(lines) <= 4 * bad.CLIENTS + 2


@pytest.mark.parametrize("fault", ["the server's own model", "a part of the server's own model, a little moved"])
def test_cli_9_a_client_that_returns_the_servers_model_counts(fault: str) -> None:
    with logged() as lines:
        moved = bad.outcome(bad.fixed, bad.BOUNDED[fault])
    assert moved[1]["released"] == 1
    assert not any("counted as nothing" in line for line in lines)


@pytest.mark.parametrize(
    ("keys", "enough"), [([b"a"] * 5, False), ([b"a", b"b"] * 2 + [b"a"], False), ([b"a", b"b", b"c", b"a", b"a"], True)]
)
def test_cli_11_nodes_that_share_a_key_are_one_client_and_too_few_release_nothing(keys: list[bytes], enough: bool) -> None:
    grid = Told(training_app(lambda model, index: model, mods=[noising_mod, clipping_mod]), 5)
    grid.told = list(zip(grid.get_node_ids(), keys, strict=True))
    strategy = fixed(5, noise_at="clients", min_survivors=3, keys_enforced=True)
    too_few = pytest.raises(ParticipationError, match=f"{len(set(keys))} clients are connected, and no sum of fewer than 3")
    with nullcontext() if enough else too_few:
        messages = list(strategy.configure_train(1, record({"w": np.zeros(4, np.float32)}), ConfigRecord(), grid))
        assert len(messages) == len(set(keys))
        arrays, told = strategy.aggregate_train(1, grid.send_and_receive(messages))
        assert arrays is not None
        assert told["released"] == 1
    assert strategy.rounds_charged == enough


def test_cli_12_what_an_error_says_is_not_repeated_and_no_line_is_long_or_of_its_making() -> None:
    name = "x" * 10**6 + "\n\x1b[31mINFO: all is well"
    spoilt = bad.with_arrays(lambda arrays, draw: {**arrays, name: arrays["w"]})
    with logged() as lines:
        assert bad.outcome(bad.fixed, bad.NOTHING["an error with a long story"])[1]["released"] == 1
        assert bad.outcome(bad.fixed, spoilt)[1]["released"] == 1
    assert any("failed (error 2): see its log" in line for line in lines)
    assert not any("secret" in line or "all is well" in line for line in lines)
    assert all(len(line) < 400 and line.isprintable() for line in lines)
