"""Means and variances as a private release of their own, and runs on inputs that they normalize."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conftest import raising
from hubbub import Mechanism, Plan, PoissonSampling, RunStore, SingleParticipation, accounting, load, verify
from hubbub.errors import BudgetError, ConfigError, DataError, LedgerError, RunFolderError
from hubbub.experiment import config as configs
from hubbub.experiment.build import build
from hubbub.experiment.engine.folder import RunInFolder
from hubbub.experiment.extending import require_same
from hubbub.experiment.planner import planned
from hubbub.experiment.sweep.grid import CELLS, Cell
from hubbub.experiment.sweep.results import choice, found
from hubbub.ledger.multi_run import compose_runs
from hubbub.mechanism.strategies import Identity
from hubbub.noise.sources import SimulationSource
from hubbub.report.summary import summary
from hubbub.training.aggregate import LatticeSum
from hubbub.training.moments import Moments, _Units, private_moments, read_moments
from hubbub.training.run_folder import NORMALIZATION
from recorded_runs import hubbub
from refusals import refused

SMALL = {"training__rounds": 3, "privacy__epsilon": 4.0, "data__normalization": "private", "model__name": "linear"}


def small(**changed: object) -> configs.Config:
    settings = {**SMALL, **changed}
    return configs.resolve(configs.overrides([f"{key.replace('__', '.')}={value}" for key, value in settings.items()]))


def released(folder: Path, clients: object, **terms: object) -> Moments:
    return private_moments(clients, RunStore(folder), **{"noise_multiplier": 1e-3, **terms})


def ended(folder: Path, **changed: object) -> RunInFolder:
    begun = RunInFolder.begun(build(small(**changed)), folder)
    list(begun.rounds(begun.run.population))
    return begun


@pytest.mark.parametrize("unit", ["example", "client"])
@pytest.mark.parametrize("participation", [PoissonSampling(1.0), SingleParticipation()], ids=["random", "pattern"])
def test_they_are_those_of_the_definition_up_to_the_noise(tmp_path: Path, unit: str, participation: object) -> None:
    scales, means = torch.tensor([[0.5, 1.0, 2.0], [3.0, 0.0, -1.0]])[:, :, None, None]
    inputs = torch.randn(400, 3, 2, 5) * scales + means
    clients = inputs if unit == "example" else list(inputs.split([10, 90, 300]))
    groups = inputs.split(1) if unit == "example" else clients
    mean = np.mean([group.numpy().mean((0, 2, 3)) for group in groups], axis=0)
    square = np.mean([(group.numpy() ** 2).mean((0, 2, 3)) for group in groups], axis=0)
    found = released(tmp_path / "m", clients, clip_norm=100.0, participation=participation)
    assert found.mean.numpy() == pytest.approx(mean, abs=0.2)
    assert found.variance.numpy() == pytest.approx(square - mean**2, abs=0.7)
    # A second call reads the release, and makes none.
    again = released(tmp_path / "m", clients, clip_norm=100.0, participation=participation)
    assert torch.equal(again.mean, found.mean)
    assert torch.equal(again.variance, read_moments(tmp_path / "m").variance)
    assert verify(tmp_path / "m").ok
    assert found.charges[0].privacy_unit == unit
    plan = Plan(Mechanism(Identity(4), SingleParticipation(), 5.0), 1.0, 1e-5, expected_cohort_size=1, earlier=found.charges)
    assert plan.for_clients(40, unit).promised.earlier == found.charges
    charged, once = found.charges[0].events, [(accounting.Gaussian(1e-3), 1)]
    assert accounting.epsilon(charged, 1e-5, "zero-out") == pytest.approx(accounting.epsilon(once, 1e-5, "zero-out"))


def test_one_unit_moves_the_sum_by_no_more_than_the_clip_norm_and_a_broken_one_by_nothing(tmp_path: Path) -> None:
    inputs = torch.randn(50, 2, 4)
    huge, broken = (torch.cat([inputs, torch.full((1, 2, 4), value)]) for value in (1e30, torch.nan))
    terms, all_rows = {"noise": "simulation", "clip_norm": 3.0}, (inputs, huge, broken)
    sums = [released(tmp_path / str(at), rows, **terms).mean * len(rows) for at, rows in enumerate(all_rows)]
    # The same seed, the same noise: what differs is one unit.
    assert float((sums[1] - sums[0]).norm()) <= 3.0
    assert torch.allclose(sums[2], sums[0], rtol=1e-12, atol=0)
    half = released(tmp_path / "half", torch.full((50, 1, 4), 300.0).half(), clip_norm=1e5)
    assert float(half.mean) == pytest.approx(300.0, abs=30.0)
    noisy = released(tmp_path / "noisy", inputs, noise_multiplier=100.0)
    assert bool((noisy.variance > 0).all())


@pytest.mark.parametrize(
    "changed", [{}, {"privacy__unit": "example", "training__cohort_size": 50}, {"privacy__mode": "dp-ftrl"}]
)
def test_a_run_releases_them_first_counts_them_and_resumes_by_them(tmp_path: Path, changed: dict[str, object]) -> None:
    config = small(**changed)
    planned = build(config).plan
    begun = RunInFolder.begun(build(config), tmp_path / "run")
    own = read_moments(tmp_path / "run" / NORMALIZATION)
    assert begun.run.plan.earlier == own.charges
    assert begun.run.plan.mechanism == planned.mechanism
    assert planned.promised.epsilon == begun.run.plan.promised.epsilon <= 4.0
    usual = build(small(data__normalization="default")).dataset
    assert torch.equal(begun.run.dataset.test_inputs, own.normalized(usual.test_inputs))
    assert next(begun.rounds(begun.run.population))["epsilon"] < 4.0
    moved = tmp_path / "moved"
    (tmp_path / "run").rename(moved)
    resumed = RunInFolder.resumed(moved)
    assert resumed.run.plan.promise().settings == begun.run.plan.promise().settings
    assert resumed.run.plan.promised.epsilon == begun.run.plan.promised.epsilon
    list(resumed.rounds(resumed.run.population))
    resumed.finish()
    verdict = verify(moved)
    assert verdict.ok, [check for check in verdict.checks if not check.ok]
    assert "normalization" in [check.name for check in verdict.checks]
    assert load(moved).dataset.shape == begun.run.dataset.shape
    stated = [summary(run).statement() for run in (moved / NORMALIZATION, moved)]
    assert "(2) What is covered: the release of means and variances, 1 round" in stated[0]
    assert "(3) What is released: means and variances of the inputs, as seen through a noisy sum." in stated[0]
    assert "Also means and variances of the inputs, released with noise by an earlier run that is counted." in stated[1]
    hubbub("publish", moved, "-o", tmp_path / "public")
    published = load_file(tmp_path / "public" / "normalization.safetensors")
    assert torch.equal(published["mean"], own.mean)
    assert torch.equal(published["variance"], own.variance)
    assert "normalization.safetensors" in (tmp_path / "public" / "README.md").read_text()
    assert verify(tmp_path / "public").ok
    for closed in (moved / NORMALIZATION, moved):
        assert RunStore(closed).secret_files()
        hubbub("close", closed)
        assert not RunStore(closed).secret_files()
        assert verify(moved).ok


def test_in_a_simulation_their_noise_is_other_than_that_of_the_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SimulationSource] = []
    begin = SimulationSource.__init__
    monkeypatch.setattr(SimulationSource, "__init__", lambda self, seed: made.append(self) or begin(self, seed))
    begun = RunInFolder.begun(build(small(privacy__noise="simulation", training__seed=7)), tmp_path / "run")
    next(begun.rounds(begun.run.population))
    of_moments, of_rounds = made
    assert of_moments._key != of_rounds._key
    assert torch.equal(of_rounds.row(0, 1000), SimulationSource(7).row(0, 1000))
    # Of independent rows, one of 15 pairs correlates by more than 0.18 less than once in a million times.
    rows = torch.stack([source.row(index, 1000) for source in (of_moments, of_rounds) for index in range(3)])
    assert float((torch.corrcoef(rows) - torch.eye(6)).abs().max()) < 0.18


def test_a_closed_run_has_no_key_of_its_means_and_variances(tmp_path: Path) -> None:
    begun = ended(tmp_path / "run")
    hubbub("close", tmp_path / "run")
    assert not RunStore(tmp_path / "run" / NORMALIZATION).secret_files()
    assert verify(tmp_path / "run").ok
    assert build(small(data__normalization=tmp_path / "run" / NORMALIZATION)).plan.earlier == begun.run.plan.earlier


def test_others_than_those_that_were_counted_are_refused(tmp_path: Path) -> None:
    for name in ("run", "other"):
        ended(tmp_path / name)
    shutil.rmtree(tmp_path / "run" / NORMALIZATION)
    shutil.copytree(tmp_path / "other" / NORMALIZATION, tmp_path / "run" / NORMALIZATION)
    assert [check.name for check in verify(tmp_path / "run").checks if not check.ok] == ["normalization"]
    resumed = RunInFolder.resumed(tmp_path / "run")
    with pytest.raises(LedgerError, match=r"data\.normalization"):
        next(resumed.rounds(resumed.run.population))
    release = next((tmp_path / "other" / NORMALIZATION).rglob("releases/0*"))
    release.write_bytes(release.read_bytes()[:-1] + b"x")
    with pytest.raises(LedgerError, match="is not what it says was released"):
        build(small(data__normalization=tmp_path / "other" / NORMALIZATION))


@pytest.mark.slow
def test_a_finished_run_is_neither_loaded_nor_published_with_others_than_it_was_made_with(tmp_path: Path) -> None:
    first = ended(tmp_path / "first")
    first.finish()
    released_by = tmp_path / "first" / NORMALIZATION
    ended(tmp_path / "run", data__normalization=released_by, privacy__epsilon=6).finish()
    assert load(tmp_path / "run").config.data.normalization == str(released_by)
    ended(tmp_path / "other")
    shutil.rmtree(released_by)
    shutil.copytree(tmp_path / "other" / NORMALIZATION, released_by)
    words = "holds another run than the one whose means and variances this run was made with, and counts; put that back"
    with pytest.raises(RunFolderError, match=words):
        load(tmp_path / "run")
    refused(["publish", tmp_path / "run", "-o", tmp_path / "public"], words)
    assert not (tmp_path / "public").exists()


def test_what_an_example_adds_is_the_same_whether_it_is_alone_in_its_part_or_not() -> None:
    torch.set_num_threads(2)
    try:
        for seed in range(10):
            units = _Units(torch.randn(18, 1, 200, 200, generator=torch.Generator().manual_seed(seed)))
            first, second, both = (units.collect(some, torch.nn.Identity(), 1.0, 0).total for some in ([16], [17], [16, 17]))
            many = units.collect(range(17), torch.nn.Identity(), 1.0, 0).total
            assert torch.equal(first + second, both)
            assert torch.equal(many, units.collect(range(16), torch.nn.Identity(), 1.0, 0).total + first)
    finally:
        torch.set_num_threads(1)


def test_what_is_not_covered_names_what_is_measured_on_held_out_examples() -> None:
    line = "accuracy and loss on held-out training examples (training.validation), which are exact"
    for part in (0.0, 0.1):
        plan = build(small(data__normalization="default", training__validation=part)).plan
        assert (line in plan.promised.not_covered) == (part > 0)


@pytest.mark.slow
def test_a_run_that_stopped_before_its_settings_were_written_uses_what_it_released(tmp_path: Path) -> None:
    config = small()
    begun = RunInFolder.begun(build(config), tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "again")
    (tmp_path / "again" / "config.toml").unlink()
    with pytest.raises(RunFolderError, match=f"begin their run with 'hubbub train CONFIG -o {tmp_path / 'again'}'"):
        RunInFolder.resumed(tmp_path / "again")
    (tmp_path / "run.toml").write_text(configs.dump(config))
    hubbub("train", tmp_path / "run.toml", "-o", tmp_path / "again")
    assert read_moments(tmp_path / "again" / NORMALIZATION).charges == begun.run.plan.earlier
    # By its folder, in another run, whose cost counts it once.
    third = build(small(data__normalization=tmp_path / "again" / NORMALIZATION, privacy__earlier_runs=[f"{tmp_path}/again"]))
    assert len(third.plan.earlier) == 2


def test_moments_stopped_within_their_round_stay_spent_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tmp_path / "one"
    with monkeypatch.context() as patch:
        patch.setattr(LatticeSum, "open", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            RunInFolder.begun(build(small()), one)
    with pytest.raises(RunFolderError, match=r"its cost stays spent; .* name this one in privacy\.earlier_runs there"):
        RunInFolder.begun(build(small()), one)
    counting = f'["{one / NORMALIZATION}"]'
    assert len(planned(small(privacy__earlier_runs=counting), 100).earlier) == 2
    with pytest.raises(ConfigError, match=r"this run: have data\.seed = 0 and 1"):
        planned(small(privacy__earlier_runs=counting, training__seed=1), 100)


def test_those_of_other_clients_and_those_that_a_run_would_not_count_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    begun = RunInFolder.begun(build(small(data__partition="dirichlet")), run)
    own = {"data__partition": "dirichlet", "data__normalization": run / NORMALIZATION}
    assert build(small(**own)).plan.earlier == begun.run.plan.earlier
    # One client of another deal has examples of many of these, whose cost is that of one each.
    for other in "training.seed=1 training.validation=0.1 data.clients=50 data.alpha=0.1 data.partition=iid".split():
        name, value = other.split("=")
        with pytest.raises(ConfigError, match=f"has {name.replace('training.seed', 'data.seed')} = "):
            build(small(**{**own, name: value}))
    shutil.copytree(run / NORMALIZATION, tmp_path / "left" / NORMALIZATION)
    for changed in ({"data__normalization": "default"}, own):
        with pytest.raises(RunFolderError, match="this run would not count them"):
            RunInFolder.begun(build(small(**{"data__partition": "dirichlet", **changed})), tmp_path / "left")
    with pytest.raises(LedgerError, match=r"data\.seed"):
        RunInFolder.begun(build(small(data__partition="dirichlet", training__seed=1)), tmp_path / "left")
    settings = (run / "config.toml").read_text()
    for line in ("", 'normalization = "private"'):
        (run / "config.toml").write_text(settings.replace(f'normalization = "{run / NORMALIZATION}"', line))
        with pytest.raises(RunFolderError, match="this run would not count them"):
            RunInFolder.resumed(run)
    # The same first record, and a round that is not the one that was counted.
    counted = (replace(begun.run.plan.earlier[0], head="0" * 64),)
    with pytest.raises(LedgerError, match=r"does not hold head 0.*, which this run counts"):
        build(small(**own), earlier=counted)


def test_those_of_other_data_and_those_of_a_simulation_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("read_digits.py").write_text("from hubbub.datasets import digits\ndef data(path):\n    return digits.load()\n")
    for name in ("one", "two"):
        Path(name).touch()
    Path("link").symlink_to("one")
    own = {"data__name": "read_digits:data", "data__path": "one"}
    begun = RunInFolder.begun(build(small(**own), allow_import=True), tmp_path / "run", allow_import=True)
    list(begun.rounds(begun.run.population))
    theirs = {**own, "data__normalization": tmp_path / "run" / NORMALIZATION}
    extending = {"training__extends": "run", "privacy__earlier_runs": '["run"]'}
    require_same(small(**{**own, **extending, "data__normalization": f"run/{NORMALIZATION}"}))
    for path in ("one", "link", tmp_path / "one"):
        assert planned(small(**{**theirs, "data__path": path}), 100).earlier == begun.run.plan.earlier
    for path in ("two", "default"):
        with pytest.raises(ConfigError, match=r"normalization = .*has data\.path = '.*/one', and this run (None|'.*/two')"):
            planned(small(**{**theirs, "data__path": path}), 100)
    settings = tmp_path / "run" / "config.toml"
    settings.write_text(settings.read_text().replace(f'path = "{tmp_path}/one"', f'path = "{tmp_path}/two"'))
    # The run itself resumes where its data were moved.
    assert RunInFolder.resumed(tmp_path / "run", allow_import=True).run.plan.earlier == begun.run.plan.earlier
    simulated = {"data__normalization": tmp_path / "simulated" / NORMALIZATION}
    RunInFolder.begun(build(small(privacy__noise="simulation")), tmp_path / "simulated")
    for path in ("default", "one"):  # Without one on record, it may be any.
        assert planned(small(**simulated, privacy__noise="simulation", data__path=path), 100).earlier
    with pytest.raises(ConfigError, match=r"data\.normalization = .*was released by a simulation, whose noise is known"):
        planned(small(**simulated), 100)


def test_a_sweep_counts_what_a_run_released_before_it_began(tmp_path: Path) -> None:
    cell = Cell("one", {}, small())
    (tmp_path / CELLS / "one").mkdir(parents=True)
    assert found(tmp_path, cell)[1] is None
    begun = RunInFolder.begun(build(cell.config), tmp_path / "run")
    (tmp_path / "run" / NORMALIZATION).rename(tmp_path / CELLS / "one" / NORMALIZATION)
    state, known = found(tmp_path, cell)
    assert state.state == "waiting"
    assert choice([known]).epsilon == pytest.approx(compose_runs(begun.run.plan.earlier, 1e-5).epsilon)
    # What a run cost is known, whatever became of its scores.
    (ended(tmp_path / CELLS / "two").folder / "private-scores.json").touch()
    state, known = found(tmp_path, Cell("two", {}, small()))
    assert (state.state, choice([known]).epsilon) == ("failed", pytest.approx(4.0, abs=1e-3))


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    a, flat = tmp_path / "a", torch.zeros(5, 2)
    without = {"data__normalization": "default"}
    plain, own = ended(tmp_path / "e", **without).folder, ended(tmp_path / "d").folder / NORMALIZATION
    for error, words, make in (
        (DataError, "means are of real numbers", lambda: released(a, flat.long())),
        (DataError, "there are none", lambda: released(a, [])),
        (DataError, r"clients\[1\]: has 3 channels, clients\[0\] 2", lambda: released(a, [flat, torch.zeros(5, 3)])),
        (ConfigError, "everyone takes part once", lambda: released(a, flat, participation=PoissonSampling(0.5))),
        (DataError, "have 3 channels, these .* are of 2", lambda: released(tmp_path / "b", flat).normalized(torch.zeros(1, 3))),
        (ValueError, "noise_multiplier", lambda: released(a, flat, noise_multiplier=0.0)),
        (ConfigError, "must begin with https", lambda: RunInFolder.begun(build(small(heads__url="ftp://x")), a)),
        (RunFolderError, "if it was moved, put it back", lambda: build(small(data__normalization=a))),
        (ConfigError, "nothing without normalization", lambda: small(**without, data__normalization_noise_multiplier=2.0)),
        (BudgetError, "earlier runs alone cost", lambda: build(small(data__normalization_noise_multiplier=0.5))),
        (
            ConfigError,
            r"has privacy\.unit = 'client', and this run 'exa",
            lambda: build(small(data__normalization=own, privacy__unit="example")),
        ),
        (RunFolderError, "no run of means and variances", lambda: build(small(data__normalization=plain))),
    ):
        with pytest.raises(error, match=words):
            make()
    assert not a.exists()
    (tmp_path / "run.toml").write_text(configs.dump(small()))
    refused(["audit", tmp_path / "run.toml", "-o", tmp_path / "audit"], "data.normalization", "an audit starts runs of its own")
    others = ({"training__engine": "flower"}, {"secagg__scheme": "paillier", "training__cohort_size": 5})
    for changed in ({"privacy__mode": "none", "privacy__epsilon": "default"}, *others):
        with pytest.raises(ConfigError, match="means and variances are released by"):
            planned(small(**changed), 100)
