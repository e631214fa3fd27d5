"""The release path: what is charged, hidden and persisted in which order, and what it refuses."""

import copy
import math
import pickle
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from conftest import raising
from hubbub import Mechanism, MinSeparation, PoissonSampling
from hubbub.errors import ConfigError, LedgerError, NoiseExhaustedError, ParticipationError, RunFolderError, SumNotOpenedError
from hubbub.ledger import Promise, read_chain
from hubbub.mechanism.participation import Participation
from hubbub.mechanism.private_evaluation import PrivateEvaluation
from hubbub.mechanism.strategies import BandedToeplitz, BinaryTree, Identity, strategy_arrays, toeplitz
from hubbub.noise import NoiseStream
from hubbub.noise.lattice import Lattice
from hubbub.noise.sources import IncarnationSource
from hubbub.training import LatticeSum, PlainSum, ReleasePath, RunPlan, RunStore, ServerOptimizer, SimulatedPopulation, train
from hubbub.training.aggregate import NoSum, Population
from release_paths import CLIENTS, CLIP, DIM, PATTERN, PROMISE, ROUNDS, locked, one_round, opened, plan, silent, total
from small_runs import SAMPLED, Foreign


def test_rng_4_a_row_of_noise_is_given_out_once_and_for_a_charged_round_only() -> None:
    path = opened()
    ticket = path.begin([0, 1], total(), CLIP)
    with pytest.raises(LedgerError, match="begun already"):
        path.begin([0], total(), CLIP)
    assert path.row(ticket) is not None
    with pytest.raises(LedgerError, match="given out already"):
        path.row(ticket)
    path.abort(ticket)
    with pytest.raises(LedgerError, match="not the one that was begun"):
        path.row(ticket)
    assert path.next_round == 1
    assert path.ledger.spent(1e-5).epsilon == PROMISE.after(1, 1e-5).epsilon > 0
    with pytest.raises(LedgerError, match="was not begun by begin of this path"):
        path.row(path.ledger.begin(1, [2], "sum", CLIP))


@pytest.mark.parametrize(
    "wrong",
    [PlainSum(torch.zeros(DIM, dtype=torch.float64), {}), total(clip_norm=2 * CLIP)],
    ids=["floating point", "another lattice"],
)
def test_secure_noise_hides_sums_on_the_lattice_of_the_clip_norm_only(wrong: PlainSum | LatticeSum) -> None:
    path = opened()
    with pytest.raises(LedgerError, match=r"round 0.*Lattice\(0.5\)"):
        path.begin([0], wrong, CLIP)
    simulated = opened(promise=replace(PROMISE, simulation=True))
    with pytest.raises(LedgerError, match="round 0: clip_norm = None, to which its noise is scaled"):
        simulated.begin([0], total(), None)
    assert path.ledger.rounds == simulated.ledger.rounds == ()


def test_rng_4_a_row_of_noise_opens_the_sum_that_its_round_began_with_and_no_other() -> None:
    path = opened()
    ticket = path.begin([0], total(5), CLIP)
    row = path.row(ticket)
    with pytest.raises(NoiseExhaustedError, match="round 0: its row of noise is for the sum that the round was begun with"):
        total(2).open(row)
    with pytest.raises(NoiseExhaustedError, match="round 0: its row of noise is for a sum in steps of"):
        LatticeSum(total(5).total, Lattice(2 * CLIP), {}).open(row)
    path.commit(ticket, total(5).open(row))
    ticket = path.begin([1], changed := total(5), CLIP)
    # By an array that shares its memory, of which torch does not know.
    changed.total.numpy()[:] *= 2
    with pytest.raises(NoiseExhaustedError, match=r"round 1: its row of noise is for the sum .* or was changed since"):
        changed.open(path.row(ticket))
    path.abort(ticket)
    row = path.row(path.begin([2], total(5), CLIP))
    # Formed twice, and the same.
    assert type(total(5).open(row)) is torch.Tensor
    for other in (total(5), total(2)):
        with pytest.raises(NoiseExhaustedError, match="round 2: its row of noise has met a sum, and none meets two"):
            other.open(row)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_rng_4_a_row_of_noise_cannot_be_copied(copied: Callable) -> None:
    path = opened()
    row = path.row(path.begin([0], total(), CLIP))
    with pytest.raises(TypeError, match="row of noise cannot be copied or pickled"):
        copied(row)


