"""The names of ``import hubbub``: a first program says each fact once, and what follows from it is what the long way makes."""

import ast
import dataclasses
import inspect
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from torch import nn

import hubbub
import hubbub.accounting
import hubbub.training
from hubbub.accounting.guarantee import unprotected
from hubbub.errors import ConfigError, DataError
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import Participation
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.training import Execution, RunPlan
from hubbub.training.simulation.functional import FlatModel

CLIENTS, ROUNDS = 60, 12
SAMPLED = hubbub.PoissonSampling(0.2)
MECHANISM = Mechanism(Identity(ROUNDS), SAMPLED, 1.5)
EACH: list[Participation] = [
    hubbub.SingleParticipation(), hubbub.FixedEpochs(3, 4), hubbub.MinSeparation(4, 3), hubbub.MinSeparation(4, 1), SAMPLED,
    hubbub.FixedSizeSampling(5, CLIENTS), hubbub.TruncatedPoissonSampling(0.2, 12, CLIENTS),
    hubbub.CyclicPoissonSampling(0.5, 3), hubbub.BallsInBinsSampling(4),
]  # fmt: skip


def test_the_public_names_are_sorted_there_and_described_with_an_example() -> None:
    assert hubbub.__all__ == sorted(hubbub.__all__)
    assert set(hubbub.__all__) <= set(dir(hubbub))
    for name in set(hubbub.__all__) - {"__version__"}:
        assert ">>>" in (inspect.getdoc(getattr(hubbub, name)) or ""), name


def test_what_a_type_checker_sees_is_what_a_program_gets() -> None:
    """The imports for type checkers name the same objects as those at run time."""
    tree = ast.parse(Path(hubbub.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(seen) == set(hubbub.__all__)
    for name, module in seen.items():
        assert getattr(hubbub, name) is getattr(sys.modules[module or ""], name), name


@pytest.mark.slow
def test_the_public_names_are_there_without_source_in_a_zip_file(tmp_path: Path) -> None:
    """As an application has them that is one file, or was frozen."""
    with zipfile.PyZipFile(str(tmp_path / "hubbub.zip"), "w") as file:
        file.writepy(str(Path(hubbub.__file__).parent))
    lazy = ("", ".accounting", ".factorization", ".ledger", ".mechanism.gaussian", ".mechanism.strategies")
    lines = [f"from hubbub{package} import *" for package in lazy]
    command = [sys.executable, "-c", "\n".join([*lines, "print(Mechanism.__module__, epsilon.__module__)"])]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "hubbub.zip")}
    asked = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert asked.stdout.split() == ["hubbub.mechanism.mechanism", "hubbub.mechanism.gaussian.exact"], asked.stderr


def test_annotations_of_public_names_can_be_evaluated() -> None:
    """As tools do that check arguments or make a form of them; what is loaded for some runs alone is left out."""
    for package in (hubbub, hubbub.accounting, hubbub.training):
        for name in set(package.__all__) - {"__version__", "RunStore", "clip"}:
            named = getattr(package, name)
            if inspect.isfunction(named) or dataclasses.is_dataclass(named):
                assert get_type_hints(named).keys() >= inspect.get_annotations(named).keys(), name


