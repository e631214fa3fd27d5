"""An audit finds nothing in a right system, and finds each of its broken twins, all through the same pipeline.

Each test of an audit and each of its bounds fails a right system with a probability of at most 10⁻⁶; there are at most a dozen
in one audit. Canaries are seeded, the noise of a run is secure and cannot be.
"""

import json
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from encrypted_runs import encrypted, terms
from encrypted_runs import plan as encrypted_plan
from hubbub.audit import Audit, Effort, audit
from hubbub.audit.runs import likelihood_scores
from hubbub.audit.watching import plant
from hubbub.audit.whitening import check_noise
from hubbub.errors import ConfigError, SumNotOpenedError
from hubbub.ledger.ledger import Ledger
from hubbub.mechanism import Mechanism
from hubbub.mechanism import participation as patterns
from hubbub.mechanism.strategies import BinaryTree, BufferedLinearToeplitz, Identity, Strategy, toeplitz
from hubbub.noise import NoiseStream
from hubbub.noise.lattice import Lattice
from hubbub.training import ExamplePopulation, LocalTraining, RunPlan, SimulatedPopulation
from hubbub.training.clipping import AdaptiveClipping, clip
from hubbub.training.simulation import simulate as simulate_module
from hubbub.training.simulation.choice import Choice, Probe
from recorded_runs import hubbub
from refusals import refused
from small_runs import linear, population

CLIENTS, ROUNDS, CLIP = 40, 12, 0.5
EFFORT = Effort(canaries=20, runs=4)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(20, 10)


def clients(kind: type[SimulatedPopulation] = SimulatedPopulation) -> SimulatedPopulation:
    """Two examples for each client."""
    own = torch.Generator().manual_seed(1)
    examples = [(torch.randn(2, 20, generator=own), torch.randint(0, 10, (2,), generator=own)) for _ in range(CLIENTS)]
    return kind(examples, F.cross_entropy, LocalTraining(batch_size=2, learning_rate=0.5))


def plan_of(strategy: Strategy, participation: patterns.Participation, size: float, **changes: object) -> RunPlan:
    plan = RunPlan(ROUNDS, participation, size, Mechanism(strategy, participation, 0.7), CLIP, delta=1e-5)
    return replace(plan, **changes)


SEPARATED, ADAPTIVE = patterns.MinSeparation(3, 4), AdaptiveClipping(0.5, 0.6)
PLANS: dict[str, Callable[[], RunPlan]] = {
    "independent, separated": lambda: plan_of(Identity(ROUNDS), SEPARATED, 12.0),
    "independent, Poisson": lambda: plan_of(Identity(ROUNDS), patterns.PoissonSampling(0.3), 12.0),
    "independent, fixed size": lambda: plan_of(Identity(ROUNDS), patterns.FixedSizeSampling(12, CLIENTS), 12.0),
    "independent, truncated": lambda: plan_of(Identity(ROUNDS), patterns.TruncatedPoissonSampling(0.3, 14, CLIENTS), 12.0),
    "independent, balls in bins": lambda: plan_of(Identity(ROUNDS), patterns.BallsInBinsSampling(4), 10.0),
    "banded, cyclic Poisson": lambda: plan_of(toeplitz.square_root(ROUNDS, 3), patterns.CyclicPoissonSampling(0.6, 3), 8.0),
    "banded, separated": lambda: plan_of(toeplitz.square_root(ROUNDS, 3), SEPARATED, 12.0),
    "buffers, rotation": lambda: plan_of(
        BufferedLinearToeplitz(ROUNDS, (0.9, 0.4), (0.2, 0.3)), patterns.FixedEpochs(3, 4), 10.0
    ),
    "tree, rotation": lambda: plan_of(BinaryTree(ROUNDS), patterns.FixedEpochs(3, 4), 10.0),
    "full tree, everyone": lambda: plan_of(BinaryTree(ROUNDS, "full"), patterns.every_round(ROUNDS), float(CLIENTS)),
    "replaced units": lambda: plan_of(Identity(ROUNDS), SEPARATED, 12.0, neighboring_relation="replace-one"),
    "adaptive, separated": lambda: plan_of(Identity(ROUNDS), SEPARATED, 12.0, clip_norm=ADAPTIVE),
    "adaptive, Poisson": lambda: plan_of(Identity(ROUNDS), patterns.PoissonSampling(0.3), 12.0, clip_norm=ADAPTIVE),
}


def audited(plan: RunPlan, population: SimulatedPopulation | None = None, effort: Effort = EFFORT, seed: int = 3) -> Audit:
    """An audit in this process; what others contribute is told by clients of a right kind."""
    return audit(plan, lambda _: population or clients(), small_model(), honest=clients(), effort=effort, seed=seed)


