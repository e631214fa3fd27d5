"""Keys: where they come from, what is drawn from them, and that nothing but the files of keys ever holds one."""

import base64
import copy
import hashlib
import itertools
import os
import pickle
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import CORRELATED
from hubbub import CyclicPoissonSampling, FixedSizeSampling, PoissonSampling, RunStore, TruncatedPoissonSampling
from hubbub._util.prf import KEY_BYTES, bits, derive, fresh_key, seed_key
from hubbub.ledger import Ledger, Promise
from hubbub.mechanism.strategies import Identity
from hubbub.noise import SecureSource
from hubbub.training.cohorts import CohortKeys, draw
from recorded_runs import hubbub
from release_paths import CLIP, ROUNDS, locked, opened, plan, some_rounds, total

KEY = bytes(range(32))


def test_rng_6_every_key_is_256_bits_of_the_operating_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, given = list[bytes](), itertools.count()

    def urandom(size: int) -> bytes:
        drawn.append(hashlib.shake_256(str(next(given)).encode()).digest(size))
        return drawn[-1]

    # What libraries draw while they are loaded is no key.
    some_rounds(tmp_path / "before", 1)
    monkeypatch.setattr(os, "urandom", urandom)
    some_rounds(tmp_path, 2)
    some_rounds(tmp_path, 4)
    keys = [(tmp_path / "state/keys" / name).read_bytes() for name in ("run", "epoch-0", "epoch-1")]
    # Each start draws one more, for shuffles and dropout, which is written nowhere.
    assert [key for key in drawn if key in keys] == keys
    assert len(set(drawn)) == 5
    assert {len(key) for key in drawn} == {KEY_BYTES} == {32}


def test_rng_6_no_seed_of_the_user_reaches_a_key_or_the_noise_of_a_real_run() -> None:
    assert len({fresh_key() for _ in range(1000)}) == 1000
    known = {seed_key(0), *(derive(seed_key(0), name) for name in ("run", "noise", "cohorts", "sums"))}
    paths = [opened(promise=plan(Identity(ROUNDS), seed=0).promise()) for _ in range(2)]
    rows = []
    for path in paths:
        assert path.ledger._secret not in known
        rows.append(path.row(path.begin([0], total(), CLIP)))
    assert not torch.isclose(*rows, atol=1e-9).any()
    known_digest = Ledger(paths[0].ledger.promise, seed_key(0)).digest("x", b"")
    assert known_digest not in {path.ledger.digest("x", b"") for path in paths}


def test_rng_6_noise_from_a_known_seed_is_called_so_in_the_ledger_and_in_the_statement(tmp_path: Path) -> None:
    simulated = plan(Identity(ROUNDS), noise="simulation").promise()
    ledger = Ledger(simulated, KEY, tmp_path / "ledger.jsonl")
    ledger.abort(ledger.begin(0, ["a"], "sum", CLIP))
    assert b'"noise":"simulation' in (tmp_path / "ledger.jsonl").read_bytes()
    assert "for release" in (tmp_path / "ledger.jsonl").read_text().splitlines()[0]
    stated = ledger.spent(1e-5)
    assert stated.simulation
    assert "not for release" in stated.sentence().lower() or "simulation" in stated.sentence().lower()


def test_rng_3_a_row_that_is_asked_for_again_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    source, again = SecureSource(KEY), SecureSource(KEY)
    for index in (0, 7, 2**40):
        first = source.row(index, 100_003)
        source.row(index + 1, 5)
        assert torch.equal(source.row(index, 100_003), first)
        assert torch.equal(again.row(index, 100_003), first)
    path = opened(locked(tmp_path))
    ticket = path.begin([0], total(5), CLIP)
    release = total(5).open(path.row(ticket))
    path.commit(ticket, release)
    # What was released is served again from the disk, in this process and the next.
    for served in (path, opened(RunStore(tmp_path)), opened(RunStore(tmp_path))):
        assert torch.equal(next(served.released(0, 1)), release)


def test_rng_5_the_parts_of_a_vector_are_parts_of_one_row() -> None:
    length = SecureSource.segment_length
    whole = SecureSource(KEY).row(3, 3 * length)
    fill, second = SecureSource(KEY).segments(3, 1), torch.empty(length, dtype=torch.float64)
    fill(second)
    assert torch.equal(second, whole[length : 2 * length])
    segments = whole.view(3, length)
    for a, b in itertools.combinations(segments, 2):
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) * length**0.5 < 5.1


SAMPLED = {
    "Poisson": PoissonSampling(0.3),
    "fixed size": FixedSizeSampling(300, 1000),
    "truncated Poisson": TruncatedPoissonSampling(0.3, 290, 1000),
    "cyclic Poisson": CyclicPoissonSampling(0.6, 2),
}