def test_rng_2_a_fork_does_not_open_a_sum_with_its_parents_row() -> None:
    path = opened()
    row = path.row(path.begin([0], total(5), CLIP))
    row._process += 1
    with pytest.raises(NoiseExhaustedError, match="was forked from"):
        total(5).open(row)


def test_rng_4_of_two_threads_that_ask_for_a_row_one_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    path, both = opened(), threading.Barrier(2)
    ticket, right = path.begin([0], total(), CLIP), NoiseStream.next_row

    def slow(self: NoiseStream) -> torch.Tensor:
        # Long enough for the other thread to look whether the row is still there.
        time.sleep(0.2)
        return right(self)

    def asked(_: int) -> str:
        both.wait()
        try:
            return type(path.row(ticket)).__name__
        except LedgerError as error:
            return str(error)

    monkeypatch.setattr(NoiseStream, "next_row", slow)
    with ThreadPoolExecutor(2) as threads:
        given = sorted(threads.map(asked, range(2)))
    assert given == ["Row", "round 0: its row of noise was given out already; abort the round"]


def test_rng_4_a_stream_of_secret_noise_is_not_set_back() -> None:
    gone = pytest.raises(NoiseExhaustedError, match="gave out the rows before round 1")
    for seed, refused in ((None, gone), (0, nullcontext())):
        stream = NoiseStream(PROMISE.mechanism, DIM, seed=seed)
        before = stream.state_dict()
        stream.next_row()
        with refused:
            stream.load_state_dict(before)


@pytest.mark.parametrize("simulation", [False, True], ids=["lattice", "floating point"])
def test_shp_12_a_sum_longer_than_clipped_updates_can_make_is_refused_before_anything_is_recorded(simulation: bool) -> None:
    """The longest sum of two clipped updates is twice as long as one of them, along one direction."""
    path, direction = opened(promise=replace(PROMISE, simulation=simulation)), torch.zeros(DIM, dtype=torch.float64)
    direction[3] = 1.0

    def along(norm: float, room: float = 1.0) -> LatticeSum | PlainSum:
        steps = (norm / (lattice := Lattice(room * CLIP)).step * direction).long()
        return PlainSum(norm * direction, {}) if simulation and room == 1 else LatticeSum(steps, lattice, {})

    for norm, cohort in ((2.02 * CLIP, [0, 1]), (1e-5, []), (math.nan if simulation else 2.0**30, [0, 1]), (2e5, range(10**5))):
        with pytest.raises(ParticipationError, match=rf"its sum is longer than {len(cohort)} clients .* clip_norm = 0.5"):
            path.begin(cohort, along(norm), np.float16(CLIP))
    # On a lattice for longer updates, which only a simulation takes.
    with pytest.raises(ParticipationError if simulation else LedgerError, match=r"its sum is (longer than 1|on Lattice)"):
        path.begin([0], along(2 * CLIP, room=100), CLIP)
    assert path.ledger.rounds == ()
    total = along(2 * CLIP)
    path.commit(ticket := path.begin([0, 1], total, CLIP), total.open(path.row(ticket)))
    assert path.ledger.rounds == ("committed",)


def test_what_is_no_sum_is_refused_by_the_name_of_its_class() -> None:
    class Nothing(Population):
        clients = range(CLIENTS)

        def collect(self, cohort, model, clip_norm, round_index, split=None):  # forgets to return
            return None

    with pytest.raises(TypeError, match=r"round 0: Nothing\.collect = NoneType: must be a sum: return hubbub\.training\.Lat"):
        next(train(plan(Identity(ROUNDS)), Nothing(), nn.Linear(3, 2)))
    with pytest.raises(TypeError, match="total = Tensor: must be a sum"):
        opened().begin([0], torch.zeros(DIM), CLIP)


