"""Numbers that are none, or that no guarantee can be made of, at every door: settings, command line, ledger, Python, Flower."""

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg, FedAvgM
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from flower_arms import SEED, Federation, averaging, fixed, record
from flower_defects import logged
from hubbub import AdaptiveClipping, LocalTraining, accounting, factorization
from hubbub.audit import Effort
from hubbub.errors import BudgetError, HubbubError, ParticipationError
from hubbub.flower import DPFedAvgAdaptive, DPFedAvgFixed, MatrixFactorizationDP, Paillier, clipping_mod, compat, noising_mod
from hubbub.ledger import Ledger, Promise, read_chain
from hubbub.mechanism import Mechanism, NoiseShares, gaussian
from hubbub.mechanism import participation as parts
from hubbub.mechanism.private_evaluation import Mean, PrivateEvaluation
from hubbub.mechanism.strategies import BinaryTree, Columns, Dense, Described, Fourier, Identity, Stamped, blt, toeplitz
from hubbub.mechanism.workloads import Workload, prefix_sum
from hubbub.noise.lattice import Lattice
from hubbub.noise.steps import require_room
from hubbub.secagg.packing import Packing
from hubbub.secagg.paillier import PublicKey
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.threshold import KeyShare, deal
from hubbub.training import ExamplePopulation, RunPlan, RunStore, SimulatedPopulation, clip, private_gradients, train
from hubbub.training.encryption import Encryption
from hubbub.training.run_folder.record import read_run
from malformed.contents import canonical, chained
from recorded_runs import answer, hubbub, invoke
from refusals import refused, settings
from release_paths import silent, some_rounds

pytestmark = pytest.mark.usefixtures("workplace")

NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-1": -1.0, "1e999": "1e999"}
Door = Callable[[Any], object]
REFUSALS = (ValueError, TypeError, HubbubError)
ONE = parts.every_round(3)
EXAMPLES = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(6, dtype=torch.int64)
LAYER = nn.Linear(3, 2)
KEY = PublicKey((2**1024 + 643) * (2**1024 + 1657))


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No accountant may be asked meanwhile."""
    asked: list[object] = []

    def spy(*arguments: object, **more: object) -> float:
        asked.append(arguments)
        return 0.0

    for name in ("_epsilon", "_delta", "rdp_epsilon"):
        monkeypatch.setattr(accounting.composition, name, spy)
    yield
    assert asked == []


# Noise that each client brings a share of.
SHARED = {"noise_at": "clients", "min_survivors": 2}

NOISY: dict[str, Door] = {
    "mechanism": lambda v: Mechanism(Identity(3), ONE, v),
    "correlated": lambda v: Mechanism(toeplitz.square_root(3, 2), parts.MinSeparation(2, 2), v),
    "gaussian event": accounting.Gaussian,
    "poisson": lambda v: accounting.PoissonSampled(v, 0.1),
    "fixed size": lambda v: accounting.FixedSizeSampled(v, 2, 10),
    "truncated": lambda v: accounting.TruncatedPoissonSampled(v, 0.1, 2, 10),
    "tree": lambda v: accounting.TreeAggregation(v, 4),
    "mixture": lambda v: accounting.MixtureOfGaussians(v, (0.0, 1.0), (0.5, 0.5)),
    "bins": lambda v: accounting.BallsInBins(v, 2, 4),
    "shares": lambda v: accounting.DiscreteGaussianShares(v, 2, 1000, 10),
    "one release": lambda v: gaussian.epsilon(1e-5, v),
    "one profile": lambda v: gaussian.delta(1.0, v),
    "group": lambda v: accounting.group_noise_multiplier(v, 2),
    "split": lambda v: accounting.split_noise_multiplier(v, 5.0),
    "adaptive clipping": lambda v: AdaptiveClipping().split(v, 10),
    "separation": lambda v: accounting.calibrate_min_separation(Identity(3), noise_multiplier=v, epsilon=1.0, delta=1e-5),
    "Flower": lambda v: fixed(noise_multiplier=v),
    "Flower, Poisson": lambda v: fixed(noise_multiplier=v, num_sampled_clients=None, sampling_probability=0.1),
    "Flower, adaptive": lambda v: DPFedAvgAdaptive(FedAvg(), noise_multiplier=v, num_sampled_clients=30),
    "Flower, noise of clients": lambda v: fixed(noise_multiplier=v, **SHARED),
    "Flower, Paillier": lambda v: fixed(noise_multiplier=v, secagg=Paillier(KEY)),
    "Flower's names": lambda v: compat.DifferentialPrivacyServerSideFixedClipping(FedAvg(), v, 1.0, 3),
    "Flower's names, adaptive": lambda v: compat.DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(), v, 30),
}
# Settings by which each engine, unit and encryption takes its noise.
KINDS: dict[str, dict[str, str]] = {
    "process": {},
    "flower": {"training.engine": '"flower"'},
    "examples": {"privacy.unit": '"example"', "training.cohort_size": "20"},
    "correlated": {"privacy.mode": '"dp-ftrl"', "participation.min_separation": "2"},
    "adaptive": {"privacy.clipping": '"adaptive"', "privacy.target_quantile": "0.5"},
    "paillier": {"secagg.scheme": '"paillier"'},
}


def written(kind: str, section: str, key: str, text: str) -> Path:
    """A file with the settings of a kind, and one of them as it is written."""
    wanted = {
        "training.rounds": "2", "training.cohort_size": "2", "privacy.mode": '"dp-fedavg"', "data.name": '"digits"',
        **({} if key == "epsilon" else {"privacy.noise_multiplier": "1.0"}),
        **({} if kind == "examples" else {"data.clients": "10"}),
        **KINDS[kind], f"{section}.{key}": text,
    }  # fmt: skip
    lines = [f"{name} = {value}\n" for name, value in wanted.items()]
    file = Path("bad.toml")
    file.write_text("".join(lines))
    return file


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that stopped after two rounds."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    some_rounds(folder, 2)
    return folder


@pytest.mark.parametrize("kind", ["process", "flower", "examples", "paillier"])
def test_num_2_a_run_without_noise_says_so_in_its_ledger_its_report_and_its_statement(kind: str) -> None:
    file = written(kind, "privacy", "mode", '"none"')
    text = "\n".join(line for line in file.read_text().splitlines() if "noise_multiplier" not in line)
    file.write_text(text + ("\nsecagg.key_bits = 2048\nsecagg.clip = 1.0\n" if kind == "paillier" else "\n"))
    assert "has no privacy guarantee: epsilon is infinite" in invoke("train", file, "--out", "run")
    assert read_chain(Path("run/ledger.jsonl")).records[0]["mechanism"] is None
    assert json.loads(Path("run/guarantee.json").read_text())["private"] is False
    assert "no privacy guarantee" in Path("run/report.md").read_text()
    assert all(json.loads(line)["epsilon"] is None for line in Path("run/metrics.jsonl").read_text().splitlines())
    told = answer("account", "run")
    assert (told["private"], told["epsilon"], told["runs"][0]["epsilon"]) == (False, None, None)


def test_num_2_without_a_mechanism_epsilon_is_infinite_from_python_too(tmp_path: Path) -> None:
    results = list(train(RunPlan(2, ONE, 3), silent(), nn.Linear(3, 2), RunStore(tmp_path)))
    assert all(result.epsilon == math.inf for result in results)
    (run,) = [read_run(tmp_path)]
    statement = run.promise.after(2, 1e-5).statement()
    assert "no privacy guarantee" in statement
    assert run.promise.after(0, 1e-5).epsilon == math.inf


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize("door", NOISY)
def test_num_2_noise_of_zero_is_refused_in_place_of_a_run_without_any(door: str) -> None:
    for zero in (0, 0.0, -0.0, np.float32(0)):
        with pytest.raises(REFUSALS, match="noise_multiplier"):
            NOISY[door](zero)


def test_num_2_settings_with_noise_of_zero_say_how_to_run_without_any() -> None:
    for kind in KINDS:
        refused(["train", str(written(kind, "privacy", "noise_multiplier", "0.0")), "--out", "new"], 'mode = "none"')


def _mod(mods: list[Any], config: dict[str, Any]) -> Door:
    """A client is told a number by its server: it answers with an error that holds the message."""

    def door(v: Any) -> None:
        told = {key: v if value is None else value for key, value in config.items()}
        federation = Federation(1, lambda model, index: model, mods=mods)
        strategy = averaging(1)
        configured = strategy.configure_train(1, record({"w": np.zeros(3)}), ConfigRecord(told), federation.grid)
        (reply,) = federation.grid.send_and_receive(configured)
        if reply.has_error():
            raise ValueError(reply.error.reason)

    return door


CLIPPED: dict[str, tuple[str, Door]] = {
    "lattice": ("clip_norm", Lattice),
    "clip": ("clip_norm", lambda v: clip(torch.ones(3), v)),
    "plan": ("clip_norm", lambda v: RunPlan(3, ONE, 3, Mechanism(Identity(3), ONE, 1.0), clip_norm=v)),
    "clients": ("clip_norm", lambda v: SimulatedPopulation([EXAMPLES] * 2, F.cross_entropy).collect([0, 1], LAYER, v, 0)),
    "examples": ("clip_norm", lambda v: ExamplePopulation(*EXAMPLES, F.cross_entropy).collect([0, 1], LAYER, v, 0)),
    "examples, plain": (
        "clip_norm",
        lambda v: ExamplePopulation(*EXAMPLES, F.cross_entropy, lattice=False).collect([0, 1], LAYER, v, 0),
    ),
    "private gradients": ("clip_norm", lambda v: private_gradients(LAYER, F.cross_entropy, *EXAMPLES, v)),
    "adaptive": ("initial_clip_norm", lambda v: AdaptiveClipping(initial_clip_norm=v)),
    "Flower": ("clip_norm", lambda v: fixed(clip_norm=v)),
    "Flower, correlated": (
        "clip_norm",
        lambda v: MatrixFactorizationDP(
            FedAvg(), mechanism=Mechanism(Identity(3), ONE, 1.0), clip_norm=v, num_sampled_clients=3, keys_enforced=True
        ),
    ),
    "Flower, adaptive": (
        "initial_clip_norm",
        lambda v: DPFedAvgAdaptive(FedAvg(), noise_multiplier=1.0, num_sampled_clients=30, initial_clip_norm=v),
    ),
    "Flower, Paillier": ("clip_norm", lambda v: fixed(clip_norm=v, secagg=Paillier(KEY))),
    "Flower's names": ("clip_norm", lambda v: compat.DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, v, 3)),
    "a client's mod": ("dpfedavg_clip_norm", _mod([clipping_mod], {"dpfedavg_clip_norm": None})),
    "a client's noise": (
        "dpfedavg_noise_stddev",
        _mod([noising_mod, clipping_mod], {"dpfedavg_clip_norm": 1.0, "dpfedavg_noise_stddev": None}),
    ),
}


DELTAS = {"nan": math.nan, "inf": math.inf, "-1": -1.0, "0": 0.0, "1": 1.0, "1.5": 1.5, "1e999": "1e999"}
EVENTS = [(accounting.PoissonSampled(1.0, 0.1), 3)]
MECHANISM = Mechanism(Identity(3), ONE, 1.0)
OF_DELTA: dict[str, Door] = {
    "epsilon": lambda v: accounting.epsilon(EVENTS, v, "zero-out"),
    "by divergences": lambda v: accounting.epsilon(EVENTS, v, "zero-out", accountant="rdp"),
    "of nothing": lambda v: accounting.epsilon([], v, "zero-out"),
    "one release": lambda v: gaussian.epsilon(v, 1.0),
    "its noise": lambda v: gaussian.noise_multiplier(1.0, v),
    "guarantee": lambda v: accounting.guarantee(MECHANISM, v),
    "guarantee elsewhere": lambda v: accounting.guarantee(MECHANISM, 1e-5).at(v),
    "calibration": lambda v: accounting.calibrate(Identity(3), ONE, epsilon=1.0, delta=v),
    "noise": lambda v: accounting.calibrate_noise_multiplier(accounting.Gaussian(1.0), 3, 1.0, v, "zero-out"),
    "rounds": lambda v: accounting.calibrate_rounds(accounting.Gaussian(1.0), 1.0, v, "zero-out"),
    "sampling": lambda v: accounting.calibrate_sampling_probability(accounting.PoissonSampled(1.0, 0.1), 3, 1.0, v, "zero-out"),
    "cohort": lambda v: accounting.calibrate_cohort_size(accounting.FixedSizeSampled(1.0, 2, 10), 3, 1.0, v, "zero-out"),
    "zCDP": lambda v: accounting.epsilon_from_zcdp(0.5, v),
    "Rényi": lambda v: accounting.epsilon_from_rdp((2.0,), (0.5,), v),
    "group": lambda v: accounting.group_epsilon(lambda delta: 1.0, v, 2),
    "plan": lambda v: RunPlan(3, ONE, 3, MECHANISM, clip_norm=1.0, delta=v),
    "Flower": lambda v: fixed(delta=v),
    "Flower's names": lambda v: compat.DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 3, delta=v),
    "ledger": lambda v: Promise(3, MECHANISM).after(3, v),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["process", "examples"])
def test_num_4_a_delta_that_publishing_somebody_meets_is_warned_of(kind: str) -> None:
    units = {"process": 10, "examples": 1437}[kind]
    for delta, warned in ((1 / units, True), (0.99 / units, False)):
        for command in ("plan", "train"):
            said = invoke(command, written(kind, "privacy", "delta", repr(delta)))
            assert ("WARNING: delta = " in said) == warned


def test_num_4_a_federation_is_warned_of_it_too() -> None:
    for delta, warned in ((0.25, True), (0.2, False)):
        strategy = fixed(4, delta=delta, simulation_seed=SEED)
        federation = Federation(4, lambda model, index: model)
        with logged() as lines:
            strategy.start(federation.grid, record({"w": np.zeros(3)}), num_rounds=1)
        assert any("is not below 1/clients" in line for line in lines) == warned


@pytest.mark.slow
def test_num_5_noise_far_too_small_is_answered_in_little_memory() -> None:
    """In a process of its own: in a quarter of a gigabyte beyond what it has loaded."""
    script = """