def cohort(participation: object, key: bytes, round_index: int = 0) -> list[object]:
    ledger = Ledger(Promise(4, None), bytes(32))
    return draw(participation, round_index, range(1000), 300, keys=CohortKeys(key, key), ledger=ledger)


@pytest.mark.parametrize("participation", SAMPLED.values(), ids=SAMPLED)
def test_rng_9_cohorts_are_drawn_from_a_secret_key_and_by_no_generator_that_can_be_seeded(participation: object) -> None:
    drawn = []
    for seed in (0, 0, 1):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 # what users do at the start of a script
        torch.manual_seed(seed)
        states = random.getstate(), str(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002 # users' own
        drawn.append(cohort(participation, KEY))
        assert (random.getstate(), str(np.random.get_state())) == states[:2]  # noqa: NPY002 # users' own
        assert torch.equal(torch.get_rng_state(), states[2])
    assert drawn[0] == drawn[1] == drawn[2]
    assert cohort(participation, bytes(32)) != drawn[0]
    assert cohort(participation, KEY, 2) != drawn[0]


def test_rng_9_a_coin_is_53_bits_of_the_cipher_by_the_definition() -> None:
    words = bits(derive(KEY, "cohort", np.int64(0)), 1000)
    assert cohort(PoissonSampling(0.3), KEY) == [i for i, word in enumerate(words.tolist()) if word >> 11 < 0.3 * 2**53]


def forms(key: bytes) -> Iterator[bytes]:
    """Ways in which a key may be written."""
    for part in (key, key[:16], key[16:]):
        yield part
        yield part.hex().encode()
        yield part.hex().upper().encode()
        yield str(list(part)).encode()
        yield repr(part).encode()
    for number in (int.from_bytes(key, "big"), int.from_bytes(key, "little")):
        yield str(number).encode()
    yield base64.b64encode(key).rstrip(b"=")[:40]
    yield base64.urlsafe_b64encode(key).rstrip(b"=")[:40]


def secrets_of(folder: Path) -> list[bytes]:
    """The keys of a run, and those that are derived from them."""
    files = {path.name: path.read_bytes() for path in (folder / "state/keys").iterdir()}
    derived = [derive(files["run"], name) for name in ("cohorts", "sums")]
    for name, key in files.items():
        if name != "run":
            noise = derive(key, "noise")
            derived += [noise, derive(key, "cohorts"), *(derive(noise, index) for index in range(4))]
    return [*files.values(), *derived]


def test_rng_10_nothing_that_a_run_writes_or_says_holds_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(0)
    monkeypatch.setenv("HUBBUB_DEBUG", "1")
    (tmp_path / "plan.toml").write_text(CORRELATED)
    run = tmp_path / "run"
    assert hubbub("train", tmp_path / "plan.toml", "--out", run) == 0
    for command in ("ledger", "verify", "account", "cite", "evaluate"):
        assert hubbub(command, run) == 0
    assert hubbub("ledger", run, "--json") == 0
    assert hubbub("publish", run, "--output", tmp_path / "published") == 0
    said = capsys.readouterr()
    (tmp_path / "said").write_text(said.out + said.err + caplog.text)
    keys = secrets_of(run)
    assert len(keys) >= 9
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "keys"]
    names = {path.name for path in written}
    assert {"said", "ledger.jsonl", "report.md", "report.png", "model.safetensors", "metrics.jsonl", "checkpoint.json"} <= names
    for path in written:
        content = path.read_bytes()
        for form in itertools.chain.from_iterable(map(forms, keys)):
            assert form not in content, f"{path}: holds a key"
    for path in (run / "state/keys").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


CRASH = """
import os, sys
from pathlib import Path
import hubbub.cli.app as app

def crashes(*_, **__):
    import resource
    print(resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True)
    sys.exit(0)

app.app = crashes
app.main()
"""


def test_rng_10_the_command_line_leaves_no_core_dump() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard == 0:
        pytest.skip("this machine allows no core dumps")

    def allowed() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, check=True, preexec_fn=allowed)
    assert done.stdout.strip() == "0"


def test_rng_10_neither_an_open_run_nor_its_noise_nor_a_secret_can_be_pickled_or_shown(tmp_path: Path) -> None:
    path = opened(locked(tmp_path))
    secrets = [form for key in secrets_of(tmp_path) for form in forms(key)]
    own, ledger = (path, path._noise, path.cohort_keys, SecureSource(KEY)), path.ledger
    for thing in (*own, ledger, path._source):
        for refused in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                refused(thing)
    for thing in (*own, ledger, ledger.promise, *ledger.history.epochs):
        shown = f"{thing!r} {thing}".encode()
        assert not any(form in shown for form in (*secrets, *forms(KEY)))