@pytest.mark.parametrize("answers", [None, 3, {"accuracy": 0.5}], ids=repr)
def test_what_is_no_list_of_measurements_is_refused_by_the_name_of_its_class(answers: object) -> None:
    class Measures(SimulatedPopulation):
        def measure(self, cohort, model):
            return answers

    population = Measures([(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))] * CLIENTS, nn.functional.cross_entropy)
    measured = plan(Identity(ROUNDS), evaluation=PrivateEvaluation(2.0, every=1))
    with pytest.raises(TypeError, match=rf"round 0: Measures\.measure = {type(answers).__name__}: must be a list"):
        next(train(measured, population, nn.Linear(3, 2)))


def test_the_charge_is_on_disk_before_the_row_and_the_release_before_its_record(tmp_path: Path) -> None:
    path = opened(locked(tmp_path))
    ticket = path.begin([3], total(), CLIP)
    assert read_chain(tmp_path / "ledger.jsonl").records[-1]["kind"] == "begin"
    release = total().open(path.row(ticket))
    seen, file = [], tmp_path / "state/releases/0.safetensors"
    assert not file.exists()
    path.ledger.commit = lambda ticket, content: seen.append(file.read_bytes() == content)
    path.commit(ticket, release)
    assert seen == [True]


def test_cra_2_a_release_that_is_whole_on_disk_is_committed_after_a_crash_and_the_round_not_lost(tmp_path: Path) -> None:
    path = opened(locked(tmp_path))
    release = total().open(path.row(path.begin([3], total(), CLIP)))
    RunStore(tmp_path).save_release(0, release)
    again = opened(RunStore(tmp_path))
    assert again.ledger.rounds == ("committed",)
    assert torch.equal(next(again.released(0, 1)), release)


def test_cra_2_a_round_without_its_release_is_aborted_after_a_crash(tmp_path: Path) -> None:
    opened(locked(tmp_path)).begin([3], total(), CLIP)
    again = opened(RunStore(tmp_path))
    assert again.ledger.rounds == ("aborted",)
    assert not again.ledger.may_join(3, 1)
    assert again.ledger.may_join(3, 3)


def test_cra_7_rng_8_every_start_has_a_key_of_its_own_and_two_copies_of_a_folder_share_no_row(tmp_path: Path) -> None:
    one_round(opened(locked(tmp_path / "run")), 0)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    rows = [one_round(opened(RunStore(tmp_path / name)), 1) for name in ("run", "copy")]
    assert not torch.isclose(*rows, atol=1e-9).any()


def test_cra_17_noise_that_would_have_other_last_bits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_round(opened(locked(tmp_path)), 0)
    monkeypatch.setattr("hubbub.training.release.sampler", lambda: "0" * 64)
    with pytest.raises(RunFolderError, match="bit for bit"):
        opened(RunStore(tmp_path))


def test_independent_noise_resumes_on_any_machine_and_redraws_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    promise = Promise(ROUNDS, Mechanism(Identity(ROUNDS), PATTERN, 1.0))
    first = opened(locked(tmp_path), promise)
    for t in range(2):
        one_round(first, t)
    monkeypatch.setattr("hubbub.training.release.sampler", lambda: "0" * 64)
    drawn, right = [], IncarnationSource.segments
    monkeypatch.setattr(IncarnationSource, "segments", lambda self, *at: (drawn.append(at[0]), right(self, *at))[1])
    again = opened(RunStore(tmp_path), promise)
    assert again._noise.round_index == again._noise.drawn == 2
    one_round(again, 2)
    again.abort(again.begin([3], total(), CLIP))
    one_round(again, 4)
    assert drawn == [2, 4]
    assert [epoch.first_row for epoch in again.ledger.history.epochs] == [0, 2]


FOREIGN = Foreign(np.eye(ROUNDS))


class Quiet(Foreign):
    """Its noise is a hundredth of what inverts its matrix."""

    def step(self, round_index: int, draw, memory):  # as the protocol has it
        row, memory = super().step(round_index, draw, memory)
        return row * 0.01, memory