import json, resource
from hubbub import accounting
from hubbub.accounting import PoissonSampled, Gaussian, FixedSizeSampled, TreeAggregation
accounting.epsilon([(PoissonSampled(1.0, 0.1), 2)], 1e-5, "zero-out")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
answers = {}
for z in (1e-3, 1e-6, 1e-11):
    sampled = (PoissonSampled(z, 0.01), PoissonSampled(z, 1.0), FixedSizeSampled(z, 3, 100))
    for event in (Gaussian(z), TreeAggregation(z, 9), *sampled):
        for name in ("tight", "rdp"):
            answers[f"{event} {name}"] = accounting.epsilon([(event, 100)], 1e-5, "zero-out", accountant=name)
print(json.dumps({"answers": answers, "kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before}))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    told = json.loads(found.stdout)
    assert told["kib"] < 256 * 1024
    # A hundred rounds of 1e-3 are one of 1e-4.
    exact = gaussian.epsilon(1e-5, 1e-4)
    assert told["answers"]["Gaussian(noise_multiplier=0.001) tight"] == pytest.approx(exact)
    promised = accounting.guarantee(Mechanism(Identity(100), parts.MinSeparation(1, 100), 1e-3), 1e-5)
    assert promised.epsilon == pytest.approx(exact)
    assert min(told["answers"].values()) > 1e4


OF_EPSILON: dict[str, Door] = {
    "beside": lambda v: accounting.calibrate(Identity(3), ONE, prior=(), epsilon=v, delta=1e-5),
    "mechanism": lambda v: accounting.calibrate(Identity(3), ONE, epsilon=v, delta=1e-5),
    "noise": lambda v: accounting.calibrate_noise_multiplier(accounting.PoissonSampled(1.0, 0.1), 3, v, 1e-5, "zero-out"),
    "rounds": lambda v: accounting.calibrate_rounds(accounting.PoissonSampled(1.0, 0.1), v, 1e-5, "zero-out"),
    "sampling": lambda v: accounting.calibrate_sampling_probability(
        accounting.PoissonSampled(1.0, 0.1), 3, v, 1e-5, "zero-out"
    ),
    "cohort": lambda v: accounting.calibrate_cohort_size(accounting.FixedSizeSampled(1.0, 2, 10), 3, v, 1e-5, "zero-out"),
    "separation": lambda v: accounting.calibrate_min_separation(Identity(3), noise_multiplier=1.0, epsilon=v, delta=1e-5),
    "stop, Flower": lambda v: fixed(stop_epsilon=v),
}


def test_num_6_a_budget_out_of_reach_is_refused_with_what_can_be_reached() -> None:
    event = accounting.PoissonSampled(1.0, 0.1)
    with pytest.raises(BudgetError, match=r"one round alone costs .* a noise multiplier of .* would allow one"):
        accounting.calibrate_rounds(event, 1e-3, 1e-5, "zero-out")
    with pytest.raises(BudgetError, match="not even a sampling probability of 1e-12 meets it, which costs"):
        accounting.calibrate_sampling_probability(accounting.PoissonSampled(1e-5, 0.1), 10**12, 1e-12, 1e-12, "zero-out")
    with pytest.raises(BudgetError, match="not even a cohort of one client meets it, which costs"):
        accounting.calibrate_cohort_size(accounting.FixedSizeSampled(0.5, 2, 10), 100, 0.1, 1e-5, "zero-out")
    with pytest.raises(BudgetError, match="one round of each client alone costs"):
        accounting.calibrate_min_separation(Identity(4), noise_multiplier=0.5, epsilon=0.1, delta=1e-5)
    with pytest.raises(BudgetError, match="no noise multiplier up to 1e\\+12 meets it"):
        accounting.calibrate_noise_multiplier(accounting.Gaussian(1.0), 10**12, 1e-12, 1e-300, "replace-one")
    for reach in (1e-13, 1e13):
        with pytest.raises(ValueError, match="must be from 1e-12 to 1e12"):
            accounting.calibrate(Identity(3), ONE, epsilon=reach, delta=1e-5)


def test_num_6_settings_that_no_round_meets_say_what_the_first_one_costs() -> None:
    for kind in KINDS:
        file = str(written(kind, "privacy", "stop_epsilon", "1e-9"))
        refused(["train", file, "--out", "new"], "privacy.stop_epsilon = 1e-09", "the first round alone costs")
    assert not Path("new").exists()


def test_num_12_sums_are_refused_where_they_would_not_be_exact_and_no_sooner() -> None:
    # The largest clip norm has 2^25 − 1 steps, and float64 adds whole numbers exactly up to 2^53.
    most = 2**27
    require_room(most, 1.0)
    largest = Lattice(2 - 2**-24).radius
    assert largest == 2**25 - 1
    # Half of that is kept for the sum, and half for the noise.
    assert most * largest < 2**52 <= most * (largest + 1)
    for too_many in (most + 1, 2**62 - 1, 2**62, 2**62 + 1, 2**63, 10**30):
        with pytest.raises(HubbubError, match="clients"):
            require_room(too_many, 1.0)
    loudest = 2.0**52 / 2**25 / 13
    require_room(1, loudest * (1 - 1e-12))
    for noise in (loudest * (1 + 1e-12), 2.0**62, 2.0**63, 1e300):
        with pytest.raises(HubbubError, match="noise_multiplier"):
            require_room(1, noise)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RunPlan(3, ONE, 3, Mechanism(Identity(3), ONE, 1e9), clip_norm=1.0),
        lambda: fixed(noise_multiplier=1e11, **SHARED),
        lambda: fixed(noise_multiplier=1e11, secagg=Paillier(KEY)),
        lambda: Encryption(bits=16).packing(3, Mechanism(Identity(3), ONE, 1e11)),
    ],
    ids=["process", "noise of clients", "Flower, Paillier", "Paillier"],
)
def test_num_12_more_noise_than_the_lattice_holds_is_refused_before_the_first_round(make: Callable[[], object]) -> None:
    with pytest.raises((HubbubError, ValueError), match=r"noise|clients|room|slots|numbers"):
        make()


def test_num_12_a_federation_with_too_much_noise_starts_no_run(tmp_path: Path) -> None:
    strategy = fixed(2, noise_multiplier=1e9, state=tmp_path / "run")
    federation = Federation(2, lambda model, index: model)
    with pytest.raises(HubbubError, match="noise_multiplier"):
        federation.ask(strategy, {"w": np.zeros(3)})
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


COUNTS = {"0": 0, "-1": -1, "2.5": 2.5, "nan": math.nan, "True": True, "text": "3", "None": None}
OF_COUNT: dict[str, tuple[str, Door]] = {
    "Identity": ("rounds", Identity),
    "BinaryTree": ("rounds", BinaryTree),
    "square root": ("rounds", lambda v: toeplitz.square_root(v, 2)),
    "bands": ("bands", lambda v: toeplitz.square_root(8, v)),
    "banded inverse": ("rounds", lambda v: factorization.banded_inverse.optimize(prefix_sum(v), bands=2)),
    "buffers": ("rounds", lambda v: blt.BufferedLinearToeplitz(v, (0.5,), (0.9,))),
    "dense": ("rounds", lambda v: factorization.dense.optimize(prefix_sum(v))),
    "b": ("min_separation", lambda v: parts.MinSeparation(v, 2)),
    "k": ("max_participations", lambda v: parts.MinSeparation(2, v)),
    "epochs": ("epochs", lambda v: parts.FixedEpochs(v, 2)),
    "rounds of an epoch": ("rounds_per_epoch", lambda v: parts.FixedEpochs(2, v)),
    "every round": ("rounds|max_participations", parts.every_round),
    "cohort": ("cohort_size", lambda v: parts.FixedSizeSampling(v, 10)),
    "population": ("population", lambda v: parts.FixedSizeSampling(1, v)),
    "cap": ("max_cohort_size", lambda v: parts.TruncatedPoissonSampling(0.1, v, 10)),
    "cycle": ("cycle_length", lambda v: parts.CyclicPoissonSampling(0.1, v)),
    "bins": ("bins", parts.BallsInBinsSampling),
    "plan": ("rounds", lambda v: RunPlan(v, ONE, 3)),
    "promise": ("rounds", lambda v: Promise(v, None)),
    "shares": ("clients", NoiseShares),
    "composition": ("rounds", lambda v: accounting.epsilon([(accounting.Gaussian(1.0), v)], 1e-5, "zero-out")),
    "Flower": ("num_sampled_clients", lambda v: fixed(num_sampled_clients=v)),
    "Flower, rounds": ("rounds", lambda v: fixed(rounds=v)),
    "holders": ("holders", lambda v: Encryption(holders=v)),
}


def test_numbers_of_numpy_become_pythons_and_do_not_wrap() -> None:
    epochs = parts.FixedEpochs(np.int8(10), np.int8(20))
    assert Mechanism(Dense(np.eye(200)), epochs, 1.0).l2_sensitivity == pytest.approx(math.sqrt(10))
    n, q = np.uint8(200), np.float16(0.25)
    made: list[object] = [kind(n) for kind in (Identity, BinaryTree, Fourier, parts.BallsInBinsSampling, Workload)]
    made += [parts.MinSeparation(n, n), parts.PoissonSampling(q), parts.CyclicPoissonSampling(q, n), PrivateEvaluation(q)]
    made += [parts.FixedSizeSampling(n, n), parts.TruncatedPoissonSampling(q, n, n), Columns(n, n, q), fixed(rounds=n)._options]
    made += [toeplitz.BandedToeplitz(n, (1,)), blt.BufferedLinearToeplitz(n, (q,), (q,)), RunPlan(n, ONE, q, None, q, q)]
    made += [accounting.BallsInBins(q, n, n), Stamped(np.eye(2), n), Described(n, np.eye(200)), Mean("x", q, n)]
    made += [AdaptiveClipping(q, q, q), LocalTraining(n, n, q), Encryption(bits=np.uint8(16)), Paillier(KEY, np.uint8(16))]
    public, shares = deal(2**40 - 437, 2**40 - 4637, holders=3, threshold=2)
    made += [KeyShare(public, np.int8(1), shares[0].secret), replace(public, threshold=np.int8(2)), Effort(n, n, n)]
    made += [parts.PoissonSampling(Fraction(1, 4)), Agreement(KEY, Packing(key_bits=2049), n, "x"), Promise(n, None, delta=q)]
    own = SimpleNamespace(rounds=np.int8(2), matrix=lambda: np.eye(2), sensitivity=None, step=None)
    assert json.dumps(Promise(np.int8(2), Mechanism(own, ONE, 1.0)).record())
    assert not [one for one in made if any(isinstance(value, np.number | Fraction) for value in vars(one).values())]
    assert len({accounting.epsilon(EVENTS, kind(np.float16(1e-3)), "zero-out") for kind in (float, np.float16)}) == 1
    assert parts.MinSeparation(1, 3).expected_cohort_size(np.int16(30_000), np.int8(10)) == 9_000
    hiding = Encryption(noise_by="clients", min_survivors=6, min_contributions=6)
    assert hiding.packing(np.int16(300), Mechanism(Identity(3), ONE, 1.0, hiding.shares())).noise == 52_174_200
    assert accounting.group_epsilon(lambda delta: np.int8(60), 1e-5, group_size=3) >= 180
    assert json.dumps(accounting.unprotected(np.int8(3), np.float32(1e-5)).as_json())
    for calibrated in (accounting.calibrate_noise_multiplier, accounting.calibrate_rounds):
        with pytest.raises(TypeError, match="event = 3: must be an event"):
            calibrated(3, *(5,) * (calibrated is accounting.calibrate_noise_multiplier), 1.0, 1e-5, "zero-out")


def test_a_cycle_beyond_all_numbers_costs_one_round_and_a_ledger_takes_rounds_of_numpy_but_no_text_for_a_cohort() -> None:
    once = Mechanism(Identity(3), parts.CyclicPoissonSampling(0.5, 10**400), 1.0)
    cost = accounting.epsilon([(accounting.PoissonSampled(1.0, 0.5), 1)], 1e-5, "zero-out")
    assert accounting.guarantee(once, 1e-5).epsilon == cost
    ledger = Ledger(Promise(3, once, simulation=True), bytes(32))
    with pytest.raises(TypeError, match=r"cohort = 'ben': must be a list of clients, such as \['ben'\]"):
        ledger.begin(0, "ben", "sum", 1.0)
    ledger.commit(ledger.begin(np.int8(0), ["ben"], "sum", np.float16(1.0)), b"")
    with pytest.raises(ParticipationError, match="'ben' may not join round 1"):
        ledger.begin(np.int64(1), ["ben"], "sum", 1.0)


def test_num_13_rounds_beyond_any_memory_are_refused_at_once() -> None:
    for many in (10**12, 10**18, 10**30):
        for make in (Identity, BinaryTree, prefix_sum, lambda n: toeplitz.square_root(n, 4)):
            with pytest.raises((ValueError, TypeError, HubbubError), match="rounds"):
                make(many)


# The argument that each kind of door names, its doors, and what none of them takes.
ABOVE_ZERO = {**NUMBERS, "0": 0.0}
DOORS: dict[str, tuple[dict[str, tuple[str, Door]], dict[str, Any]]] = {
    "noise": ({name: ("noise_multiplier", door) for name, door in NOISY.items()}, NUMBERS),
    "clip norm": (CLIPPED, ABOVE_ZERO),
    "delta": ({name: ("delta", door) for name, door in OF_DELTA.items()}, DELTAS),
    "epsilon": ({name: ("epsilon", door) for name, door in OF_EPSILON.items()}, ABOVE_ZERO),
    "count": (OF_COUNT, COUNTS),
}


@pytest.mark.parametrize(
    ("kind", "door", "bad"), [(kind, door, bad) for kind, (doors, odd) in DOORS.items() for door in doors for bad in odd]
)
def test_num_1_num_3_num_4_num_6_num_13_no_door_takes_a_number_that_is_none(
    kind: str, door: str, bad: str, request: pytest.FixtureRequest
) -> None:
    """The error names the argument and shows what it got, before any accountant is asked."""
    doors, odd = DOORS[kind]
    name, take = doors[door]
    if kind in ("noise", "epsilon"):
        request.getfixturevalue("unasked")
    if (door, bad) == ("composition", "0"):
        # No round costs nothing.
        assert take(0) == 0
        return
    with pytest.raises(REFUSALS, match=name if kind == "count" else rf"{name}.*{re.escape(str(odd[bad]))}"):
        take(odd[bad])


# By the settings that each number is called.
CALLED = {"noise_multiplier": NUMBERS, "delta": DELTAS, **dict.fromkeys(("clip_norm", "epsilon", "stop_epsilon"), ABOVE_ZERO)}


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize(
    "kind", ["process", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "process")]
)
@pytest.mark.parametrize(("key", "bad"), [(key, bad) for key, odd in CALLED.items() for bad in odd])
def test_num_1_num_3_num_4_num_6_no_file_and_no_flag_hold_a_number_that_is_none(kind: str, key: str, bad: str) -> None:
    file = str(written(kind, "privacy", key, bad))
    for command in (["plan", file], ["train", file, "--out", "new"]):
        refused(command, f"privacy.{key}", str(float(bad)))
    refused(settings(str(written(kind, "training", "rounds", "2")), f"privacy.{key}={bad}"), key)
    assert not Path("new").exists()


