"""Sums that nobody but share holders can open: coarser lattices, who adds the noise, the stated setting, and aborted rounds."""

import io
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from hubbub.accounting import Assumption, DiscreteGaussianShares, RunFacts, guarantee
from hubbub.accounting.events_of_mechanism import mechanism_events
from hubbub.accounting.wording import HOLDERS_ADD
from hubbub.cli.training import _progress
from hubbub.errors import ConfigError, LedgerError, SumNotOpenedError
from hubbub.experiment.build import build
from hubbub.experiment.config import resolve
from hubbub.experiment.engine.folder import RunInFolder
from hubbub.ledger import Promise, compose_runs
from hubbub.ledger.actual_cost import cost_of_run, spent
from hubbub.mechanism import Mechanism, NoiseShares
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.noise import NoiseStream, SimulationSource
from hubbub.noise.lattice import Lattice
from hubbub.noise.steps import share_stddev
from hubbub.training import LatticeSum, PlainSum, Population, ReleasePath, RunPlan, RunStore, train
from hubbub.training.run_folder.record import read_metrics, read_run
from hubbub.verification import verify
from recorded_runs import read_back
from release_paths import CLIENTS, CLIP, DIM, PATTERN, ROUNDS, locked, opened, plan, silent, total
from small_runs import until

BANDED = toeplitz.square_root(ROUNDS, 3)
SETTING = "secure aggregation: updates are encrypted under a key that 3 holders share"
HELD = Promise(ROUNDS, Mechanism(BANDED, PATTERN, 1.0), settings={"clip_norm": CLIP}, noise_by="holders", setting=SETTING)
PLAIN = replace(HELD, noise_by="server", setting="")
SHARED = Mechanism(Identity(ROUNDS), PATTERN, 2.0, NoiseShares(3, DIM, lattice_bits=12))


@pytest.mark.parametrize("bits", [8, 12, 23, 24])
@pytest.mark.parametrize("clip_norm", [1.0, 0.3, math.nextafter(2.0, 0), 1e-12, 7e11])
def test_a_step_is_the_power_of_two_at_or_below_so_many_halvings_of_the_clip_norm(clip_norm: float, bits: int) -> None:
    lattice = Lattice(clip_norm, bits)
    assert math.frexp(lattice.step)[0] == 0.5
    assert Fraction(lattice.step) <= Fraction(clip_norm) / 2**bits < 2 * Fraction(lattice.step)
    assert 2**bits <= lattice.radius < 2 ** (bits + 1)
    assert Fraction(lattice.radius) * Fraction(lattice.step) <= Fraction(clip_norm)


@pytest.mark.parametrize(("bits", "dim"), [(8, 1), (8, 1000), (8, 2**16), (10, 30_000), (16, 1000)])
def test_an_update_on_a_coarse_lattice_is_within_the_clip_norm_and_near_what_it_was(bits: int, dim: int) -> None:
    lattice = Lattice(0.7, bits)
    generator = torch.Generator().manual_seed(dim)
    for norm in (0.01, 0.35, 0.69, 0.7, 5.0):
        update = torch.randn(dim, generator=generator, dtype=torch.float64)
        update *= norm / update.norm()
        steps, was_clipped = lattice.encode(update)
        assert int((steps**2).sum()) <= lattice.radius**2
        # Never turned around, whatever rounding needs.
        assert float(torch.dot(steps.to(torch.float64), update)) >= 0
        assert was_clipped or float((steps * lattice.step - update).abs().max()) <= lattice.step / 2
        assert was_clipped == (norm > 0.7 * (1 - 1e-9)) or math.sqrt(dim) > lattice.radius / 50


def test_the_worst_rounding_on_the_coarsest_lattice_stays_within_the_clip_norm() -> None:
    lattice = Lattice(1.0, 8)
    # Each of as many numbers as there may be is rounded up by half a step.
    steps, _ = lattice.encode(torch.full((4**8,), 0.5000001 * lattice.step))
    assert int((steps**2).sum()) <= lattice.radius**2


