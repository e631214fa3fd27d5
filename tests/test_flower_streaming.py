"""Rounds on a grid of many clients: replies are read one by one, and a round ends at its deadline, right and charged."""

import gc
import itertools
import time
import weakref
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from hubbub.errors import ConfigError, ParticipationError
from hubbub.flower import DPFedAvgAdaptive, DPFedAvgFixed, GridPopulation, LocalGrid
from hubbub.flower.summing import Streaming
from hubbub.noise.lattice import Lattice

DIM = 30_000


pytestmark = pytest.mark.usefixtures("quiet", "in_a_task")


def arrays(values: np.ndarray) -> ArrayRecord:
    return ArrayRecord({"w": Array(values[:-7].reshape(1, -1)), "b": Array(values[-7:])})


START = arrays(np.linspace(-1, 1, DIM, dtype=np.float32))


class Clients(Grid):
    """A SuperLink of clients that answer when they are pulled: ``seconds`` after they were asked, or never.

    It gives the least number of replies that it is asked for, and counts how many are alive.
    """

    def __init__(self, count: int, seconds: Callable[[int], float] = lambda node: 0.0) -> None:
        self.nodes = range(1, count + 1)
        self.seconds = seconds
        self.waiting: dict[str, tuple[Message, float]] = {}
        self.alive: list[weakref.ref[ArrayRecord]] = []
        self.most_alive = 0
        self.ids = itertools.count(1)
        self.answered: list[int] = []

    def update(self, node: int) -> np.ndarray:
        return np.random.default_rng(node).normal(size=DIM, scale=3e-3).astype(np.float32)

    def reply(self, message: Message) -> Message:
        sent = message.content.array_records["arrays"]
        before = np.concatenate([array.numpy().reshape(-1) for array in sent.values()])
        record = arrays(before + self.update(message.metadata.dst_node_id))
        self.alive = [held for held in self.alive if held() is not None] + [weakref.ref(record)]
        self.most_alive = max(self.most_alive, len(self.alive))
        self.answered.append(message.metadata.dst_node_id)
        return Message(RecordDict({"arrays": record}), reply_to=message)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        given = []
        for message in messages:
            message_id = f"m{next(self.ids)}"
            message.metadata.__dict__["_message_id"] = message_id
            self.waiting[message_id] = message, time.monotonic() + self.seconds(message.metadata.dst_node_id)
            given.append(message_id)
        return given

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ready = [i for i in message_ids if i in self.waiting and self.waiting[i][1] <= time.monotonic()]
        return [self.reply(self.waiting.pop(i)[0]) for i in ready]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise AssertionError("holds every reply")

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=node, public_key=b"") for node in self.nodes]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def set_run(self, run: Any) -> None: ...

    run = None


def fixed(cohort: int, **more: Any) -> DPFedAvgFixed:
    more = {"simulation_seed": 1, "num_sampled_clients": cohort, **more}
    return DPFedAvgFixed(FedAvg(min_available_nodes=1), clip_norm=0.4, noise_multiplier=1.0, **more)


@pytest.mark.slow
def test_no_more_than_a_handful_of_replies_are_alive_and_the_sum_is_that_of_all() -> None:
    on = Clients(300)
    made = fixed(300).start(on, START, num_rounds=1).arrays
    gc.collect()
    assert len(on.answered) == 300
    assert on.most_alive <= 12
    lattice = Lattice(0.4)
    after, sent = (np.concatenate([a.numpy().reshape(-1) for a in each.values()]) for each in (made, START))
    updates = ((sent + on.update(node)) - sent for node in on.nodes)
    exact = sum(lattice.encode(torch.from_numpy(update))[0] for update in updates) * lattice.step
    # What is left of the sum is its noise.
    noise = (after.astype(np.float64) - sent) * 300 - exact.numpy()
    assert noise.std() == pytest.approx(0.4, rel=0.03)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_grid_that_holds_nothing_gives_the_sum_that_a_list_of_replies_gives(adaptive: bool) -> None:
    def of(streaming: bool) -> bytes:
        on, cohort = Clients(20), {"num_sampled_clients": 20, "simulation_seed": 3, "noise_multiplier": 2.0}
        strategy = DPFedAvgAdaptive(FedAvg(), **cohort) if adaptive else DPFedAvgFixed(FedAvg(), clip_norm=0.2, **cohort)
        messages = list(strategy.configure_train(1, START, ConfigRecord(), on))
        if streaming:
            replies: Iterable[Message] = Streaming(on).send_and_receive(messages)
        else:
            replies = on.pull_messages(reversed(on.push_messages(messages)))
        made, _ = strategy.aggregate_train(1, replies)
        return b"".join(array.data for array in made.values())

    assert of(True) == of(False)


