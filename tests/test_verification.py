"""What ``hubbub verify``, ``ledger`` and ``close`` say of a run, whole and damaged."""

import hashlib
import json
import re
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from cohort_file import block, blocks, bound, joined
from hubbub import Plan, PoissonSampling, RunStore, accounting, train
from hubbub._util import strict_json
from hubbub.errors import RunFolderError
from hubbub.ledger.actual_cost import spent
from hubbub.ledger.chain import read_chain, record_hash
from hubbub.ledger.ledger import add_record
from hubbub.mechanism import Mechanism, gaussian
from hubbub.mechanism.strategies import Identity
from hubbub.training.run_folder.record import read_run
from hubbub.verification import verdict, verify
from recorded_runs import answer, hubbub, invoke, require_noticed, rewritten, trained, unproved
from refusals import contents, refused
from small_runs import linear, population, until

CONFIG = """
training = { rounds = 12, cohort_size = 10 }
privacy = { mode = "dp-ftrl", noise_multiplier = 1.0, bands = 5 }
participation = { min_separation = 5, max_participations = 3 }
data = { clients = 60 }
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("verification"), CONFIG)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def failing(folder: Path, head: str | None = None) -> dict[str, str]:
    return {check.name: check.detail for check in verify(folder, head).checks if not check.ok}


def test_a_run_that_lost_its_ledger_is_told_that_its_cost_is_spent(run: Path) -> None:
    (run / "ledger.jsonl").unlink()
    refused(["resume", run], "ledger.jsonl not there", "what they cost is spent: restore ledger.jsonl")


def test_a_finished_run_holds(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert hubbub("verify", str(run)) == 0
    shown = capsys.readouterr().out
    assert "all checks pass" in shown
    assert shown.count("passes ") >= 8
    # What no digest binds can be forged: nothing passes there.
    assert "\nnote   coverage " in shown
    head = answer("ledger", str(run))["head"]
    assert failing(run, head) == {}
    # Releases that a run removes between the list of them and the first one are no fault.
    add_record(run / "ledger.jsonl", {"kind": "forget"})
    kept, read = run / "state" / "releases", RunStore.release_content
    monkeypatch.setattr(RunStore, "release_content", lambda store, t: (shutil.rmtree(kept), read(store, t))[1])
    assert failing(run) == {}


def test_acc_7_verification_changes_nothing(run: Path) -> None:
    before = contents(run)
    verify(run)
    assert contents(run) == before


@pytest.mark.parametrize("ahead", [6, 40])
def test_a_run_that_goes_on_while_it_is_read_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    plan = Plan(Mechanism(Identity(ahead), PoissonSampling(0.5), noise_multiplier=1.0), clip_norm=1.0, delta=1e-5)
    rounds = train(plan, population(), linear(), RunStore(tmp_path / "run"))
    next(rounds)
    # Between the ledger and the releases, a round.
    monkeypatch.setattr(verdict, "spent", lambda *read: (next(rounds, None), spent(*read))[1])
    if ahead > 6:
        assert "verify it again between two rounds" in failing(tmp_path / "run")["running"]
        return
    assert failing(tmp_path / "run") == {}
    (tmp_path / "run" / "state" / "releases" / "5.safetensors").write_bytes(b"changed")
    assert "the release of round 5 is not the committed one" in failing(tmp_path / "run")["releases"]


def test_acc_13_verify_reads_a_run_without_its_code_and_imports_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "config.toml").write_text('[model]\nname = "poison:Model"\n[data]\nname = "poison:load"\n')
    (run / "poison.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.chdir(run)
    assert failing(Path()) == {"files": "config.toml is not the file that the ledger binds"}
    assert "poison" not in sys.modules


def edited(file: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / file).write_bytes(change((run / file).read_bytes()))

    return damage


def replaced(file: str, pattern: bytes, by: bytes) -> Callable[[Path], None]:
    return edited(file, lambda content: re.sub(pattern, by, content))


def flipped(content: bytes) -> bytes:
    return content[:-5] + bytes([content[-5] ^ 16]) + content[-4:]


def moved_off_the_lattice(run: Path) -> None:
    """A release with a number between two points, and a record that fits it."""
    file = run / "state" / "releases" / "3.safetensors"
    release = RunStore(run).parse_release(3, file.read_bytes()).numpy()
    release[0] += 2.0**-40
    file.write_bytes(save({"release": release}))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()

    def change(records: list[dict]) -> None:
        next(r for r in records if r["kind"] == "commit" and r["round"] == 3)["release"] = digest

    rewritten(run, change)


def join_again(run: Path) -> None:
    """A client of the first round in the second, too."""
    file = run / "ledger.cohorts"
    first, second, *others = blocks(file.read_bytes())
    tags = struct.unpack_from("<10Q", second, 12)
    second = block(1, [0], tags)
    file.write_bytes(b"".join([first, second, *others]))
    rewritten(run, lambda records: [r for r in records if r["kind"] == "begin"][1].update(bound(second)))


def promising(**changes: float) -> Callable[[Path], None]:
    """A promise whose mechanism is said to be another."""
    return lambda run: rewritten(run, lambda records: records[0].update(mechanism=records[0]["mechanism"] | changes))


LESS = rb'"epsilon":[0-9.]+', b'"epsilon":0.5'
DAMAGES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a flipped release": (edited("state/releases/4.safetensors", flipped), "releases", "round 4"),
    "a missing release": (lambda run: (run / "state/releases/4.safetensors").unlink(), "releases", "round 4"),
    "a release too many": (
        lambda run: shutil.copy(run / "state/releases/4.safetensors", run / "state/releases/12.safetensors"),
        "traces",
        "releases/12",
    ),
    "a release between the points": (moved_off_the_lattice, "releases", "lattice"),
    "a client too often": (join_again, "participation", "epsilon is"),
    "a promise that states a lower epsilon": (promising(epsilon=0.1), "promise", "epsilon"),
    "a promise that states more noise": (promising(noise_multiplier=9.0), "promise", "stddev"),
    "a promise that states a lower sensitivity": (promising(l2_sensitivity=0.1), "promise", "l2_sensitivity"),
    "a guarantee that states less": (replaced("guarantee.json", *LESS), "epsilon", "guarantee.json"),
    "metrics that state less": (replaced("metrics.jsonl", *LESS), "epsilon", "metrics.jsonl"),
    "an edited ledger": (replaced("ledger.jsonl", b'"stddev":', b'"stddEv":'), "record", "line 1"),
    "a strategy that was exchanged": (edited("strategy.safetensors", flipped), "record", "coefficients"),
    "a key that others may read": (lambda run: (run / "state/keys/epoch-0").chmod(0o644), "secrets", "epoch-0"),
    "a model of another run": (replaced("model.safetensors", rb"(?<=\")[0-9a-f]{64}(?=\")", b"0" * 64), "model", "no head"),
    "a model that was removed": (lambda run: (run / "model.safetensors").unlink(), "files", "model.safetensors"),
    "a start that was exchanged": (edited("state/initial.safetensors", flipped), "start", "not the initial model"),
}


@pytest.mark.parametrize(("damage", "name", "words"), DAMAGES.values(), ids=DAMAGES.keys())
def test_what_does_not_hold_is_named_and_the_status_is_1(
    run: Path, damage: Callable[[Path], None], name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run)
    assert words in failing(run)[name]
    assert hubbub("verify", str(run)) == 1
    assert f"FAILS  {name}" in capsys.readouterr().out
    told = answer("verify", str(run), status=1)
    assert told["ok"] is False
    assert next(check["name"] for check in told["checks"] if not check["ok"]) in failing(run)


def test_the_epsilon_of_a_broken_pattern_is_that_of_what_happened(run: Path) -> None:
    promise = read_run(run).promise
    join_again(run)
    # No entry is negative, so that equal signs are the worst.
    C = promise.mechanism.strategy.matrix()
    longest = max(float(np.linalg.norm(C[:, rounds].sum(axis=1))) for rounds in joined(run / "ledger.jsonl").values())
    happened = gaussian.epsilon(promise.delta, promise.mechanism.stddev / longest)
    assert happened != pytest.approx(promise.after(promise.rounds, promise.delta).epsilon, rel=1e-3)
    assert f"the actual epsilon is {accounting.rounded_up(happened)}" in failing(run)["participation"]


METRICS, REPORTS = ["metrics.jsonl", "metrics.prom"], ["report.html", "report.md", "report.png"]


@pytest.mark.parametrize("bits", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_cra_18_a_flipped_bit_shows_in_every_file_but_those_that_verify_names_as_bound_by_nothing(run: Path, bits: int) -> None:
    assert require_noticed(run, bits=bits) == [*METRICS, *REPORTS, "state/lock"]
    assert hubbub("publish", str(run), "-o", str(run.parent / "public")) == 0
    assert require_noticed(run, bits=bits, names="ledger.jsonl") == [*METRICS, *REPORTS, "state/lock"]
    assert require_noticed(run.parent / "public", bits=4 * bits) == []
    assert hubbub("close", str(run)) == 0
    checkpoint = ["state/checkpoint-12.safetensors", "state/checkpoint.json"]
    assert require_noticed(run, bits=bits, names="*.json*") == [*METRICS, *REPORTS, *checkpoint, "state/lock"]


def test_a_published_folder_is_verified_as_far_as_it_proves_anything(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    public = run.parent / "public"
    assert hubbub("publish", str(run), "-o", str(public)) == 0
    head = re.search("--head H\\): ([0-9a-f]{64})", re.sub(r"\s+", " ", capsys.readouterr().out))[1]
    assert head == read_chain(run / "ledger.jsonl").head
    assert hubbub("verify", str(public)) == 0
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "compare the head with the one that the publisher states" in shown
    assert f"only the run proves the guarantee: hubbub verify RUN --head {head}" in shown
    assert failing(public, head) == failing(run, head) == {}
    # Who can write to the folder can write it anew, but not under this head.
    card = (public / "README.md").read_bytes().replace(b"differential", b"indifferent!")
    (public / "README.md").write_bytes(card)
    stated = json.loads((public / "published.json").read_bytes())
    stated["record"]["files"]["README.md"] = hashlib.sha256(card).hexdigest()
    stated["head"] = record_hash(stated["before"], stated["record"])
    (public / "published.json").write_bytes(strict_json.canonical(stated))
    assert failing(public) == {}
    assert failing(public, head).keys() == {"head"}
    (public / "evil.py").touch()
    assert unproved(public) == ["evil.py"]
    told = answer("verify", str(public))
    assert (told["head"], told["epsilon"]) == (stated["head"], None)
    # What is mistyped is no sign of a rollback, and what is no run says what it is.
    assert hubbub("verify", str(public), "--head", head[:8]) == 2
    assert hubbub("account", str(public)) == 2
    assert re.search("is no head.*is the published part of a run", capsys.readouterr().err.replace("\n", " "))


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"[" * 10**5, b'{"before":1,"head":"","record":{}}', b'{"before":"","head":null,"record":{"kind":"publish"}}'],
)
def test_what_is_no_publication_fails_in_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "published.json").write_bytes(content)
    assert failing(tmp_path).keys() == {"record"}
    (tmp_path / "published.json").unlink()
    (tmp_path / "published.json").mkdir()
    assert failing(tmp_path).keys() == {"record"}


@pytest.mark.parametrize("name", ["config.toml", "guarantee.json", "model.safetensors"])
def test_cra_18_a_run_that_was_changed_after_its_end_is_not_made_whole_by_resuming_it(run: Path, name: str) -> None:
    if name == "model.safetensors":
        # What resume makes it of.
        path = run / "state" / "checkpoint-12.safetensors"
        content = flipped(path.read_bytes())
        manifest = json.loads((run / "state" / "checkpoint.json").read_bytes())
        manifest["sha256"] = hashlib.sha256(content).hexdigest()
        path.write_bytes(content)
        (run / "state" / "checkpoint.json").write_bytes(strict_json.canonical(manifest))
    else:
        (run / name).write_bytes((run / name).read_bytes() + b"\n")
    before = (run / "ledger.jsonl").read_bytes()
    assert hubbub("resume", str(run)) == 2
    assert (run / "ledger.jsonl").read_bytes() == before


def test_a_ledger_that_was_cut_at_a_line_shows_by_the_kept_head_and_by_the_folder(run: Path) -> None:
    head = read_chain(run / "ledger.jsonl").head
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    for cut in range(1, len(lines)):
        (run / "ledger.jsonl").write_bytes(b"".join(lines[:-cut]))
        found = failing(run, head)
        assert found.keys() >= {"head", "files"}
        assert cut <= 2 or {"traces", "releases"} & found.keys()


def test_a_guarantee_that_was_on_record_once_is_missed_in_every_later_round(tmp_path: Path) -> None:
    plan, store = Plan(Mechanism(Identity(3), PoissonSampling(0.5), 3.0), 1.0, 1e-5), RunStore(tmp_path / "run")
    until(train(plan, population(), linear(), store), 1)
    assert verify(store.folder).ok
    add_record(store.ledger_path, {"kind": "files", "files": {"guarantee.json": "0" * 64}})
    list(train(plan, population(), linear(), store))
    missing = {check.name: check for check in verify(store.folder).checks}["epsilon"]
    assert not missing.ok
    assert "guarantee.json" in missing.detail


def test_an_unfinished_run_whose_keys_are_gone_is_said_not_to_resume(tmp_path: Path) -> None:
    plan = Plan(Mechanism(Identity(3), PoissonSampling(0.5), 3.0), 1.0, 1e-5)
    words = "state/keys/run is gone, and without it this run cannot be resumed: restore it, or close the run"
    for rounds, said in ((1, True), (3, False)):
        store = RunStore(tmp_path / str(rounds))
        until(train(plan, population(), linear(), store), rounds)
        for lost in (False, True):
            (found,) = [check for check in verify(store.folder).checks if check.name == "secrets"]
            assert found.ok
            assert found.detail.endswith(words) is (said and lost)
            shutil.rmtree(store.folder / "state" / "keys", ignore_errors=True)
        with pytest.raises(RunFolderError, match="cannot be resumed"):
            next(train(plan, population(), linear(), store))
    assert hubbub("close", tmp_path / "1", "--early") == 0
    assert verify(tmp_path / "1").ok


def test_a_closed_run_verifies_and_neither_resumes_nor_closes_twice(run: Path) -> None:
    secrets = [path.read_bytes() for path in (run / "state" / "keys").iterdir()]
    assert hubbub("close", str(run)) == 0
    assert list((run / "state" / "keys").iterdir()) == []
    assert not any(key in path.read_bytes() for key in secrets for path in run.rglob("*") if path.is_file())
    assert failing(run) == {}
    refused(["resume", str(run)], "closed")
    assert hubbub("close", str(run)) == 0


def test_rng_6_a_simulation_says_that_it_is_not_for_release(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG.replace("bands = 5", 'bands = 5, noise = "simulation"'))
    folder = tmp_path / "run"
    assert "imulation, not for release" in invoke("train", tmp_path / "run.toml", "--out", folder)
    assert "simulation, not for release" in (folder / "ledger.jsonl").read_text()
    assert "imulation, not for release" in (folder / "report.md").read_text()
    assert answer("ledger", str(folder))["noise"] == "simulation, not for release"
    assert failing(folder) == {}