def test_the_front_door_loads_neither_torch_nor_flower_nor_dp_accounting_until_they_are_needed() -> None:
    program = (
        "import sys, hubbub, hubbub.accounting\n"
        "m = hubbub.calibrate(rounds=3, participation=hubbub.PoissonSampling(0.5), epsilon=4.0, delta=1e-5)\n"
        "hubbub.guarantee(m, 1e-5)\n"
        "print([name for name in ('torch', 'flwr', 'dp_accounting') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("participation", EACH, ids=str)
def test_a_plan_is_the_run_plan_that_says_everything(participation: Participation) -> None:
    mechanism = Mechanism(Identity(ROUNDS), participation, 1.5)
    size = participation.expected_cohort_size(CLIENTS, ROUNDS)
    server = hubbub.ServerOptimizer("fedavgm", 0.5)
    short = hubbub.Plan(mechanism, 0.7, 1e-6, size, server, seed=4, noise="simulation").for_clients(CLIENTS)
    long = RunPlan(ROUNDS, participation, size, mechanism, clip_norm=0.7, delta=1e-6, server=server, seed=4, noise="simulation")
    assert short == long
    by_default = hubbub.Plan(mechanism, 0.7, 1e-6, None, server, seed=4, noise="simulation").for_clients(CLIENTS)
    assert by_default.expected_cohort_size == size
    assert by_default.promise().after(ROUNDS, 1e-6).epsilon == long.promise().after(ROUNDS, 1e-6).epsilon


def test_a_plan_with_a_field_of_ones_own_trains_as_any_other() -> None:
    noted = dataclasses.make_dataclass("Noted", [("note", str, "mine")], bases=(hubbub.Plan,), frozen=True)
    assert noted(MECHANISM, 0.7, 1e-6).for_clients(CLIENTS) == hubbub.Plan(MECHANISM, 0.7, 1e-6).for_clients(CLIENTS)


def test_a_divisor_that_was_made_of_the_clients_is_an_assumption_of_the_statement() -> None:
    sentence = "the divisor of the sums, 12, made of 60 clients, is public and the same whoever takes part"
    for plan, said in ((hubbub.Plan(MECHANISM, 1.0, 1e-5), True), (hubbub.Plan(MECHANISM, 1.0, 1e-5, 12.0), False)):
        answer = plan.for_clients(CLIENTS).promise().after(ROUNDS, 1e-5)
        assert (sentence in answer.statement()) == said


def test_rounds_stand_for_independent_noise() -> None:
    one = hubbub.calibrate(rounds=8, participation=hubbub.MinSeparation(4, 2), epsilon=2.0, delta=1e-5)
    assert one == hubbub.calibrate(Identity(8), hubbub.MinSeparation(4, 2), epsilon=2.0, delta=1e-5)
    banded = hubbub.calibrate(toeplitz.square_root(8, 4), hubbub.MinSeparation(4, 2), epsilon=2.0, delta=1e-5)
    assert banded != one


@pytest.mark.parametrize(
    ("given", "refused", "message"),
    [
        ({"clip_norm": None}, ConfigError, "clip_norm: a run with a mechanism needs one"),
        ({"mechanism": None}, TypeError, "mechanism: is a NoneType, must be a Mechanism"),
        ({"mechanism": Mechanism(toeplitz.square_root(8, 4), SAMPLED, 1.0)}, ConfigError, "PoissonSampling"),
        ({"mechanism": Mechanism(Identity(4), SAMPLED, 1e12)}, ConfigError, "noise_multiplier|stddev"),
    ],
)
def test_a_plan_no_run_may_have_is_refused_when_made(given: dict[str, object], refused: type[Exception], message: str) -> None:
    usual = {"mechanism": Mechanism(Identity(4), SAMPLED, 1.0), "clip_norm": 1.0, "delta": 1e-5}
    with pytest.raises(refused, match=message):
        hubbub.Plan(**(usual | given))  # type: ignore[arg-type]


@pytest.mark.parametrize("examples", [4, 2, 1])
def test_the_examples_of_one_client_are_not_taken_for_a_list_of_clients(examples: int) -> None:
    pair = (torch.randn(examples, 3), torch.zeros(examples, dtype=torch.int64))
    with pytest.raises(DataError, match=r"clients\[0\]: is a Tensor, must be the pair .*give clients=\[\(inputs, targets\)\]"):
        hubbub.SimulatedPopulation(pair, nn.functional.cross_entropy)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"clients\[1\]: is a tuple of 3, must be the pair"):
        hubbub.SimulatedPopulation([pair, (*pair, pair[0])], nn.functional.cross_entropy)  # type: ignore[list-item]
    assert len(hubbub.SimulatedPopulation([pair], nn.functional.cross_entropy).clients) == 1


