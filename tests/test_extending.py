"""A finished run goes on: what both cost together, what the second one begins with, and what nobody can slip in."""

import hashlib
import itertools
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from safetensors.torch import load_file, save_file
from torch import nn

import recorded_runs
from dying import Dying
from hubbub import AdaptiveClipping, verify
from hubbub._util import strict_json
from hubbub.cli.runs import close
from hubbub.errors import ConfigError, LedgerError, RunFolderError
from hubbub.ledger import Chain, compose_runs, run_charges, spent
from hubbub.ledger.promise import Extends
from hubbub.mechanism import Mechanism, gaussian
from hubbub.mechanism.participation import MinSeparation, Participation, PoissonSampling
from hubbub.mechanism.strategies import Identity, Strategy, toeplitz
from hubbub.noise import SecureSource
from hubbub.training import LatticeSum, RunPlan, RunStore, ServerOptimizer, extended, train
from hubbub.training.run_folder.record import read_run
from hubbub.training.run_folder.state import Segments
from hubbub.training.simulation.functional import FlatModel
from hubbub.training.warm_start import extending, register
from small_runs import flat
from ways import CLIENTS, COHORT, RandomSums, zeros

PATTERN, EVEN = MinSeparation(3, 2), MinSeparation(2, 2)


def plan(
    strategy: Strategy, participation: Participation = PATTERN, noise_multiplier: float = 2.0, **changes: object
) -> RunPlan:
    settings = {"clip_norm": 0.5, "server": ServerOptimizer("fedavgm", 0.5, 0.8), **changes}
    return RunPlan(strategy.rounds, participation, COHORT, Mechanism(strategy, participation, noise_multiplier), **settings)


# Six rounds, then four more of other noise for another pattern.
FIRST = plan(toeplitz.square_root(6, 3))
SECOND = plan(Identity(4), EVEN, 3.0)


def trained(folder: Path, plan: RunPlan = FIRST, seed: int = 0, rounds: int | None = None) -> torch.Tensor:
    """A run, to its end or for some rounds; answers with its model, ``(8,)``."""
    module = zeros()
    _loop(plan, module, folder, seed, rounds)
    return flat(module)


def gone_on(
    first: Path, folder: Path, plan: RunPlan = FIRST, following: RunPlan = SECOND, seed: int = 0, rounds: int | None = None
) -> torch.Tensor:
    """What goes on from a finished run, to its end or for some rounds; again for one that was interrupted."""
    module = zeros()
    _loop(extended(RunStore(first), plan, following, module, RunStore(folder)), module, folder, seed, rounds)
    return flat(module)