def test_more_numbers_than_a_lattice_has_room_for_are_refused_and_the_bits_that_are_named_have_room() -> None:
    with pytest.raises(ValueError, match=r"dim = 65,537.*at most 65,536 numbers.*lattice_bits = 9 or more"):
        Lattice(1.0, 8).encode(torch.zeros(4**8 + 1))
    for dim in (4**8 + 1, 4**9, 4**9 + 1, 5 * 10**6):
        with pytest.raises(ValueError, match="lattice_bits = ") as refused:
            Lattice(1.0, 8).require_dim(dim)
        named = int(str(refused.value).split("lattice_bits = ")[1].split()[0])
        Lattice(1.0, named).require_dim(dim)
        assert 4 ** (named - 1) < dim


@pytest.mark.parametrize("bits", [7, 25, 8.0, True, None])
def test_a_lattice_that_is_not_there_is_refused(bits: object) -> None:
    doors = (lambda: Lattice(1.0, bits), lambda: NoiseShares(3, lattice_bits=bits), lambda: plan(BANDED, lattice_bits=bits))
    for make in doors:
        with pytest.raises((ValueError, TypeError), match="bits = "):
            make()


@pytest.mark.parametrize("bits", [8, 13, 24])
@pytest.mark.parametrize("clip_norm", [1.0, 0.1, math.nextafter(2.0, 0)])
def test_a_share_of_coarse_steps_is_never_less_noise_than_stated_and_charged(clip_norm: float, bits: int) -> None:
    for z, clients in ((1e-6, 1), (0.3, 17), (7.9, 3), (1.1, 1000)):
        share = share_stddev(z, clip_norm, clients, bits)
        wanted = Fraction(z) * Fraction(clip_norm) / Fraction(Lattice(clip_norm, bits).step)
        assert share**2 * clients >= wanted**2
        assert share == 1 or (share - 1) ** 2 * clients < wanted**2
        assert NoiseShares(clients, lattice_bits=bits).least_stddev(z) <= share


def test_shares_are_charged_by_their_steps_and_cost_more_where_these_are_few() -> None:
    [(event, _)] = mechanism_events(SHARED, ROUNDS)
    assert event == DiscreteGaussianShares(2.0, 3, math.ceil(2 * 2**12 / math.sqrt(3)), DIM)
    of_many = [Mechanism(Identity(ROUNDS), PATTERN, 2.0, NoiseShares(10**6, 10**6, bits)) for bits in (8, 24)]
    coarse, fine = (guarantee(mechanism, 1e-6).epsilon for mechanism in of_many)
    # With a share of one step the excess is that of a million of them.
    assert mechanism_events(of_many[0], 1)[0][0].share_stddev == 1
    assert coarse > 1.5 * fine


def test_a_promise_of_holders_and_a_setting_is_read_back_as_it_was() -> None:
    record = HELD.record()
    assert (record["noise_by"], record["setting"]) == ("holders", SETTING)
    again = read_back(HELD)
    assert (again.noise_by, again.setting) == ("holders", SETTING)
    assert again.record() == record
    shared = Promise(ROUNDS, SHARED)
    assert shared.record()["mechanism"]["shares"] == {"clients": 3, "dim": DIM, "lattice_bits": 12}
    assert read_back(shared).mechanism == SHARED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mechanism": None}, "a run without a mechanism has no noise"),
        ({"mechanism": SHARED}, "the clients bring the noise along already"),
        ({"setting": ""}, "say in one line who is trusted"),
        ({"setting": "two\nlines"}, "must be a text of one line"),
    ],
)
def test_a_promise_that_contradicts_itself_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(HELD, **change)