def test_a_foreign_stream_that_does_not_invert_its_matrix_is_refused_before_the_first_round(tmp_path: Path) -> None:
    opened(promise=Promise(ROUNDS, Mechanism(FOREIGN, PATTERN, 1.0)))
    with pytest.raises(ValueError, match="does not invert"):
        opened(locked(tmp_path), Promise(ROUNDS, Mechanism(Quiet(FOREIGN.C), PATTERN, 1.0)))
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.parametrize("strategy", [Identity(ROUNDS), toeplitz.square_root(ROUNDS, 3), BinaryTree(ROUNDS), FOREIGN])
def test_a_promise_is_read_from_its_record_alone(tmp_path: Path, strategy: Identity) -> None:
    promise = Promise(ROUNDS, Mechanism(strategy, PATTERN, 1.3), settings={"a": 1})
    opened(locked(tmp_path), promise)
    record = read_chain(tmp_path / "ledger.jsonl").records[0]
    again = Promise.from_record(record, RunStore(tmp_path).load_strategy())
    for rounds in (0, 1, ROUNDS):
        assert again.after(rounds, 1e-6).epsilon == pytest.approx(promise.after(rounds, 1e-6).epsilon, rel=1e-12)


@pytest.mark.parametrize("relation", [None, "zero-out", "replace-one"])
@pytest.mark.parametrize("participation", [*SAMPLED, PATTERN], ids=repr)
def test_a_guarantee_is_the_same_by_the_record_as_by_the_promise(participation: Participation, relation: str | None) -> None:
    promise = Promise(6, Mechanism(Identity(6), participation, 1.3), neighboring_relation=relation)
    again = Promise.from_record({"kind": "promise", **promise.record()}, strategy_arrays(promise.mechanism.strategy))
    assert again.after(6, 1e-6).as_json() == promise.after(6, 1e-6).as_json()


def test_num_14_a_model_that_diverges_keeps_its_last_good_state_and_its_charge(tmp_path: Path) -> None:
    class Overflowing(Population):
        clients = range(CLIENTS)

        def collect(self, cohort, model, clip_norm, round_index, split=None):  # a release beyond what float32 holds
            return PlainSum(torch.full((DIM,), clip_norm / 3 if round_index == 1 else 0.0, dtype=torch.float64), {})

    model = nn.Linear(3, 2)
    mechanism, server = Mechanism(Identity(ROUNDS), PATTERN, 1e-6), ServerOptimizer(learning_rate=1e35)
    diverging = plan(Identity(ROUNDS), noise="simulation", mechanism=mechanism, server=server, clip_norm=1e6)
    run = train(diverging, Overflowing(), model, RunStore(tmp_path))
    next(run)
    before = model.weight.detach().clone()
    with pytest.raises(ConfigError, match="no longer finite after 2 rounds"):
        next(run)
    assert torch.equal(model.weight, before)
    kinds = [record["kind"] for record in read_chain(tmp_path / "ledger.jsonl").records]
    assert kinds.count("begin") == kinds.count("commit") == 2


def test_num_12_a_strategy_whose_noise_grows_beyond_exact_integers_is_refused_before_the_first_round(tmp_path: Path) -> None:
    growing = Promise(60, Mechanism(BandedToeplitz(60, (1.0, 2.0)), MinSeparation(3, 20), 1.0))
    with pytest.raises(ConfigError, match="noise_multiplier"):
        opened(locked(tmp_path), growing)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_num_4_a_delta_that_noise_of_finitely_many_bits_cannot_hide_is_refused_before_the_first_round(tmp_path: Path) -> None:
    pattern = MinSeparation(3, 20)
    for delta in (1e-100, 3e-22):
        with pytest.raises(ConfigError, match=r"delta = .* hides nothing below 3.97e-22 for 60 rounds of 8 numbers"):
            opened(locked(tmp_path), Promise(60, Mechanism(Identity(60), pattern, 1.0), delta=delta))
    assert not (tmp_path / "ledger.jsonl").exists()
    opened(locked(tmp_path), Promise(60, Mechanism(Identity(60), pattern, 1.0), delta=1e-20))


def test_num_11_an_empty_cohort_releases_noise_and_is_charged(tmp_path: Path) -> None:
    mechanism = Mechanism(Identity(3), PoissonSampling(1e-9), 1.0)
    planned = RunPlan(3, mechanism.participation, 3, mechanism, clip_norm=CLIP, delta=1e-12)
    results = list(train(planned, silent(), nn.Linear(3, 2), RunStore(tmp_path)))
    assert [result.clients for result in results] == [0, 0, 0]
    assert results[-1].epsilon == planned.promise().after(3, 1e-12).epsilon > 0
    assert results[-1].head == read_chain(tmp_path / "ledger.jsonl").head