# Where a ledger states it: the line, the keys, and what may stand there.
STATED: dict[str, tuple[tuple[str | int, ...], str]] = {
    "noise": ((0, "mechanism", "noise_multiplier"), 'NaN Infinity -Infinity -1 1e999 0 0.0 "1.0" true null'),
    "clip norm": ((2, "clip_norm"), 'NaN Infinity -1 1e999 0 "0.5" true'),
    "delta": ((0, "delta"), "NaN Infinity -1 0 1 1.5 1e999"),
}


@pytest.mark.parametrize(("what", "text"), [(what, text) for what, (_, texts) in STATED.items() for text in texts.split()])
def test_num_1_num_3_num_4_no_ledger_states_a_number_that_is_none(whole: Path, tmp_path: Path, what: str, text: str) -> None:
    # A copy whose ledger says something else in one place, under hashes that are right.
    folder = Path(shutil.copytree(whole, tmp_path / "forged"))
    records = [json.loads(line)["body"] for line in (folder / "ledger.jsonl").read_text().splitlines()]
    (*outer, last), inner = STATED[what][0], records
    for key in outer:
        inner = inner[key]
    inner[last] = "@@"
    (folder / "ledger.jsonl").write_bytes(chained(canonical(record).replace(b'"@@"', text.encode()) for record in records))
    for reads in (lambda: read_run(folder), lambda: some_rounds(folder, 4)):
        with pytest.raises(HubbubError, match=r"ledger\.jsonl"):
            reads()
    refused(["account", str(folder)], "ledger.jsonl")
    assert hubbub("verify", folder) in (1, 2)