def test_a_plan_passes_on_what_it_promises_and_refuses_what_the_promise_does() -> None:
    words = {"further": (Assumption("clients clip", "operator"),), "not_covered": ("the ciphertexts' number",)}
    promised = plan(BANDED, noise_by="holders", setting=SETTING, **words).promise()
    assert (promised.noise_by, promised.setting, promised.further) == ("holders", SETTING, words["further"])
    assert promised.not_covered == words["not_covered"]
    with pytest.raises(ConfigError, match="setting: is missing"):
        plan(BANDED, noise_by="holders")
    with pytest.raises(ConfigError, match="has no noise to add"):
        RunPlan(ROUNDS, PATTERN, 3, noise_by="holders", setting=SETTING)
    with pytest.raises(ConfigError, match=r"lattice_bits = 24: mechanism\.shares is for 12"):
        RunPlan(ROUNDS, PATTERN, 3, SHARED, clip_norm=CLIP)
    assert RunPlan(ROUNDS, PATTERN, 3, SHARED, clip_norm=CLIP, lattice_bits=12).promise().lattice_bits == 12
    assert "lattice_bits" not in plan(BANDED).promise().settings
    assert plan(BANDED, lattice_bits=16).promise().settings["lattice_bits"] == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"setting": "another"}, "setting was .* is 'another'"),
        ({"noise_by": "server"}, "noise_by was 'holders', is 'server'"),
        ({"settings": {"clip_norm": CLIP, "lattice_bits": 16}}, r"settings\.lattice_bits was None, is 16"),
    ],
)
def test_a_run_does_not_go_on_under_another_promise(tmp_path: Path, change: dict, message: str) -> None:
    opened(locked(tmp_path), HELD)
    changed = replace(HELD, **change)
    with pytest.raises(LedgerError, match=message):
        ReleasePath(changed, DIM, clients=CLIENTS, store=RunStore(tmp_path), noise_in_sums=changed.noise_in_sums)
    opened(RunStore(tmp_path), HELD)


def test_the_statement_says_who_is_trusted_with_what_and_who_adds_the_noise() -> None:
    answer = HELD.after(ROUNDS, 1e-5)
    text = answer.statement(RunFacts(clip_norm=CLIP, heads=("a" * 64,)))
    lines = text.splitlines()
    assert f"(1) Setting: {SETTING}." in lines
    assert "operator receives" not in text
    [noise] = [line for line in lines if ") Noise:" in line]
    assert 0 <= answer.clip_noise_multiplier * CLIP - float(noise.split("at least ")[1].split(";")[0]) < 1e-6
    assert "each share holder adds all of it from a key of its own" in noise
    assert f"- {HOLDERS_ADD}" in lines
    told = answer.as_json()
    assert (told["setting"], told["noise_by"]) == (SETTING, "holders")
    usual = PLAIN.after(ROUNDS, 1e-5)
    assert usual.epsilon == answer.epsilon
    assert "(1) Setting: central: the operator receives" in usual.statement()
    assert "holder" not in usual.statement(RunFacts(clip_norm=CLIP))


def test_of_several_runs_each_states_its_own_setting(tmp_path: Path) -> None:
    for name, promise in (("held", HELD), ("plain", PLAIN), ("other", replace(HELD, setting="one owner has the key"))):
        path = opened(locked(tmp_path / name), promise)
        path.abort(path.begin([0], total(), CLIP))
    recorded = {name: read_run(tmp_path / name) for name in ("held", "plain", "other")}
    charged = {name: cost_of_run(run.chain, run.promise, run.history) for name, run in recorded.items()}

    def stated(*names: str) -> str:
        costs = tuple(spent(recorded[name].promise, recorded[name].history).guarantee for name in names)
        facts = RunFacts(heads=tuple(recorded[name].chain.head for name in names), runs=costs)
        return compose_runs([charged[name] for name in names], 1e-5).statement(facts)

    for setting in (SETTING, "one owner has the key"):
        assert f"; setting: {setting}\n" in stated("held", "other")
    assert "that of each run where it is named below; of the others central: the operator receives" in stated("held", "plain")
    assert str(HOLDERS_ADD) in stated("held", "plain")
    # What a later run, or an account without these folders, is told of each.
    assert (charged["held"].further, charged["plain"].further) == ((HOLDERS_ADD,), ())
    assert compose_runs([charged["held"]], 1e-5).setting == SETTING
    assert compose_runs([charged["held"], charged["plain"]], 1e-5).setting.startswith("that of each run")
    assert compose_runs([charged["plain"]], 1e-5).setting == ""


