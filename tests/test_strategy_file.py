"""A strategy comes back from its file bit for bit, and a file that is not what it says is refused by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as safetensors

from conftest import raising
from hubbub.errors import DataError
from hubbub.experiment import config as configs
from hubbub.experiment.build import build
from hubbub.experiment.engine.folder import resolved
from hubbub.experiment.planner import planned
from hubbub.factorization import Optimized, banded, strategy_file
from hubbub.factorization.families import DESCRIPTIONS, Family, answer_of
from hubbub.mechanism import strategies
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, SingleParticipation
from hubbub.mechanism.workloads import Workload, momentum, prefix_sum
from malformed import laws

FAMILIES = [name for name in DESCRIPTIONS if name != "file"]
MADE = {
    **{name: answer_of(Family(name), prefix_sum(rounds=12), SingleParticipation()).strategy for name in FAMILIES},
    "a tree that starts again": strategies.BinaryTree(12, decoder="online", rounds_per_tree=5, completed=True),
    "a matrix": strategies.Dense(np.tril(np.random.default_rng(0).normal(size=(12, 12))) + 3 * np.eye(12)),
    "stamped": strategies.Stamped([[1.0, 0.0], [0.5, 1.0]], rounds=12),
    "a full transition": strategies.Semiseparable(np.ones(12), np.ones((12, 2)), np.full((12, 2, 2), 0.1), np.ones((12, 2))),
    "columns": strategies.Columns(12, 3, 0.2),
    "described": strategies.Described(12, np.vstack([np.eye(12), np.ones(12)]), "their.Own"),
    "a number that no decimal holds": strategies.Banded([[0.1] * 12, [1 / 3] * 11 + [0.0]]),
}


def answer(strategy: Any, workload: Workload | None = None, participation: Participation | None = None) -> Optimized:
    pattern = participation or SingleParticipation()
    return Optimized(strategy, workload or prefix_sum(strategy.rounds), pattern, "mean", 1.5, 1.25, "every strategy", 3)


def test_every_strategy_of_the_package_is_among_those_tested() -> None:
    assert {type(strategy) for strategy in MADE.values()} >= set(strategies.OWN)


@pytest.mark.parametrize("name", MADE)
def test_a_strategy_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    strategy = MADE[name]
    strategy_file.save(tmp_path / "s.safetensors", answer(strategy))
    back = strategy_file.load(tmp_path / "s.safetensors")
    assert type(back) is type(strategy)
    assert strategies.strategy_numbers(back) == strategies.strategy_numbers(strategy)
    before, after = strategies.strategy_arrays(strategy), strategies.strategy_arrays(back)
    first, second = ({key: (a.shape, a.tobytes()) for key, a in arrays.items()} for arrays in (before, after))
    assert first == second


@pytest.mark.parametrize("participation", [SingleParticipation(), MinSeparation(4, 3), FixedEpochs(3, 4)], ids=repr)
def test_what_is_stated_of_a_strategy_comes_back(tmp_path: Path, participation: Participation) -> None:
    workload = momentum(12, 0.9, np.linspace(1, 0.05, 12))
    given = replace(answer(strategies.Identity(12), workload, participation), objective="max")
    strategy_file.save(tmp_path / "s.safetensors", given, seconds=0.25, command="hubbub factorize …")
    stored = strategy_file.load_answer(tmp_path / "s.safetensors")
    assert (stored.answer.workload, stored.answer.participation) == (workload, participation)
    for key in ("objective", "squared_error", "lower_bound", "bound_family", "iterations"):
        assert getattr(stored.answer, key) == getattr(given, key)
    assert (stored.seconds, stored.command) == (0.25, "hubbub factorize …")


def test_the_least_weighted_mean_is_not_stored_or_shown_as_a_plain_one(tmp_path: Path) -> None:
    found = banded.optimize(prefix_sum(16), 4, weights=[0] * 15 + [1])
    assert "root weighted mean squared error" in found._repr_mimebundle_()["text/plain"]
    with pytest.raises(ValueError, match=r"'weighted mean'.*numpy\.save.*without weights"):
        strategy_file.save(tmp_path / "s.safetensors", found)
    assert not [*tmp_path.iterdir()]


def test_the_file_is_one_that_others_read_and_states_no_sensitivity(tmp_path: Path) -> None:
    from safetensors import safe_open

    strategy_file.save(tmp_path / "s.safetensors", answer(MADE["blt"]))
    with safe_open(tmp_path / "s.safetensors", "np") as file:
        assert set(file.keys()) == {"strategy.forgetting", "strategy.output_scales"}
        assert "sensitivity" not in file.metadata()["hubbub"]
    assert (tmp_path / "s.safetensors").stat().st_mode & 0o777 == 0o644


STATED: dict[str, Any] = {
    "schema": 1, "hubbub": "0.1.0", "strategy": {"name": "Dense"}, "workload": {"rounds": 2, "momentum": 0.0},
    "participation": {"name": "SingleParticipation"}, "objective": "mean", "squared_error": 1.5, "lower_bound": 1.0,
    "bound_family": "every strategy", "iterations": 0, "seconds": None, "command": "",
}  # fmt: skip
ARRAYS = {"strategy.C": np.array([[1.0, 0.0], [0.5, 1.0]])}
# Claims that nobody can check, and what they may be.
FREE = {f"{name}: text" for name in ("hubbub", "command", "bound_family")} | {
    *("squared_error: 1.5", "squared_error: huge", "lower_bound: 1.5", "iterations: huge"),
    *("seconds: null", "seconds: 1.5", "seconds: huge"),
}


def forged(stated: object = STATED, arrays: dict[str, Any] = ARRAYS, **entries: str) -> bytes:
    """The file of a dense strategy that states and holds this."""
    found = {name: np.asarray(array) for name, array in arrays.items()}
    return safetensors(found, {"hubbub": json.dumps(stated), **entries})


def refused(tmp_path: Path, content: bytes, what: str = "") -> str:
    file = tmp_path / "s.safetensors"
    file.write_bytes(content)
    try:
        strategy_file.load(file)
    except DataError as error:
        message = str(error)
    else:
        pytest.fail(f"{what}: was taken")
    assert message.startswith(f"{file}: ")
    assert len(message.splitlines()) == 1
    assert len(message) < 600
    return message


def test_whatever_is_no_strategy_file_is_refused_in_one_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "good.safetensors").write_bytes(forged())
    assert isinstance(strategy_file.load(tmp_path / "good.safetensors"), strategies.Dense)
    damaged = [*laws.of_safetensors(forged()), ("more metadata", forged(more="1"))]
    damaged += [(what, forged(odd)) for what, odd in laws.of_record(STATED, FREE)]
    damaged += [
        (what, forged(arrays=odd)) for what, odd in laws.of_arrays(forged()) if not what.endswith(("folded", "missing"))
    ]
    damaged += [
        ("a sensitivity", forged({**STATED, "l2_sensitivity": 0.1})),
        ("an array of sensitivities", forged(arrays={**ARRAYS, "sensitivity": [1.0]})),
        ("code in the place of a family", forged(laws.with_value(STATED, ("strategy", "name"), "os.system"))),
    ]
    for what, content in damaged:
        refused(tmp_path, content, what)
    # Before it is read.
    assert "header claims" in refused(tmp_path, (2**16 + 1).to_bytes(8, "little") + b"{}" + b" " * 70_000)


def test_what_cannot_be_read_back_or_written_replaces_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy_file.save(file := tmp_path / "s.safetensors", answer(strategies.Identity(4)))
    before = file.read_bytes()
    with pytest.raises(ValueError, match="must not be negative"):
        strategy_file.save(file, answer(strategies.Identity(3)), seconds=-1.0)
    assert file.read_bytes() == before
    monkeypatch.setattr("os.fsync", raising(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        strategy_file.save(file, answer(strategies.Identity(3)))
    assert file.read_bytes() == before


def test_a_run_that_read_its_strategy_from_a_file_can_be_resumed_from_its_written_settings(tmp_path: Path) -> None:
    strategy_file.save(tmp_path / "s.safetensors", answer(MADE["banded-toeplitz"]))
    file = {"strategy": "file", "matrix": str(tmp_path / "s.safetensors")}
    privacy = {"mode": "dp-ftrl", "noise_multiplier": 2.0, **file}
    run = build(configs.resolve({"training": {"rounds": MADE["banded-toeplitz"].rounds}, "privacy": privacy}))
    again = planned(resolved(run), clients=100)
    assert again.mechanism == run.plan.mechanism