def _loop(plan: RunPlan, module: torch.nn.Module, folder: Path, seed: int, rounds: int | None) -> None:
    run = train(plan, RandomSums(seed), module, RunStore(folder))
    list(itertools.islice(run, rounds))
    run.close()


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A run that has finished."""
    trained(tmp_path / "one")
    return tmp_path / "one"


@pytest.fixture
def two(one: Path, tmp_path: Path) -> Path:
    """One that went on from it, and has finished, too."""
    gone_on(one, tmp_path / "two")
    return tmp_path / "two"


def rewritten(folder: Path, **changes: object) -> None:
    """A ledger whose promise says something else, its hashes made anew, as whoever can write to the folder can."""
    recorded_runs.rewritten(folder, lambda records: records[0].update(changes))


def of_seed(plan: RunPlan, seed: int) -> RunPlan:
    """An experiment with a known seed."""
    return replace(plan, noise="simulation", seed=seed)


COINS = plan(Identity(5), PoissonSampling(COHORT / CLIENTS), 1.1)


def continuity(folder: Path) -> str:
    """What is wrong with it by ``verify``; empty where nothing is."""
    (found,) = (check for check in verify(folder).checks if check.name == "continuity")
    return "" if found.ok else found.detail


def epsilon(folder: Path) -> float:
    run = read_run(folder)
    return spent(run.promise, run.history).guarantee.epsilon


@pytest.mark.parametrize("name", ["server", "seed", "expected_cohort_size", "clip_norm", "participation"])
def test_a_setting_of_ones_own_does_not_take_the_place_of_a_term(name: str) -> None:
    mechanism = Mechanism(Identity(4), MinSeparation(2, 2), 1.0)
    with pytest.raises(ConfigError, match=f"settings: '{name}' is a term of the plan itself; name yours otherwise"):
        RunPlan(4, MinSeparation(2, 2), COHORT, mechanism, 0.5, settings={name: "box-3"})


def test_acc_12_what_goes_on_states_both_mechanisms_together(one: Path, two: Path, tmp_path: Path) -> None:
    mus = [p.promise().after(p.rounds, 1e-5).gdp_mu for p in (FIRST, SECOND)]
    both = gaussian.epsilon(1e-5, 1 / math.hypot(*mus))
    assert epsilon(two) == pytest.approx(both, rel=1e-9)
    assert epsilon(two) > epsilon(one) == FIRST.promise().after(6, 1e-5).epsilon
    # From the two ledgers, and from the second alone, it is the same.
    charges = run_charges([read_run(tmp_path / name) for name in ("one", "two")])
    assert compose_runs(charges, 1e-5).epsilon == pytest.approx(both, rel=1e-9)


@pytest.mark.slow
def test_acc_9_acc_12_random_cohorts_compose_as_dp_accounting_says(tmp_path: Path) -> None:
    trained(tmp_path / "one", COINS)
    gone_on(tmp_path / "one", tmp_path / "two", COINS, plan(Identity(3), PoissonSampling(2 / CLIENTS), 0.9))
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for z, q, rounds in ((1.1, COHORT / CLIENTS, 5), (0.9, 2 / CLIENTS, 3)):
        event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
        accountant.compose(event, rounds)
    assert epsilon(tmp_path / "two") == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def test_acc_12_a_third_run_counts_the_first_though_its_folder_is_gone(one: Path, two: Path, tmp_path: Path) -> None:
    three = tmp_path / "three"
    shutil.rmtree(one)
    # Whatever else extended it may count, too.
    gone = r"two: extends the run of ledger .*, which is not in"
    with pytest.raises(RunFolderError, match=rf"{gone} .*one, and the cost of all else"):
        gone_on(two, three, SECOND, SECOND)
    known = json.loads((two / "segments.json").read_text())
    (two / "segments.json").unlink()
    with pytest.raises(RunFolderError, match=rf"{gone} .*segments\.json, and the cost"):
        gone_on(two, three, SECOND, SECOND)
    (two / "segments.json").write_text(json.dumps({**known, "goes_on_from": None}))
    gone_on(two, three, SECOND, SECOND)
    mus = [p.promise().after(p.rounds, 1e-5).gdp_mu for p in (FIRST, SECOND, SECOND)]
    assert epsilon(three) == pytest.approx(gaussian.epsilon(1e-5, 1 / math.hypot(*mus)), rel=1e-9)
    assert len(read_run(three).promise.earlier) == 2
    assert not continuity(two)
    assert not continuity(three)


def test_acc_12_a_list_made_by_hand_leaves_no_branch_of_an_earlier_run_out(one: Path, two: Path, tmp_path: Path) -> None:
    gone_on(one, tmp_path / "three")
    gone_on(two, four := tmp_path / "four", SECOND, SECOND)
    named = [read_run(folder).chain.hashes[0] for folder in (one, two, four)]
    with pytest.raises(RunFolderError, match=r"four: is related to the run in .*three already, whose cost is not counted here"):
        register(four, tmp_path / "five", named)


def test_acc_12_what_went_on_before_is_charged_to_what_goes_on_now(one: Path, two: Path, tmp_path: Path) -> None:
    three = tmp_path / "three"
    gone_on(one, three)
    mus = [p.promise().after(p.rounds, 1e-5).gdp_mu for p in (FIRST, SECOND, SECOND)]
    assert epsilon(three) == pytest.approx(gaussian.epsilon(1e-5, 1 / math.hypot(*mus)), rel=1e-9)
    # Nor does a branch of a branch forget the others.
    gone_on(two, tmp_path / "four", SECOND, SECOND)
    assert len(read_run(tmp_path / "four").promise.earlier) == 3
    assert not continuity(tmp_path / "four")
    with pytest.raises(ConfigError, match="is not among them"):
        gone_on(one, tmp_path / "five", following=replace(SECOND, earlier=run_charges([read_run(one)])))


def test_a_branch_that_may_go_on_or_that_is_gone_cannot_be_charged(one: Path, tmp_path: Path) -> None:
    two, three = tmp_path / "two", tmp_path / "three"
    gone_on(one, two, rounds=2)
    with pytest.raises(LedgerError, match=r"two: 2 of the 4 rounds that it promised are done"):
        gone_on(one, three)
    two.rename(tmp_path / "moved")
    with pytest.raises(RunFolderError, match=r"was extended in .*two, which is not there"):
        gone_on(one, three)
    assert not (three / "ledger.jsonl").exists()
    (tmp_path / "moved").rename(two)
    (two / "ledger.jsonl").rename(tmp_path / "ledger")
    (two / "config.toml").touch()
    with pytest.raises(RunFolderError, match="has not begun its first round"):
        gone_on(one, three)
    (tmp_path / "ledger").rename(two / "ledger.jsonl")
    gone_on(one, two)
    gone_on(one, three)
    assert len(read_run(three).promise.earlier) == 2


def test_two_that_go_on_at_one_time_do_not_both_begin(one: Path, tmp_path: Path) -> None:
    a, b = zeros(), zeros()
    going = extended(RunStore(one), FIRST, SECOND, a, RunStore(tmp_path / "two"))
    assert going.earlier == run_charges([read_run(one)])
    with pytest.raises(RunFolderError, match=r"two, which is not there"):
        extended(RunStore(one), FIRST, SECOND, b, RunStore(tmp_path / "three"))


def test_acc_12_a_branch_that_was_deleted_is_not_begun_again_as_if_it_had_never_been(one: Path, two: Path) -> None:
    shutil.rmtree(two)
    with pytest.raises(RunFolderError, match=r"was extended in .*two, of which nothing is left"):
        gone_on(one, two)
    assert not two.exists()


@pytest.mark.parametrize("server", ["fedavg", "fedavgm", "fedadam"])
def test_training_goes_on_as_if_it_had_never_stopped(server: str, tmp_path: Path) -> None:
    optimizer = ServerOptimizer(server, 0.5, 0.8)
    first, second = (replace(p, server=optimizer) for p in (FIRST, SECOND))
    ended = trained(tmp_path / "one", first)
    model = zeros()
    extended(RunStore(tmp_path / "one"), first, second, model, RunStore(tmp_path / "two"))
    assert flat(model).numpy().tobytes() == ended.numpy().tobytes()
    found = gone_on(tmp_path / "one", tmp_path / "two", first, second)
    # By one optimizer and the releases on disk.
    oracle = FlatModel(zeros())
    steps = optimizer.build(oracle.vector)
    for plan, store in ((first, RunStore(tmp_path / "one")), (second, RunStore(tmp_path / "two"))):
        for round_index in range(plan.rounds):
            release = store.parse_release(round_index, store.release_content(round_index))
            oracle.vector.grad = (release[: oracle.dim] / -plan.expected_cohort_size).to(oracle.vector.dtype)
            steps.step()
    assert found.numpy().tobytes() == oracle.vector.detach().numpy().tobytes()


def test_another_optimizer_begins_anew(one: Path, tmp_path: Path) -> None:
    gone_on(one, tmp_path / "two", following=replace(SECOND, server=ServerOptimizer("fedadam", 0.1)))
    assert read_run(tmp_path / "two").promise.terms.extends.optimizer == ""
    assert list(load_file(tmp_path / "two/state/initial.safetensors")) == ["model"]


def test_a_clip_norm_that_moved_is_found_again_from_the_releases(tmp_path: Path) -> None:
    moving = plan(Identity(6), EVEN, clip_norm=AdaptiveClipping(0.5))
    model = zeros()
    results = list(train(moving, RandomSums(0), model, RunStore(tmp_path / "one")))
    fixed = replace(SECOND, clip_norm=results[-1].clip_norm)
    gone_on(tmp_path / "one", tmp_path / "two", moving, fixed)
    again = replace(moving, mechanism=moving.mechanism, clip_norm=AdaptiveClipping(results[-1].clip_norm))
    gone_on(tmp_path / "one", tmp_path / "three", moving, again)
    assert not continuity(tmp_path / "three")
    # With the plan of before it begins at the last value, and resumes so.
    store = RunStore(tmp_path / "one")
    last = moving.clip_norms.following(results[-1].clip_norm, store.parse_release(5, store.release_content(5)))
    for _ in range(2):
        gone_on(tmp_path / "one", tmp_path / "four", moving, moving, rounds=2)
    assert read_run(tmp_path / "four").promise.settings["adaptive_clipping"]["initial_clip_norm"] == last


def test_an_interrupted_one_goes_on_without_the_folder_of_the_finished_one(tmp_path: Path) -> None:
    first, second = of_seed(FIRST, 3), of_seed(SECOND, 3)
    trained(tmp_path / "one", first)
    whole = gone_on(tmp_path / "one", tmp_path / "whole", first, second)
    shutil.rmtree(tmp_path / "whole")
    Segments().write(tmp_path / "one")
    gone_on(tmp_path / "one", tmp_path / "two", first, second, rounds=2)
    shutil.rmtree(tmp_path / "one")
    found = gone_on(tmp_path / "one", tmp_path / "two", first, second)
    assert found.numpy().tobytes() == whole.numpy().tobytes()
    assert not continuity(tmp_path / "two")


def test_a_closed_run_goes_on_by_keys_of_its_own(tmp_path: Path) -> None:
    ended = trained(tmp_path / "one")
    close(tmp_path / "one", early=False)
    assert not RunStore(tmp_path / "one").secret_files()
    model = zeros()
    extended(RunStore(tmp_path / "one"), FIRST, SECOND, model, RunStore(tmp_path / "two"))
    assert flat(model).equal(ended)
    gone_on(tmp_path / "one", tmp_path / "two")
    assert not continuity(tmp_path / "two")
    # To close it later changes nothing of what was charged.
    gone_on(tmp_path / "two", tmp_path / "three", SECOND, SECOND)
    close(tmp_path / "two", early=False)
    assert not continuity(tmp_path / "three")


def test_rng_5_the_noise_that_follows_is_of_other_keys(one: Path, two: Path, tmp_path: Path) -> None:
    keys = [{p.read_bytes() for p in (tmp_path / name / "state/keys").iterdir()} for name in ("one", "two")]
    assert len(keys[0] | keys[1]) == 4
    assert not keys[0] & keys[1]


def test_rng_5_an_experiment_that_goes_on_draws_other_noise_and_cohorts(tmp_path: Path) -> None:
    # The sums of both are the same, round by round, and the noise is independent: only that of one seed would be, too.
    first = of_seed(plan(Identity(6), EVEN), 5)
    second = replace(first, rounds=4)
    trained(tmp_path / "one", first)
    gone_on(tmp_path / "one", tmp_path / "two", first, second)
    gone_on(tmp_path / "two", tmp_path / "three", second, second)
    gone_on(tmp_path / "one", tmp_path / "branch", first, second)
    stores = [RunStore(tmp_path / name) for name in ("one", "two", "three", "branch")]
    releases = [[store.parse_release(t, store.release_content(t)) for t in range(4)] for store in stores]
    for one, other in itertools.combinations(releases, 2):
        assert all((x != y).all() for x, y in zip(one, other, strict=True))
    assert len({read_run(store.folder).promise.settings["seed"] for store in stores}) == 4


REFUSED: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "a simulation of a real run": (lambda: (FIRST, replace(SECOND, noise="simulation")), "'simulation': the run in .* had"),
    "another unit": (lambda: (FIRST, replace(SECOND, privacy_unit="example")), "hid each 'client'"),
    "another relation": (lambda: (FIRST, replace(SECOND, neighboring_relation="replace-one")), "stated 'zero-out'"),
    "no mechanism": (lambda: (FIRST, replace(SECOND, mechanism=None, clip_norm=None)), "nothing bounds both"),
    "another plan's optimizer": (lambda: (replace(FIRST, server=ServerOptimizer()), SECOND), "server = .*by its ledger"),
    "another plan's clip norm": (lambda: (replace(FIRST, clip_norm=0.25), SECOND), "clip_norm = 0.25.*by its ledger"),
    "another plan's cohorts": (lambda: (replace(FIRST, expected_cohort_size=4), SECOND), "expected_cohort_size = 4"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_longer_one_training_is_refused(one: Path, what: str, tmp_path: Path) -> None:
    plans, words = REFUSED[what]
    first, second = plans()
    with pytest.raises(ConfigError, match=words):
        gone_on(one, tmp_path / "two", first, second)
    assert not (tmp_path / "two" / "ledger.jsonl").exists()
    assert not (one / "segments.json").exists()


def test_without_its_releases_nobody_can_show_what_a_model_was_made_of(one: Path, tmp_path: Path) -> None:
    (one / "state/releases/2.safetensors").unlink()
    with pytest.raises(RunFolderError, match="the release of round 2 is not there"):
        gone_on(one, tmp_path / "two")


def test_a_model_that_no_record_binds_does_not_stand_for_releases_that_were_not_kept(tmp_path: Path) -> None:
    list(train(FIRST, RandomSums(0), zeros(), RunStore(tmp_path / "one", keep_releases=False)))
    with pytest.raises(RunFolderError, match="releases were not kept, and no record of its ledger binds the checkpoint"):
        gone_on(tmp_path / "one", tmp_path / "two")


def test_acc_12_a_plan_that_goes_on_without_the_charge_is_no_plan(one: Path) -> None:
    run = read_run(one)
    extends = Extends(run.chain.hashes[0], run.chain.head, "0" * 64)
    with pytest.raises(ConfigError, match="is not among the earlier runs"):
        extending(SECOND, extends)
    with pytest.raises(ConfigError, match="is not among the earlier runs"):
        extending(replace(SECOND, earlier=run_charges([run])), replace(extends, head="1" * 64))


@pytest.mark.parametrize(
    "stated", [{}, [], "x", {"ledger": "0" * 64}, {**dict.fromkeys(("ledger", "head", "model"), "0" * 63)}]
)
def test_a_promise_that_says_nonsense_of_where_it_goes_on_from_is_none(stated: object) -> None:
    with pytest.raises(ValueError, match="extends"):
        Extends.of({"extends": stated})


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"goes_on_from":1,"went_on_in":[]}', b'{"goes_on_from":null}'])
def test_a_file_that_does_not_say_which_runs_belong_together_is_refused(one: Path, content: bytes, tmp_path: Path) -> None:
    (one / "segments.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"segments\.json"):
        gone_on(one, tmp_path / "two")


def other_model(path: Path) -> None:
    tensors = load_file(path)
    tensors["model"][0] += 1e-3
    save_file(tensors, path)


def test_a_first_model_that_was_put_there_is_refused_before_it_is_gone_on_from(one: Path, tmp_path: Path) -> None:
    other_model(one / "state/initial.safetensors")
    with pytest.raises(RunFolderError, match="is not what the ledger says that the run began with"):
        gone_on(one, tmp_path / "two")


@pytest.mark.parametrize("part", ["model", "optimizer.momentum_buffer"])
def test_acc_12_what_a_run_goes_on_with_cannot_be_exchanged(one: Path, part: str, tmp_path: Path) -> None:
    two = tmp_path / "two"
    gone_on(one, two, rounds=2)
    tensors = load_file(two / "state/initial.safetensors")
    tensors[part][3] += 1
    save_file(tensors, two / "state/initial.safetensors")
    what = "is not the model that" if part == "model" else "does not hold the optimizer's state that"
    with pytest.raises(RunFolderError, match=what):
        gone_on(one, two)
    assert what in continuity(two)


def test_a_model_in_memory_that_is_not_the_finished_one_is_refused(one: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 20 trainable parameters, that of the run in .* 8"):
        extended(RunStore(one), FIRST, SECOND, nn.Linear(4, 4), RunStore(tmp_path / "two"))
    model = zeros()
    going = extended(RunStore(one), FIRST, SECOND, model, RunStore(tmp_path / "two"))
    with pytest.raises(RunFolderError, match="is not the model that"):
        next(train(going, RandomSums(0), zeros()))
    with pytest.raises(RunFolderError, match="is not the model that"):
        next(train(going, RandomSums(0), zeros(), RunStore(tmp_path / "elsewhere")))


def test_a_state_of_an_optimizer_that_nobody_promised_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one/state").mkdir(parents=True)
    planted = {"model": torch.zeros(8), "optimizer.momentum_buffer": torch.ones(8)}
    save_file(planted, tmp_path / "one/state/initial.safetensors")
    with pytest.raises(RunFolderError, match="this run begins by itself"):
        trained(tmp_path / "one")


def test_acc_12_what_was_laid_out_to_go_on_does_not_begin_by_itself(one: Path, tmp_path: Path) -> None:
    # Somebody trains the plan that was given in place of the one that was answered: the start would be charged to nobody.
    two = tmp_path / "two"
    module = zeros()
    extended(RunStore(one), FIRST, SECOND, module, RunStore(two))
    with pytest.raises(RunFolderError, match="is the model of a finished run, whose cost this run, which extends none"):
        next(train(SECOND, RandomSums(0), module, RunStore(two)))
    assert not (two / "ledger.jsonl").exists()
    gone_on(one, two)
    assert not continuity(two)


def test_acc_12_a_ledger_that_no_longer_says_where_it_went_on_from_is_seen_by_verify(two: Path) -> None:
    settings = read_run(two).chain.records[0]["settings"]
    rewritten(two, settings={name: value for name, value in settings.items() if name != "extends"}, earlier=[])
    assert "is the model of a finished run" in continuity(two)


def test_acc_12_verify_sees_a_branch_or_an_earlier_run_left_out_or_made_cheaper(one: Path, two: Path, tmp_path: Path) -> None:
    three, four = tmp_path / "three", tmp_path / "four"
    gone_on(one, three)
    gone_on(two, four, SECOND, SECOND)
    assert not continuity(three) + continuity(four)
    charges = {run.first: run.record() for run in read_run(three).promise.earlier}
    rewritten(three, earlier=[charges[read_run(one).chain.hashes[0]]])
    assert f"was extended in {two} before, whose cost is not counted here" in continuity(three)
    charges = {run.first: run.record() for run in read_run(four).promise.earlier}
    charges[read_run(one).chain.hashes[0]]["events"] = [{"event": "Gaussian", "count": 1, "noise_multiplier": 50.0}]
    rewritten(four, earlier=list(charges.values()))
    assert "is counted otherwise" in continuity(four)


def test_acc_12_a_ledger_that_was_changed_since_is_seen_by_verify(one: Path, two: Path) -> None:
    assert not continuity(two)
    ledger = (one / "ledger.jsonl").read_bytes()
    (one / "ledger.jsonl").write_bytes(ledger.replace(b'"commit"', b'"commut"', 1))
    assert "is no record of this ledger" in continuity(two)
    (one / "ledger.jsonl").write_bytes(b"".join(ledger.splitlines(keepends=True)[:-2]))
    assert "never had head" in continuity(two)
    (one / "ledger.jsonl").write_bytes(ledger)
    rewritten(one, delta=1e-4)
    assert "holds another run than the one that this run extends" in continuity(two)


def test_acc_12_a_charge_that_is_smaller_than_the_ledger_says_is_seen_by_verify(two: Path) -> None:
    record = read_run(two).chain.records[0]
    cheap = {**record["earlier"][0], "events": [{"event": "Gaussian", "count": 1, "noise_multiplier": 50.0}]}
    rewritten(two, earlier=[cheap])
    assert "is not counted as its ledger says" in continuity(two)
    (two / "ledger.jsonl").unlink()
    Chain(two / "ledger.jsonl").append({**record, "earlier": []})
    assert "is not counted" in continuity(two)


def test_a_checkpoint_of_another_model_in_the_finished_run_is_seen_by_verify(one: Path, two: Path) -> None:
    (kept,) = (one / "state").glob("checkpoint-*.safetensors")
    other_model(kept)
    manifest = strict_json.loads((one / "state/checkpoint.json").read_bytes())
    manifest["sha256"] = hashlib.sha256(kept.read_bytes()).hexdigest()
    (one / "state/checkpoint.json").write_bytes(strict_json.canonical(manifest))
    assert "holds another model than the one that this run began with" in continuity(two)


def told(watched: Dying, real: Callable[..., Any], arguments: Sequence[Any], answer: Any) -> None:
    if real.__qualname__ == "LatticeSum.open":
        total, row = arguments
        watched.tell("met", int(total.total.abs().sum()), row.numpy().tobytes().hex())
    if real.__qualname__ == "SecureSource.segments":
        watched.tell("drew", arguments[0]._key.hex(), arguments[1])


def test_cra_1_what_is_killed_while_it_goes_on_uses_no_noise_twice(one: Path, tmp_path: Path) -> None:
    second = replace(SECOND, rounds=3)
    whole = Dying(tmp_path / "whole.events", {LatticeSum: ["open"], SecureSource: ["segments"]}, told)
    with whole.watching():
        gone_on(one, tmp_path / "whole", following=second)
    steps = whole.step
    assert steps > 150
    keys_of_first = {p.read_bytes().hex() for p in (one / "state/keys").iterdir()}
    for step in range(1, steps, 29):
        place = tmp_path / str(step)
        shutil.copytree(one, place / "one")
        Segments().write(place / "one")
        dying = Dying(place / "events", {LatticeSum: ["open"], SecureSource: ["segments"]}, told)
        with dying.watching():
            dying.dies(step, lambda place=place, seed=step: gone_on(place / "one", place / "two", following=second, seed=seed))
            # What comes after has other data, so that a row that comes again meets another sum.
            dying.step = dying.deadly = 0
            gone_on(place / "one", place / "two", following=second, seed=1000 + step)
        assert not dying.told("error"), step
        rows = [row for _, row in dying.told("met")]
        assert len(set(rows)) == len(rows), f"a row of noise met two sums after step {step}"
        assert not {key for key, _ in dying.told("drew")} & keys_of_first
        states = [entry.state for entry in read_run(place / "two").history.rounds]
        assert len(states) == 3
        assert states.count("aborted") <= 1
        assert len(rows) <= 3, f"noise met a sum that was not charged, after step {step}"
        assert epsilon(place / "two") == pytest.approx(epsilon(tmp_path / "whole"), rel=1e-12)
        assert not continuity(place / "two")
        assert Segments.of(place / "one").went_on_in == (str((place / "two").resolve()),)
        shutil.rmtree(place)