def test_noise_that_nobody_answers_for_and_noise_that_nobody_promised_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no share holder adds noise here, so that bare sums.*noise_in_sums=True"):
        ReleasePath(HELD, DIM, clients=CLIENTS)
    with pytest.raises(ConfigError, match="no client adds noise here"):
        ReleasePath(Promise(ROUNDS, SHARED), DIM, clients=CLIENTS)
    for bare in (PLAIN, Promise(ROUNDS, None)):
        with pytest.raises(ConfigError, match="noise_in_sums = True: by its promise"):
            ReleasePath(bare, DIM, clients=CLIENTS, noise_in_sums=True)


def test_the_path_makes_no_rows_where_holders_add_them_and_every_start_has_a_key(tmp_path: Path) -> None:
    path = opened(locked(tmp_path), HELD)
    assert path._noise is None
    ticket = path.begin([0], total(5), CLIP)
    row = path.row(ticket)
    assert row is None
    path.commit(ticket, total(5).open(row))
    path.begin([1], total(), CLIP)
    again = opened(RunStore(tmp_path), HELD)
    assert again.ledger.rounds == ("committed", "aborted")
    assert next(again.released(0, 1)).tolist() == [5 * Lattice(CLIP).step] * DIM
    assert len({epoch.key for epoch in again.ledger.history.epochs}) == 2
    (tmp_path / "guarantee.json").write_text(json.dumps(HELD.after(ROUNDS, HELD.delta).as_json()))
    verdict = verify(tmp_path)
    assert verdict.ok, verdict.checks


def test_holders_noise_lies_on_the_lattice_in_an_experiment_as_well_and_a_round_left_open_is_aborted(tmp_path: Path) -> None:
    simulated = replace(HELD, simulation=True)
    path = opened(locked(tmp_path), simulated)
    with pytest.raises(LedgerError, match="form it on Lattice"):
        path.begin([0], PlainSum(torch.zeros(DIM, dtype=torch.float64), {}), CLIP)
    path.begin([0], total(), CLIP)
    # Nobody encrypts the same numbers twice alike, so that the very same round cannot come again.
    assert opened(RunStore(tmp_path), simulated).ledger.rounds == ("aborted",)


def test_room_is_kept_for_the_noise_of_all_holders() -> None:
    loud = replace(HELD, mechanism=Mechanism(Identity(ROUNDS), PATTERN, 1e6))
    ReleasePath(replace(loud, noise_by="server"), DIM, clients=CLIENTS)
    with pytest.raises(ConfigError, match="is not exact on the lattice"):
        opened(promise=loud)
    opened(promise=replace(loud, mechanism=Mechanism(Identity(ROUNDS), PATTERN, 1e5)))


def test_sums_and_releases_lie_on_the_lattice_that_was_promised() -> None:
    coarse = replace(PLAIN, settings={"clip_norm": CLIP, "lattice_bits": 12})
    path = opened(promise=coarse)
    with pytest.raises(LedgerError, match=r"form it on Lattice\(0\.5, bits=12\)"):
        path.begin([0], total(), CLIP)
    ticket = path.begin([0], total(3, bits=12), CLIP)
    release = total(3, bits=12).open(path.row(ticket))
    with pytest.raises(LedgerError, match="off the lattice"):
        path.commit(ticket, release + Lattice(CLIP, 13).step)
    path.commit(ticket, release)
    fine = opened(promise=PLAIN)
    with pytest.raises(LedgerError, match=r"form it on Lattice\(0\.5\),"):
        fine.begin([0], total(bits=12), CLIP)
    shared = opened(promise=Promise(ROUNDS, SHARED))
    with pytest.raises(LedgerError, match="bits=12"):
        shared.begin([0], total(), CLIP)
    shared.begin([0], total(bits=12), CLIP)


class Held(LatticeSum):
    """A sum to which two holders add a row each, of streams that they can draw again."""

    def __init__(self, bare: LatticeSum, rows: Sequence[torch.Tensor]) -> None:
        noise = sum((row * CLIP / bare.lattice.step).round().to(torch.int64) for row in rows)
        super().__init__(bare.total + noise, bare.lattice, bare.statistics)


