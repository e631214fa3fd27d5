"""``secagg = "paillier"`` in a run's settings: what they make, what is refused, and a run from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hubbub import MinSeparation, guarantee
from hubbub.errors import HubbubError
from hubbub.experiment import config as configs
from hubbub.experiment.build import build
from hubbub.report.page import page
from hubbub.report.summary import summary
from hubbub.secagg import key_files, threshold
from hubbub.secagg.paillier import PrivateKey
from recorded_runs import invoke, trained
from refusals import refused
from small_keys import LONG_SAFE as PRIMES

BASE = {
    "training": {"rounds": 2, "cohort_size": 3},
    "privacy": {"mode": "dp-fedavg", "noise_multiplier": 0.5, "clip_norm": 0.5},
    "data": {"clients": 12},
    "secagg": {"scheme": "paillier", "key_bits": 2048},
}
# Cohorts of two and of three.
ROTATION = {"participation": {"rounds_per_epoch": 5}}


def settings(**changes: dict[str, object]) -> configs.Config:
    return configs.resolve(BASE, changes)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole key of two primes, and three shares of it."""
    folder = tmp_path_factory.mktemp("keys")
    key_files.write_private(folder / "private-key.json", PrivateKey.from_primes(*PRIMES))
    for share in threshold.deal(*PRIMES, holders=3, threshold=2, min_contributions=3)[1]:
        key_files.write_share(folder / f"share-{share.holder}.json", share)
    return folder


def test_a_key_for_sums_of_more_is_refused_before_the_run_begins(keys: Path, tmp_path: Path) -> None:
    train = ["train", tmp_path / "run.toml", "-o", tmp_path / "run"]
    train[1].write_text(configs.dump(settings(secagg={"keys": str(keys), "holders": 3})))
    for engine in ("process", "flower"):
        refused([*train, "--engine", engine], "secagg.min_contributions = 2: must be at least 3")
    assert not (tmp_path / "run").exists()


def test_cohorts_are_by_a_pattern_and_the_promise_says_who_is_trusted() -> None:
    run = build(settings())
    assert run.plan.participation == MinSeparation(4, 1)
    promised = run.plan.promise().after(2, 1e-5)
    assert promised.epsilon == guarantee(run.plan.mechanism, 1e-5).epsilon  # type: ignore[arg-type]
    text = promised.statement()
    assert "the owner of the key, who is not the server, opens sums" in text
    assert "each client clips what it encrypts" in text
    assert "receives the update of each client" not in text


@pytest.mark.parametrize(
    ("holders", "noise_by", "expected"), [(3, "server", 2), (4, "server", 3), (3, "holders", 3), (5, "clients", 3)]
)
def test_the_threshold_is_a_majority_and_all_where_holders_add_the_noise(holders: int, noise_by: str, expected: int) -> None:
    run = build(settings(secagg={"holders": holders, "noise_by": noise_by}, **ROTATION))
    assert run.encryption.threshold == expected
    assert run.encryption.min_survivors == (2 if noise_by == "clients" else None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": {"sampling": "poisson"}}, "privacy.sampling = 'poisson' with secagg.scheme = 'paillier'"),
        ({"secagg": {"min_contributions": 4}}, "secagg.min_contributions = 4: cohorts have 3"),
        ({"secagg": {"noise_by": "clients", "min_survivors": 4}}, "secagg.min_survivors = 4: cohorts have 3"),
        ({**ROTATION, "secagg": {"min_contributions": 3}}, "secagg.min_contributions = 3: cohorts have 2"),
        ({"privacy": {"mode": "none"}, "training": {"engine": "flower"}}, "with secagg and training.engine = 'flower'"),
        ({"training": {"nproc": 2}}, "training.nproc = 2 with secagg"),
        ({"secagg": {"min_survivors": 2}}, "secagg.min_survivors = 2 with secagg.noise_by = 'server'"),
        ({"secagg": {"noise_by": "clients"}, "privacy": {"mode": "none"}}, "secagg.noise_by = 'clients': with privacy.mode"),
        ({"secagg": {"scheme": "none"}}, 'secagg.key_bits = 2048: does nothing without scheme = "paillier"'),
        ({"privacy": {"mode": "dp-ftrl"}, "secagg": {"noise_by": "clients"}}, "shares with strategy = BandedToeplitz"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(changes: dict[str, dict[str, object]], words: str) -> None:
    with pytest.raises(HubbubError) as refusal:
        build(settings(**changes))
    assert words in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("secagg", "words"),
    [
        ({}, "the owner of the key, who is not the server, opens sums"),
        ({"holders": 3, "threshold": 2, "min_contributions": 3, "noise_by": "holders"}, "any 2 of 3 holders"),
    ],
)
def test_a_run_from_the_command_line_is_verified_says_what_encryption_cost_and_is_closed(
    secagg: dict[str, object], words: str, keys: Path, tmp_path: Path
) -> None:
    trained(tmp_path, configs.dump(settings(secagg={**secagg, "keys": str(keys)}, training={"rounds": 1})))
    assert words in (tmp_path / "run" / "report.md").read_text()
    assert "decrypt the sum, key holders" in (tmp_path / "run" / "report.html").read_text()
    # By its seconds one can tell how many took part.
    assert "decrypt the sum, key holders" not in page([summary(tmp_path / "run")], public=True)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(row["decrypt_seconds"] > 0 and row["upload_bytes"] > 500 for row in rows)
    invoke("verify", tmp_path / "run")
    state = tmp_path / "run" / "state"
    assert len(list(state.rglob("epoch-*"))) == 1 + (3 if "noise_by" in secagg else 0)
    assert "nothing is left to train" in invoke("resume", tmp_path / "run")
    invoke("close", tmp_path / "run")
    # Those of the simulated holders, too.
    assert not list(state.rglob("epoch-*"))


@pytest.mark.slow
def test_pai_16_without_gmpy2_all_else_works_and_encryption_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(configs.dump(settings()))
    code = (
        "import importlib.util, sys\n"
        "sys.modules['gmpy2'] = None\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name in ('gmpy2', 'flwr') else found(name, *more)\n"
        "import hubbub.audit, hubbub.experiment.engine.flower_app, hubbub.flower.strategies, hubbub.verification\n"
        "from hubbub.cli import main\n"
        "main(sys.argv[1:])\n"
    )

    def hubbub(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    without = hubbub("train", "run.toml")
    assert without.returncode == 2
    assert "secagg.scheme = 'paillier': gmpy2 is not installed; pip install 'hubbub[secagg]'" in without.stderr
    assert not (tmp_path / "runs").exists()
    plain = ("--set", "secagg.scheme=none", "--set", "secagg.key_bits=3072", "--set", "training.rounds=1")
    assert hubbub("train", "run.toml", *plain).returncode == 0
    assert "pip install 'hubbub[secagg]'" in hubbub("paillier", "keygen", "-o", "keys").stderr
    assert "Flower is not installed; pip install 'hubbub[flower]'" in hubbub("train", "run.toml", "--engine", "flower").stderr