def test_clients_that_are_no_list_and_a_loss_that_is_no_function_are_refused_at_once() -> None:
    pair = (torch.randn(4, 3), torch.zeros(4, dtype=torch.int64))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*pair))
    with pytest.raises(DataError, match=r"clients: is a DataLoader; give a list of the pairs \(inputs, targets\)"):
        hubbub.SimulatedPopulation(loader, nn.functional.cross_entropy)  # type: ignore[arg-type]
    for made in (lambda: hubbub.SimulatedPopulation([pair], "ce"), lambda: hubbub.ExamplePopulation(*pair, "ce")):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="loss = 'ce': must be a function of outputs and targets"):
            made()


def test_of_what_no_run_can_train_on_the_reason_is_said() -> None:
    inputs, targets, loss, broken = torch.ones(2, 3), torch.zeros(2, dtype=torch.int64), nn.CrossEntropyLoss(), nn.Linear(3, 2)
    nn.init.constant_(broken.bias, torch.nan)
    for message, make in {
        "model: has parameters without values": lambda: FlatModel(nn.LazyLinear(2)),
        "lazy layers, device 'meta'": lambda: FlatModel(nn.Linear(2, 2, device="meta")),
        "loss: has trainable parameters": lambda: hubbub.private_gradients(nn.Linear(3, 2), nn.PReLU(), inputs, targets, 1.0),
        "model: has parameters that are not finite": lambda: FlatModel(broken),
        "clients: is a int; give a list": lambda: hubbub.SimulatedPopulation(5, loss),
        "plan = 5: must be 'auto'": lambda: Execution(plan=5),
        "inputs: are a list; make a torch.Tensor of them": lambda: hubbub.ExamplePopulation(inputs.tolist(), targets, loss),
        "batch = 0: must be at least 1": lambda: hubbub.ExamplePopulation(inputs, targets, loss, batch=0),
    }.items():
        with pytest.raises((ValueError, DataError), match=message):
            make()


def test_a_plan_that_hides_examples_takes_no_population_that_clips_clients() -> None:
    clients = [(torch.randn(4, 3), torch.zeros(4).long()) for _ in range(9)]
    mechanism = Mechanism(Identity(4), SAMPLED, 1.0)
    plan = RunPlan(4, SAMPLED, 5.0, mechanism, clip_norm=1.0, privacy_unit="example")
    # One example more moves the update of its client by up to two clip norms.
    with pytest.raises(ConfigError, match=r"privacy_unit = 'example': a SimulatedPopulation clips clients.* single examples"):
        next(hubbub.train(plan, hubbub.SimulatedPopulation(clients, nn.functional.cross_entropy), nn.Linear(3, 2)))


@pytest.mark.parametrize("unit", ["patient", "", "clients", "Client"])
def test_a_privacy_unit_that_nobody_clips_by_is_refused(unit: str) -> None:
    """What is clipped as one is a client or an example; a word for people in a statement would promise something else."""
    mechanism = Mechanism(Identity(4), SAMPLED, 1.0)
    for made in (
        lambda: hubbub.guarantee(mechanism, 1e-5, privacy_unit=unit),
        lambda: hubbub.calibrate(rounds=4, participation=SAMPLED, epsilon=1.0, delta=1e-5, privacy_unit=unit),
        lambda: RunPlan(4, mechanism.participation, 5.0, mechanism, clip_norm=1.0, privacy_unit=unit),
        lambda: RunPlan(4, mechanism.participation, 5.0, privacy_unit=unit),
        lambda: unprotected(4, 1e-5, unit),
    ):
        with pytest.raises(ValueError, match=f"privacy_unit = {unit!r}: must be one of client, example"):
            made()