DIGITS = Path(__file__).parent.parent / "examples" / "digits.toml"
SMALL = ["--set", "training.rounds=4", "--set", "data.clients=24", "--set", "training.cohort_size=12"]
SMALL += ["--set", "training.local_epochs=1", "--canaries", "12", "--runs", "2"]


def failed(found: Audit) -> set[str]:
    return {check.name for check in found.checks if not check.passed} | {one.what for one in found.comparisons if not one.holds}


# Of plans that differ by a strategy or a relation alone, the short form tries one.
LONG = {"tree, rotation", "full tree, everyone", "independent, truncated", "replaced units", "independent, fixed size"}
LONG |= {"adaptive, separated", "banded, separated", "buffers, rotation"}


@pytest.mark.parametrize(
    "plan", [pytest.param(plan, id=name, marks=pytest.mark.slow if name in LONG else ()) for name, plan in PLANS.items()]
)
def test_nothing_is_found_in_a_right_system(plan: Callable[[], RunPlan]) -> None:
    found = audited(plan())
    assert found.holds, found.faults
    assert len(found.present) + len(found.absent) > 60
    assert all(one.shown.epsilon >= one.certain.epsilon for one in found.comparisons)
    assert "no proof of privacy" in found.sentence()


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_nothing_is_found_in_a_right_system_by_a_thousand_canaries(plan: Callable[[], RunPlan]) -> None:
    found = audited(plan(), effort=Effort(canaries=20, runs=50))
    assert found.holds, found.faults
    # The whole law of the scores is what is claimed: Kolmogorov's distance, whose bound at 10⁻⁶ is that of Massart 1990.
    for scores in (found.absent, found.present - found.means):
        ordered = np.sort(scores)
        steps = np.arange(len(ordered) + 1) / len(ordered)
        distance = max(np.abs(ndtr(ordered) - steps[:-1]).max(), np.abs(ndtr(ordered) - steps[1:]).max())
        assert distance <= math.sqrt(math.log(2e6) / (2 * len(ordered)))


def test_the_bounds_are_near_what_is_stated_where_canaries_are_many() -> None:
    found = audited(plan_of(Identity(12), SEPARATED, 12.0), effort=Effort(canaries=40, runs=8))
    gaussian = found.comparisons[1]
    assert gaussian.stated / 3 < gaussian.shown.epsilon <= gaussian.stated
    # Of a client that took part as often as the pattern lets it.
    assert found.means.max() == pytest.approx(2 / 0.7, rel=1e-9)


# Changes of terms and plan, and the noise multiplier.
ENCRYPTED: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    # An absent canary sends nothing here, so it brings no noise.
    "clients, adaptive": ({"min_survivors": 6, "min_contributions": 6}, {"clip_norm": ADAPTIVE}, 0.7),
    "server, few steps in a clip norm": ({"bits": 10}, {}, 0.005),
}
SLOW = [pytest.param(by, marks=pytest.mark.slow) for by in ("holders", "clients", *ENCRYPTED)]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["server", *SLOW])
def test_nothing_is_found_in_a_right_encrypted_system(case: str) -> None:
    of_terms, of_plan, multiplier = ENCRYPTED.get(case, ({}, {}, 0.7))
    how = terms(case.partition(",")[0], **of_terms)
    plan = encrypted_plan(Identity(6), how)
    plan = replace(plan, mechanism=replace(plan.mechanism, noise_multiplier=multiplier), **of_plan)
    effort, rows = Effort(canaries=8 if of_plan else 4, runs=8), max(1, how.noise_rows)
    found = audit(plan, lambda _: encrypted(plan, how), linear(), honest=population(), effort=effort, noise_rows=rows, seed=30)
    assert found.holds, found.faults
    # With noise of three holders in each sum the same client moves it by less of the noise.
    if case not in ENCRYPTED:
        assert found.means.max() == pytest.approx(math.sqrt(6 / rows) / 0.7, rel=1e-3)


@pytest.mark.slow
def test_nothing_is_found_where_the_unit_is_an_example() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(60, 20, generator=generator), torch.randint(0, 10, (60,), generator=generator)
    examples = ExamplePopulation(inputs, targets, F.cross_entropy)
    plan = plan_of(Identity(12), patterns.PoissonSampling(0.3), 18.0, privacy_unit="example")
    found = audit(plan, lambda _: examples, small_model(), honest=examples, effort=Effort(canaries=30, runs=3), seed=1)
    assert found.holds, found.faults
    with pytest.raises(ConfigError, match="the plan promises to hide all data of a client"):
        audit(replace(plan, privacy_unit="client"), lambda _: examples, small_model(), honest=examples, seed=1)