def test_the_loop_of_one_s_own_reads_replies_one_by_one_too() -> None:
    on, model = Clients(60), torch.nn.Module()
    model.w, model.b = (torch.nn.Parameter(torch.from_numpy(array.numpy().copy())) for array in START.values())
    total = GridPopulation(on, list(on.nodes)).collect(range(60), model, 0.4, 0)
    assert on.most_alive <= 12
    assert total.statistics["clipped_fraction"] > 0


def test_cli_6_a_reply_in_anothers_name_or_that_cannot_be_read_costs_nobody_else_its_place() -> None:
    class Hostile(Clients):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            for reply in (came := super().pull_messages(message_ids)):
                if reply.metadata.src_node_id == 1:
                    raise KeyError("arraychunk_ids")
                if reply.metadata.src_node_id == 2:
                    reply.metadata.__dict__.update(_src_node_id=3, _reply_to_message_id="")
            return came

    absent = Clients(5, lambda node: 9 * (node < 3))
    made = [fixed(5).start(on, START, num_rounds=1, timeout=0.5).arrays for on in (absent, Hostile(5))]
    assert made[0] == made[1]


def test_a_round_closes_at_its_deadline_with_what_came_and_who_is_late_has_lost_its_turn() -> None:
    late = {node: 0.0 if node % 10 < 7 else 600.0 for node in range(1, 51)}
    on, strategy = Clients(50, late.__getitem__), fixed(50, deadline=1.0, rounds=4)
    made = strategy.start(on, START, num_rounds=2, timeout=3600).arrays
    assert sorted(on.answered) == sorted(2 * [node for node in late if not late[node]])
    assert strategy.rounds_charged == 2
    assert made is not None
    assert "answers are read before a round closes" in strategy.statement()


def test_all_that_answered_until_the_deadline_counts_however_long_the_sum_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    on, strategy = Clients(60, lambda node: 0.3), fixed(60, deadline=0.4)
    right = Lattice.add

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.02)
        return right(*arguments)

    monkeypatch.setattr(Lattice, "add", slowly)
    strategy.start(on, START, num_rounds=1)
    assert len(on.answered) == 60


def test_the_clients_of_a_local_grid_are_waited_for_and_take_no_deadline() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        time.sleep(0.05)
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    grid, strategy = LocalGrid(app, num_nodes=8), fixed(8, on_failure="abort")
    assert strategy.start(grid, START, num_rounds=1, timeout=0.1).train_metrics_clientapp[1]["released"] == 1
    with pytest.raises(ConfigError, match=r"deadline = 1\.0: the nodes of a LocalGrid"):
        fixed(8, deadline=1.0).start(grid, START, num_rounds=1)


@pytest.mark.parametrize("at", [0, 2**17 + 5, 2**18 + 1])
def test_a_number_that_is_none_anywhere_counts_as_nothing(at: int) -> None:
    update, total = torch.zeros(2**18 + 2), torch.zeros(2**18 + 2, dtype=torch.float64)
    update[at] = torch.nan
    assert Lattice(1.0).add(update, total) is None
    assert not total.any()


@pytest.mark.parametrize(("goal", "released"), [(7, True), (8, False)])
def test_a_round_with_fewer_answers_than_its_goal_is_discarded_and_charged(goal: int, released: bool) -> None:
    on = Clients(10, lambda node: 0.0 if node <= 7 else 600.0)
    strategy = fixed(10, deadline=0.5, on_failure="abort", report_goal=goal, expected_cohort_size=7.0, rounds=3)
    made = strategy.start(on, START, num_rounds=1)
    assert strategy.rounds_charged == 1
    assert strategy._run.state.path.ledger.rounds == ("committed" if released else "aborted",)
    assert (made.train_metrics_clientapp[1]["released"] == 1) == released


def test_a_round_with_fewer_clients_than_its_goal_is_not_begun_and_costs_nothing() -> None:
    strategy = fixed(10, on_failure="abort", report_goal=8, expected_cohort_size=7.0, rounds=3)
    with pytest.raises(ParticipationError, match=r"round 1: 7 clients may join, .* report_goal = 8 is discarded"):
        strategy.start(Clients(7, lambda node: 0.0), START, num_rounds=1)
    assert strategy.rounds_charged == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"report_goal": 3}, "report_goal = 3.*on_failure"),
        ({"report_goal": 6, "on_failure": "abort"}, "report_goal = 6"),
        ({"deadline": 0.0}, "deadline"),
        ({"on_failure": "abort", "num_sampled_clients": None, "sampling_probability": 0.1}, "'abort': of random cohorts"),
    ],
)
def test_a_goal_that_no_theorem_covers_or_that_does_nothing_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=words):
        fixed(5, **more)