@pytest.mark.parametrize("rate", [1e39, math.inf, math.nan])
def test_num_14_a_federated_model_that_diverges_is_not_kept_and_its_rounds_stay_charged(tmp_path: Path, rate: float) -> None:
    inner = FedAvgM(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3, server_learning_rate=rate)
    strategy = DPFedAvgFixed(inner, clip_norm=1.0, noise_multiplier=1.0, num_sampled_clients=3, state=tmp_path / "run")
    federation = Federation(3, lambda model, index: {"w": model["w"] + 1})

    def go_on() -> None:
        model: Any = {"w": np.zeros(5, np.float32)}
        for _ in range(20):
            model, _ = federation.round(strategy, model)

    with np.errstate(all="ignore"), pytest.raises(HubbubError, match="is not finite"):
        go_on()
    charged = strategy.rounds_charged
    assert charged >= 1
    assert strategy.guarantee().epsilon == strategy.guarantee(rounds=charged).epsilon > 0
    records = read_chain(tmp_path / "run" / "ledger.jsonl").records
    assert sum(record["kind"] == "commit" for record in records) == charged
    # What is kept is the model of before.
    kept = load_file(tmp_path / "run" / "state" / "server.safetensors")
    assert all(np.isfinite(value).all() for name, value in kept.items() if name.startswith("model/"))