@pytest.mark.slow
def test_updates_are_drawn_under_a_secret_key_and_alike_in_the_clear() -> None:
    honest, plan = population(), plan_of(Identity(ROUNDS), patterns.PoissonSampling(0.5), 6.0)
    with patch.object(honest, "draw_under", wraps=honest.draw_under) as draws:
        found = audit(plan, lambda _: population(), linear(), honest=honest, effort=Effort(canaries=4, runs=10), seed=1)
    assert len({call.args[0] for call in draws.call_args_list}) == 10
    # Were they not alike, the difference would be taken for noise.
    assert found.holds, found.faults


def noise(monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    right = NoiseStream.next_row
    monkeypatch.setattr(NoiseStream, "next_row", lambda self: change(right(self)))


@pytest.mark.parametrize("name", ["banded, separated", "independent, Poisson", "adaptive, separated"])
def test_half_the_noise_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    noise(monkeypatch, lambda row: row / 2)
    found = audited(PLANS[name](), effort=Effort(canaries=40, runs=4))
    assert {"null standard deviation", "size of the noise"} <= failed(found)
    assert "BROKEN" in found.sentence()


@pytest.mark.parametrize(
    ("participation", "part", "broken"),
    [
        (SEPARATED, 10, {"distribution-free", "Gaussian", "mu"}),
        (patterns.PoissonSampling(0.3), 100, {"distribution-free, cohorts secret", "excess over the stated trade-off curve"}),
    ],
    ids=["pattern", "amplified"],
)
def test_next_to_no_noise_breaks_the_stated_epsilon_itself(
    monkeypatch: pytest.MonkeyPatch, participation: patterns.Participation, part: float, broken: set[str]
) -> None:
    noise(monkeypatch, lambda row: row / part)
    plan = plan_of(Identity(12), participation, 12.0)
    weak = replace(plan, mechanism=Mechanism(Identity(12), participation, 6.0))
    found = audited(weak, effort=Effort(canaries=40, runs=8))
    assert broken <= failed(found)
    alarms = len(found.comparisons) * 1e-6 + sum(check.false_alarm for check in found.checks)
    assert alarms <= float(found.sentence().split()[-1].rstrip(".")) <= 1.2 * alarms


def test_noise_that_is_not_correlated_as_promised_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # Independent, of the very size that each row of the correlated has once it is whitened.
    own = torch.Generator().manual_seed(0)
    noise(monkeypatch, lambda row: torch.randn(row.shape, dtype=torch.float64, generator=own) * 0.7)
    assert "largest correlation over rounds" in failed(audited(PLANS["banded, separated"]()))


def test_noise_that_comes_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, first = PLANS["independent, separated"], []
    noise(monkeypatch, lambda row: first.append(row.clone()) or first[0].clone())
    assert "largest correlation of two rounds" in failed(audited(plan()))
    monkeypatch.undo()
    # The second half of a row is its first one; all rows are of even length.
    noise(monkeypatch, lambda row: row[: len(row) // 2].repeat(2))
    assert failed(audited(plan())) == {"largest correlation within rounds"}
    monkeypatch.undo()
    # A key that is the same in every run.
    monkeypatch.setattr("hubbub.training.release.fresh_key", lambda: b"k" * 32)
    assert "largest correlation of two rounds" in failed(audited(plan()))


def unclipped(update: torch.Tensor, clip_norm: float, lattice: Lattice, split: object = None) -> tuple[torch.Tensor, bool]:
    return (update.double() / lattice.step).round().to(torch.int64), False


def by_tensor(update: torch.Tensor, clip_norm: float, lattice: Lattice, split: object = None) -> tuple[torch.Tensor, bool]:
    parts = torch.cat([clip(part, clip_norm)[0] for part in update.split([100, 5, 50, 10])])
    return (parts / lattice.step).round().to(torch.int64), True


def doubled(update: torch.Tensor, clip_norm: float, lattice: Lattice, split: object = None) -> tuple[torch.Tensor, bool]:
    return 2 * lattice.encode(update)[0], True


@pytest.mark.parametrize("part", [unclipped, *(pytest.param(part, marks=pytest.mark.slow) for part in (doubled, by_tensor))])
def test_a_client_that_moves_the_sum_too_far_is_found(part: Callable) -> None:
    class Other(SimulatedPopulation):
        """Clients whose server bounds them in another way."""

        def collect(self, *arguments):  # a deliberately broken twin
            with patch.object(simulate_module, "bounded", part):
                return super().collect(*arguments)

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(20, 5), nn.Linear(5, 10))
    broken, plan = clients(Other), PLANS["independent, separated"]()
    found = audit(plan, lambda _: broken, layers, honest=clients(), effort=Effort(canaries=10, runs=10), seed=1)
    assert "mean of the present" in failed(found)


class TwiceAsOften(SimulatedPopulation):
    """Who took part in a round is in the sum of the next one, too."""

    earlier: Sequence[Hashable] = ()

    def collect(self, cohort, model, clip_norm, round_index, split=None):  # a deliberately broken twin
        both = [*cohort, *(client for client in self.earlier if client not in cohort)] if round_index else list(cohort)
        self.earlier = list(cohort)
        return super().collect(both, model, clip_norm, round_index, split)


def test_clients_that_take_part_more_often_than_they_are_asked_are_found() -> None:
    found = audited(PLANS["independent, separated"](), clients(TwiceAsOften), Effort(canaries=40, runs=4))
    assert "mean of canaries outside their rounds" in failed(found)


def test_cohorts_that_break_the_pattern_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither the choice of cohorts nor the ledger keeps the pattern in this twin.
    right = Ledger.begin

    def careless(self: Ledger, *arguments: object) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(patterns.MinSeparation, "may_follow", lambda _, counts, *__: np.ones(len(counts), dtype=bool))
            patch.setattr(patterns.MinSeparation, "allows", lambda *_: True)
            return right(self, *arguments)

    monkeypatch.setattr("hubbub.training.rounds.draw", lambda *_, **__: list(range(30)))
    monkeypatch.setattr("hubbub.ledger.ledger.Ledger.begin", careless)
    found = audited(PLANS["independent, separated"]())
    assert {"clients that break the participation pattern", "largest mu of a canary's rounds"} <= failed(found)


def test_a_run_without_a_promise_and_a_round_without_a_release_are_refused() -> None:
    bare = RunPlan(6, patterns.PoissonSampling(0.5), 6.0)
    with pytest.raises(ConfigError, match="nothing to audit"):
        audit(bare, lambda _: population(), linear(), honest=population())

    class Aborts(SimulatedPopulation):
        def collect(self, cohort, model, clip_norm, round_index, split=None):  # whose sums nobody opens
            raise SumNotOpenedError("too few came")

    with pytest.raises(ConfigError, match="needs every release"):
        audited(PLANS["independent, separated"](), clients(Aborts))

    class Divided(SimulatedPopulation):
        ranks = SimpleNamespace(size=2)

    with pytest.raises(ConfigError, match="divides its cohorts among 2 ranks"):
        audited(PLANS["independent, separated"](), clients(Divided))
    with pytest.raises(ValueError, match="canaries = 41"):
        audited(PLANS["independent, separated"](), effort=Effort(canaries=41))
    with pytest.raises(ValueError, match="rounds = 13"):
        audited(PLANS["independent, separated"](), effort=Effort(rounds=13))
    with pytest.raises(ConfigError, match="an audit needs both"):
        audited(PLANS["independent, separated"](), effort=Effort(canaries=1, runs=1))


def test_a_shorter_audit_is_held_against_what_so_many_rounds_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PLANS["banded, separated"]()
    found = audited(plan, effort=Effort(canaries=20, runs=2, rounds=5))
    assert found.holds, found.faults
    assert found.stated.epsilon == plan.promise().after(5, 1e-5).epsilon < plan.promise().after(12, 1e-5).epsilon
    # Of a run whose matrix has 7 GiB; by all of them it is refused before the first round.
    many = RunPlan(30_000, SEPARATED, 12.0, Mechanism(Identity(30_000), SEPARATED, 0.7), CLIP, delta=1e-5)
    assert audited(many, effort=Effort(canaries=20, runs=1, rounds=2)).rounds == 2
    monkeypatch.setattr("hubbub.audit.runs.watch", None)
    with pytest.raises(ValueError, match="at most 20,000 rounds"):
        audited(many)


def test_clients_are_themselves_again_after_an_audit_and_the_model_is_as_it_was() -> None:
    mine, model = clients(), small_model()
    before = [p.detach().clone() for p in model.parameters()]
    with patch.object(mine, "collect", wraps=mine.collect) as collect:
        audit(PLANS["independent, separated"](), lambda _: mine, model, honest=mine, effort=Effort(canaries=20, runs=1), seed=1)
    # In each round the others once in the clear, and all once for the sum.
    assert collect.call_count == 2 * ROUNDS
    for now, then in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(now.detach(), then, atol=0, rtol=0)
    sums = []
    for which in (mine, clients()):
        which.draw_under(bytes(32))
        sums.append(which.collect(range(CLIENTS), model, 0.5, 3).open(None))
    torch.testing.assert_close(*sums, atol=0, rtol=0)


def test_directions_of_canaries_are_orthonormal_and_reach_all_coordinates() -> None:
    planted = plant(range(50), 210, 12, canaries=20, unclipped=0.5, rng=np.random.default_rng(0))
    rows = np.stack([planted.direction(i) for i in range(20)])
    np.testing.assert_allclose(rows @ rows.T, np.eye(20), atol=1e-12)
    assert (np.abs(rows).sum(axis=0) > 0).all()
    row = np.random.default_rng(1).normal(size=210)
    np.testing.assert_allclose(planted.along(row), rows @ row, atol=1e-12)


def test_the_scores_of_poisson_cohorts_are_likelihood_ratios() -> None:
    rng, q, parts = np.random.default_rng(0), 0.3, np.diag([1.0, 0.5, 2.0])
    y = rng.normal(size=(3, 4))
    found = likelihood_scores(y, parts, patterns.PoissonSampling(q))
    for j in range(4):
        # By definition: the mixture over all eight sets of rounds, over the law of the absent.
        present = 0.0
        for coins in np.ndindex(2, 2, 2):
            weight = math.prod(q if coin else 1 - q for coin in coins)
            present += weight * math.exp(-np.square(y[:, j] - parts @ np.array(coins)).sum() / 2)
        assert found[j] == pytest.approx(math.log(present / math.exp(-np.square(y[:, j]).sum() / 2)), abs=1e-12)


def test_noise_is_told_from_itself() -> None:
    right = np.random.default_rng(0).normal(size=(40, 500))
    assert all(check.passed for check in check_noise([right[:20], right[20:]]))
    again, shifted, small = right.copy(), right.copy(), right * 0.97
    again[7] = right[3]
    shifted[:, 300:400] = right[:, 40:140]
    names = [{check.name for check in check_noise([z[:20], z[20:]]) if not check.passed} for z in (again, shifted, small)]
    assert names == [{"largest correlation of two rounds"}, {"largest correlation within rounds"}, {"size of the noise"}]
    # Of too few numbers nothing can be told but their size.
    assert [check.name for check in check_noise([right[:4, :6]])] == ["size of the noise"]


def test_the_command_writes_its_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hubbub("audit", str(DIGITS), *SMALL, "--out", str(tmp_path / "a"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "holds"
    assert json.loads((tmp_path / "a" / "audit.json").read_text()) == {k: v for k, v in told.items() if k != "folder"}
    assert (tmp_path / "a" / "audit.png").read_bytes()[:4] == b"\x89PNG"
    text = (tmp_path / "a" / "audit.md").read_text()
    assert "below the stated epsilon proves nothing" in text
    assert told["sentence"] in text
    assert told["comparisons"][0]["certain"]["epsilon"] < told["stated"]["epsilon"]
    assert any("here that bound cannot fail" in note and note in text for note in told["notes"])
    refused(["audit", str(DIGITS), *SMALL, "--out", str(tmp_path / "a")], "exists already")


@pytest.mark.slow
def test_the_command_ends_with_1_where_the_system_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Another audit of these settings takes the first name meanwhile.
    noise(monkeypatch, lambda row: (Path("audits/digits-1").mkdir(parents=True, exist_ok=True), row / 4)[1])
    assert hubbub("audit", str(DIGITS), *SMALL) == 1
    assert "BROKEN" in capsys.readouterr().out
    assert "**FAILED**" in Path("audits/digits-2/audit.md").read_text()


@pytest.mark.slow
def test_the_command_audits_the_flower_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As larger models choose for the honest sums, after which each further run begins.
    monkeypatch.setattr(Probe, "choice", lambda probe, cohort: Choice(4, "in this test"))
    assert hubbub("audit", str(DIGITS), *SMALL, "--engine", "flower", "--out", str(tmp_path / "a")) == 0


@pytest.mark.slow
@pytest.mark.parametrize("noise_by", ["server", "holders"])
@pytest.mark.parametrize("engine", ["process", "flower"])
def test_the_command_audits_encrypted_runs(tmp_path: Path, engine: str, noise_by: str) -> None:
    how = ["--set", "secagg.scheme=paillier", "--set", f"secagg.noise_by={noise_by}", "--set", "training.rounds=2"]
    if noise_by == "holders":
        how += ["--set", "secagg.holders=2", "--set", "secagg.threshold=2"]
    flags = ["--runs", "1", "--engine", engine, "--out", str(tmp_path / "a")]
    assert hubbub("audit", str(DIGITS), *SMALL, *how, *flags) == 0