def test_an_old_ticket_touches_nothing(tmp_path: Path) -> None:
    path = opened(locked(tmp_path))
    ticket = path.begin([0], total(), CLIP)
    release = total().open(path.row(ticket))
    path.commit(ticket, release)
    for act in (lambda: path.commit(ticket, release + 1), lambda: path.abort(ticket)):
        with pytest.raises(LedgerError, match="not the one that was begun"):
            act()
    assert torch.equal(next(opened(RunStore(tmp_path)).released(0, 1)), release)


def test_rng_4_a_bare_sum_and_a_number_between_two_points_are_not_committed() -> None:
    path = opened()
    ticket = path.begin([0], total(5), CLIP)
    with pytest.raises(LedgerError, match="bare sum"):
        path.commit(ticket, total(5).open(None))
    row = path.row(ticket)
    with pytest.raises(LedgerError, match="bare sum, to which its row of noise was not added"):
        path.commit(ticket, total(5).open(None))
    release = total(5).open(row)
    with pytest.raises(LedgerError, match="off the lattice"):
        path.commit(ticket, release + 1e-9)
    with pytest.raises(LedgerError, match="shape"):
        path.commit(ticket, release[1:])
    path.commit(ticket, release)


def test_rng_4_a_bare_sum_is_told_where_noise_moves_its_last_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    last = torch.tensor([0.0] * 99 + [1.0], dtype=torch.float64)
    monkeypatch.setattr(NoiseStream, "next_row", lambda _: last.clone())
    path = ReleasePath(PROMISE, len(last), clients=CLIENTS)
    path.start()
    summed = LatticeSum(torch.full((len(last),), 5), Lattice(CLIP, 24), {})
    ticket = path.begin([0], summed, CLIP)
    row = path.row(ticket)
    with pytest.raises(LedgerError, match="bare sum, to which its row of noise was not added"):
        path.commit(ticket, summed.open(None))
    path.commit(ticket, summed.open(row))


def test_a_row_for_a_sum_on_the_lattice_that_is_not_formed_yet_opens_none_in_floating_point() -> None:
    path = opened()
    row = path.row(path.begin([0], NoSum(total().lattice, SumNotOpenedError("not yet")), CLIP))
    with pytest.raises(NoiseExhaustedError, match=r"is for a sum in steps of .*, and this one is in floating point"):
        PlainSum(torch.zeros(DIM, dtype=torch.float64), {}).open(row)


def test_cra_9_a_round_that_another_process_has_aborted_leaves_no_release_in_its_way(tmp_path: Path) -> None:
    first = opened(locked(tmp_path))
    ticket = first.begin([0], total(), CLIP)
    # As where the file of the lock was deleted.
    second = opened(RunStore(tmp_path))
    with pytest.raises(LedgerError, match="changed by another process"):
        first.commit(ticket, total().open(first.row(ticket)))
    one_round(second, 1)
    assert opened(RunStore(tmp_path)).ledger.rounds == ("aborted", "committed")


def test_a_path_that_was_not_started_gives_no_noise(tmp_path: Path) -> None:
    one_round(opened(locked(tmp_path)), 0)
    with pytest.raises(LedgerError, match="call start first"):
        ReleasePath(PROMISE, DIM, clients=CLIENTS, store=RunStore(tmp_path)).begin([1], total(), CLIP)


def test_a_round_that_was_aborted_before_its_row_was_taken_does_not_stop_the_next() -> None:
    path = opened()
    path.abort(path.begin([0], total(), CLIP))
    one_round(path, 1)
    assert path.ledger.rounds == ("aborted", "committed")


@pytest.mark.parametrize("again", [False, True], ids=["once", "asked twice"])
def test_a_row_that_is_prepared_in_a_thread_is_the_row_of_its_round_and_of_no_other(again: bool) -> None:
    promise = replace(PROMISE, simulation=True)
    bare = PlainSum(torch.zeros(DIM, dtype=torch.float64), {})
    plain, prepared, found = opened(promise=promise), opened(promise=promise), list[torch.Tensor]()
    for path in (plain, prepared):
        for round_index in range(ROUNDS):
            for _ in range((path is prepared) * (1 + again)):
                path.prepare_row()
            ticket = path.begin([round_index], bare, CLIP)
            if round_index == 1:
                path.abort(ticket)
                continue
            found.append(bare.open(path.row(ticket)))
            with pytest.raises(LedgerError, match="given out already"):
                path.row(ticket)
            path.commit(ticket, found[-1])
        # There is no further row.
        path.prepare_row()
    assert len(found) == 2 * (ROUNDS - 1)
    assert all(torch.equal(*pair) for pair in zip(found[: ROUNDS - 1], found[ROUNDS - 1 :], strict=True))