class Holders(Population):
    """Clients that send nothing, and two holders."""

    clients: Sequence[int] = range(CLIENTS)
    noise_in_sums = True

    def __init__(self, mechanism: Mechanism) -> None:
        streams = [NoiseStream(mechanism, DIM, source=SimulationSource(seed)) for seed in (1, 2)]
        self.drawn = np.stack([[stream.next_row().numpy() for _ in range(ROUNDS)] for stream in streams])

    def collect(self, cohort, model, clip_norm, round_index, split=None):  # another implementation
        return Held(total(), [torch.from_numpy(rows[round_index]) for rows in self.drawn])


def test_a_run_whose_holders_add_correlated_noise_releases_the_sum_of_both_streams(tmp_path: Path) -> None:
    planned = plan(BANDED, noise_by="holders", setting=SETTING, expected_cohort_size=1)
    holders, model = Holders(planned.mechanism), nn.Linear(3, 2)
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    until(train(planned, holders, model, RunStore(tmp_path)), 3)
    model = nn.Linear(3, 2)
    results = list(train(planned, holders, model, RunStore(tmp_path)))
    assert [result.round_index for result in results] == [3, 4, 5]
    moved = nn.utils.parameters_to_vector(model.parameters()).detach() - before
    expected = torch.from_numpy(holders.drawn.sum(axis=(0, 1))) * CLIP
    torch.testing.assert_close(moved.to(torch.float64), expected, rtol=0, atol=1e-5)


def test_a_population_and_a_plan_that_do_not_agree_on_the_noise_are_refused() -> None:
    planned = plan(BANDED, noise_by="holders", setting=SETTING)
    with pytest.raises(ConfigError, match="no share holder adds noise here"):
        next(train(planned, silent(), nn.Linear(3, 2)))
    with pytest.raises(ConfigError, match="noise_in_sums = True"):
        next(train(plan(BANDED), Holders(planned.mechanism), nn.Linear(3, 2)))
    with pytest.raises(LedgerError, match="bits=16"):
        next(train(plan(BANDED, lattice_bits=16), silent(), nn.Linear(3, 2)))


class Closed(LatticeSum):
    """A sum whose holders do not open it."""

    def open(self, row):
        raise SumNotOpenedError("nothing was decrypted: holder 2 answered falsely", ("holder 2",))


class Stubborn(Population):
    """Clients whose sums stay closed in some rounds, or are not even formed in others."""

    clients: Sequence[int] = range(CLIENTS)

    def __init__(self, closed: set[int] = frozenset(), missing: set[int] = frozenset(), bits: int = 24) -> None:
        self.closed, self.missing, self.bits = closed, missing, bits

    def collect(self, cohort, model, clip_norm, round_index, split=None):  # another implementation
        if round_index in self.missing:
            raise SumNotOpenedError("1 of 3 contributions came: nothing was decrypted", ("client 4",))
        bare = total(round_index, bits=self.bits)
        return Closed(bare.total, bare.lattice, {"train_loss": 1.0}) if round_index in self.closed else bare


@pytest.mark.parametrize("bits", [24, 10])
def test_a_round_whose_sum_stays_closed_is_aborted_and_the_run_goes_on(tmp_path: Path, bits: int) -> None:
    planned, model = plan(BANDED, lattice_bits=bits), nn.Linear(3, 2)
    vectors, results = [nn.utils.parameters_to_vector(model.parameters()).detach().clone()], []
    for result in train(planned, Stubborn({1}, {3}, bits), model, RunStore(tmp_path)):
        vectors.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
        results.append(result)
    assert [result.released for result in results] == [True, False, True, False, True, True]
    stood = [torch.equal(*pair) for pair in itertools.pairwise(vectors)]
    assert stood == [False, True, False, True, False, False]
    assert results[1].fault == "nothing was decrypted: holder 2 answered falsely"
    assert results[3].fault.startswith("1 of 3 contributions came")
    assert (results[0].fault, results[1].statistics, results[3].statistics) == ("", {"train_loss": 1.0}, {})
    # Charged like any other, and their clients took part.
    assert [result.epsilon for result in results] == [planned.promise().after(n, 1e-5).epsilon for n in range(1, 7)]
    history = read_run(tmp_path).history
    assert [entry.state == "committed" for entry in history.rounds] == [result.released for result in results]
    assert all(entry.clients == 3 for entry in history.rounds)
    assert len({entry.total for entry in history.rounds}) == ROUNDS
    assert RunStore(tmp_path).released() == [0, 2, 4, 5]


def test_a_run_with_aborted_rounds_is_resumed_where_it_was(tmp_path: Path) -> None:
    planned, model = plan(BANDED), nn.Linear(3, 2)
    first = nn.utils.parameters_to_vector(model.parameters()).detach().to(torch.float64)
    until(train(planned, Stubborn({1}, {3}), model, RunStore(tmp_path)), 4)
    again = nn.Linear(3, 2)
    results = list(train(planned, Stubborn(), again, RunStore(tmp_path)))
    assert [result.round_index for result in results] == [4, 5]
    # From the releases alone, those of the aborted rounds missing.
    store, history = RunStore(tmp_path), read_run(tmp_path).history
    moved = sum(store.load_release(t, history.rounds[t].release, DIM) for t in store.released()) / 3
    found = nn.utils.parameters_to_vector(again.parameters()).detach().to(torch.float64)
    torch.testing.assert_close(found - first, moved, rtol=0, atol=1e-5)


def test_three_aborted_rounds_in_a_row_stop_the_run_and_nothing_is_lost_and_two_do_not(tmp_path: Path) -> None:
    planned = plan(BANDED)
    results = list(train(planned, Stubborn({0, 1}, {3, 4}), nn.Linear(3, 2)))
    assert [result.released for result in results] == [False, False, True, False, False, True]
    run = train(planned, Stubborn({2, 3}, {1}), nn.Linear(3, 2), RunStore(tmp_path))
    assert [next(run).released for _ in range(4)] == [True, False, False, False]
    with pytest.raises(SumNotOpenedError, match=r"answered falsely \(the last 3 rounds were aborted") as stopped:
        next(run)
    assert stopped.value.who == ("holder 2",)
    rest = list(train(planned, Stubborn({4}), nn.Linear(3, 2), RunStore(tmp_path)))
    assert [(result.round_index, result.released) for result in rest] == [(4, False), (5, True)]


def test_metrics_and_the_screen_show_an_aborted_round_and_name_nobody_in_public(tmp_path: Path) -> None:
    tiny = {"data": {"clients": 10}, "training": {"rounds": 4, "cohort_size": 5}, "privacy": {"noise_multiplier": 1.0}}
    begun = RunInFolder.begun(build(resolve(tiny)), tmp_path / "run")
    population = begun.run.population
    collect = population.collect

    def closed_in_the_third(cohort, model, clip_norm, round_index, split=None):
        bare = collect(cohort, model, clip_norm, round_index)
        return Closed(bare.total, bare.lattice, bare.statistics) if round_index == 2 else bare

    population.collect = closed_in_the_third
    yielded = list(begun.rounds(population))
    for terminal in (False, True):
        told = io.StringIO()
        with _progress(Console(file=told, force_terminal=terminal, width=200, highlight=False), 4, 0, "example") as show:
            for row in (*yielded[:3], {**yielded[3], "evaluation": {"loss": {"value": 1.0, "standard_error": 0.1}}}):
                show(row)
        assert "examples' loss 1 ± 0.1" in told.getvalue()
        assert "round 3/4  aborted, its privacy cost stays spent: nothing was decrypted: holder 2" in told.getvalue()
        assert told.getvalue().count("aborted, its privacy cost stays spent") == 1
    rows, _ = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row.get("released", True) for row in rows] == [True, True, False, True]
    assert rows[2]["fault"] == "nothing was decrypted: holder 2 answered falsely"
    assert "fault" in rows[2]["private"]
    assert not any("fault" in row or "fault" in row["private"] for row in (rows[0], rows[1], rows[3]))
    verdict = verify(tmp_path / "run")
    assert verdict.ok, verdict.checks