def test_rng_2_a_row_that_was_prepared_belongs_to_its_process_and_is_not_kept_for_the_next_start(tmp_path: Path) -> None:
    path = opened(locked(tmp_path))
    one_round(path, 0)
    path.prepare_row()
    path.keep_noise()
    with pytest.raises(LedgerError, match="round 1: its row was prepared; make a path anew"):
        path.start()
    # The round never begins: the next start has a key of its own.
    again = opened(RunStore(tmp_path))
    again.prepare_row()
    ((round_index, process, row),) = again._noise._prepared
    assert (round_index, again._noise.source._incarnations[-1][0]) == (1, 1)
    assert not torch.equal(row.result(), path._noise._prepared[0][2].result())
    ticket = again.begin([1], total(), CLIP)
    again._noise._prepared = [(round_index, process + 1, row)]
    with pytest.raises(NoiseExhaustedError, match=f"round 1: process {process} was forked from {process + 1}"):
        again.row(ticket)
    again.abort(ticket)
    for client in range(2, ROUNDS):
        one_round(again, client)
    # A run that is over draws no row again.
    over = opened(RunStore(tmp_path))
    over.prepare_row()
    assert not over._noise.prepared


def test_who_interrupts_the_wait_for_a_prepared_row_loses_that_round_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    path, right = opened(), NoiseStream._step
    monkeypatch.setattr(NoiseStream, "_step", lambda stream, out: time.sleep(0.3) or right(stream, out))
    path.prepare_row()
    ticket = path.begin([0], total(), CLIP)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(Future, "result", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            path.row(ticket)
    with pytest.raises(LedgerError, match="its row of noise was not taken"):
        path.commit(ticket, total().open(None))
    path.abort(ticket)
    for client in (1, 2):
        one_round(path, client)
    assert path.ledger.rounds == ("aborted", "committed", "committed")


def test_rng_3_a_simulation_that_was_interrupted_in_a_round_draws_that_round_again(tmp_path: Path) -> None:
    promise = replace(PROMISE, simulation=True)
    bare = PlainSum(torch.zeros(DIM, dtype=torch.float64), {})
    first = opened(locked(tmp_path), promise)
    row = first.row(first.begin([0], bare, CLIP))
    again = opened(RunStore(tmp_path), promise)
    assert torch.equal(again.row(again.begin([0], bare, CLIP)), row)


class Ahead(Foreign):
    """Independent noise, two rows of z drawn at a time: the second would be met by two sums in two copies."""

    def step(self, round_index: int, draw, memory):  # as the protocol has it
        if memory:
            return memory[0], ()
        return draw(round_index), ((draw(round_index + 1),) if round_index + 1 < self.rounds else ())


def test_a_stream_that_draws_ahead_is_refused() -> None:
    with pytest.raises(ValueError, match="round 0 draws row 1 of z, which belongs to a later round"):
        opened(promise=Promise(ROUNDS, Mechanism(Ahead(FOREIGN.C), PATTERN, 1.0)))


class Correlated(Identity):
    """Calls itself independent, and is not."""

    def matrix(self) -> np.ndarray:
        return np.tril(np.ones((self.rounds, self.rounds)))


def test_a_class_made_from_ours_is_not_taken_for_ours() -> None:
    with pytest.raises(ConfigError, match="independent noise only"):
        Promise(ROUNDS, Mechanism(Correlated(ROUNDS), PoissonSampling(0.5), 1.0)).after(2, 1e-5)
    mechanism = Mechanism(Correlated(ROUNDS), MinSeparation(1, ROUNDS), 1.0)
    assert mechanism.sensitivity_after(3).value > Identity(3).sensitivity(MinSeparation(1, 3)).value
