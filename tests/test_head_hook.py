"""Heads that somebody outside is given: durable ones, before the release of their round leaves; and the list that is kept."""

import itertools
import json
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

from hubbub import Mechanism, PoissonSampling, verify
from hubbub._util import strict_json
from hubbub.errors import ConfigError, KeyFileError, LedgerError
from hubbub.ledger.chain import read_chain
from hubbub.mechanism.private_evaluation import PrivateEvaluation
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.training import HeadHook, Plan, RoundResult, RunStore, SimulatedPopulation, head_hook, train
from hubbub.training.run_folder.record import read_run
from recorded_runs import SMALL, hubbub
from release_paths import ROUNDS, plan, silent
from simulated_disk import NOTHING, Disk, Image, Killed

PLAN = plan(toeplitz.square_root(ROUNDS, 3))
KEEP = [sys.executable, "-c", "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"]


@dataclass
class Outside(HeadHook):
    """Somebody who keeps what they are given, or does not answer."""

    required: bool = False
    kept: list[tuple[int, str]] = field(default_factory=list)
    away: bool = False

    def give(self, run: str, rounds: int, head: str) -> str:
        if self.away:
            return "outside: away"
        self.kept.append((rounds, head))
        return ""


def go(store: RunStore, rounds: int = ROUNDS) -> list[int]:
    return [r.round_index for r in itertools.islice(train(PLAN, silent(), nn.Linear(3, 2), store), rounds)]


def key_pair(folder: Path, name: str = "key") -> tuple[Path, Path]:
    """Private and public key, as ssh-keygen writes them."""
    folder.mkdir(exist_ok=True)
    key, private = Ed25519PrivateKey.generate(), folder / name
    forms = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(*forms))
    private.chmod(0o600)
    open_ssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public = private.with_suffix(".pub")
    public.write_bytes(key.public_key().public_bytes(*open_ssh) + b" somebody\n")
    return private, public


@dataclass(frozen=True)
class Kept:
    """A run of which a command kept the heads, signed."""

    folder: Path
    heads: Path
    key: Path
    public: Path

    @property
    def lines(self) -> list[bytes]:
        return self.heads.read_bytes().splitlines(keepends=True)

    def ok(self, lines: Sequence[bytes] | None = None, signer: Path | None = None) -> tuple[bool, str]:
        """What the check of the heads says, with other lines in their place."""
        if lines is not None:
            self.heads.write_bytes(b"".join(lines))
        verdict = verify(self.folder, heads=self.heads, signer=signer or self.public)
        (check,) = (check for check in verdict.checks if check.name == "heads")
        assert verdict.ok == check.ok
        return check.ok, check.detail


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    place = tmp_path_factory.mktemp("heads")
    kept = Kept(place / "run", place / "heads.jsonl", *key_pair(place))
    go(RunStore(kept.folder, head_hook=HeadHook([*KEEP, str(kept.heads)], key=kept.key, required=True)))
    return kept


@pytest.fixture
def kept(once: Kept, tmp_path: Path) -> Kept:
    shutil.copytree(once.folder.parent, tmp_path / "copy")
    return Kept(*(tmp_path / "copy" / path.name for path in (once.folder, once.heads, once.key, once.public)))


# What is given, and when.


def test_a_command_gets_the_promise_and_each_round_as_one_line_and_nothing_else_is_in_it(kept: Kept) -> None:
    chain = read_chain(kept.folder / "ledger.jsonl")
    bodies = [json.loads(line) for line in kept.lines]
    assert [set(body) for body in bodies] == [{"head", "rounds", "run", "signature"}] * (ROUNDS + 1)
    assert [body["rounds"] for body in bodies] == list(range(ROUNDS + 1))
    assert {body["run"] for body in bodies} == {chain.hashes[0]}
    ends = [hash_ for body, hash_ in zip(chain.records, chain.hashes, strict=True) if body["kind"] in ("promise", "commit")]
    assert [body["head"] for body in bodies] == ends
    said = f"{ROUNDS + 1} kept heads in the ledger, in order, the last after 6 of 6 rounds; each is signed by a given key"
    assert kept.ok() == (True, said)


class Server:
    """A real HTTP server on loopback; ``status`` is what it answers, ``pause`` the seconds before."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.status, self.pause = 200, 0.0
        self.look = lambda: None
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.look()
                time.sleep(server.pause)
                if server.status == 200:
                    server.bodies.append(body)
                self.send_response(server.status)
                if server.status == 302:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()

            do_GET = do_POST  # noqa: N815 # the name that the server calls

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/heads"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def test_a_url_gets_each_head_when_it_is_on_disk_and_before_the_release_leaves(tmp_path: Path, server: Server) -> None:
    left: list[int] = []
    when: list[tuple[int, int]] = []
    server.look = lambda: when.append((len(read_chain(tmp_path / "run" / "ledger.jsonl").round_heads()), len(left)))
    for result in train(PLAN, silent(), nn.Linear(3, 2), RunStore(tmp_path / "run", head_hook=HeadHook(server.url))):
        left.append(result.round_index)
    assert when == [(1, 0)] + [(t + 2, t) for t in range(ROUNDS)]
    assert [json.loads(body)["rounds"] for body in server.bodies] == list(range(ROUNDS + 1))
    (tmp_path / "kept").write_bytes(b"".join(server.bodies))
    assert verify(tmp_path / "run", heads=tmp_path / "kept").ok


def test_cra_19_only_durable_heads_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, tried = Disk(tmp_path), []

    class Looking(Outside):
        def give(self, run: str, rounds: int, head: str) -> str:
            *_, (image, _) = Image.along(disk.log)
            tried.append(head)
            assert head.encode() in image.left(NOTHING)[Path("run/ledger.jsonl")], "a loss of power now forgets the head"
            return super().give(run, rounds, head)

    monkeypatch.setattr("hubbub._util.files.os", disk)
    go(RunStore(tmp_path / "run", head_hook=Looking()))
    assert len(tried) == ROUNDS + 1


# A hook that fails.


def test_cra_19_what_a_hook_did_not_take_is_given_next_round_in_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outside = Outside()
    run = train(PLAN, silent(), nn.Linear(3, 2), RunStore(tmp_path / "run", head_hook=outside))
    with caplog.at_level(logging.WARNING, "hubbub"):
        for result in run:
            outside.away = result.round_index in (1, 2)
    assert [rounds for rounds, _ in outside.kept] == list(range(ROUNDS + 1))
    chain = read_chain(tmp_path / "run" / "ledger.jsonl")
    assert chain.round_heads(outside.kept[1][1].upper()) == chain.round_heads()[2:] == outside.kept[2:]
    said = "head hook: the head after 3 rounds was not taken (outside: away); it is given again with the next one"
    assert [record.getMessage() for record in caplog.records] == [said] * 2


def test_cra_19_a_required_hook_that_fails_stops_the_run_before_the_release_leaves_and_nothing_is_lost(tmp_path: Path) -> None:
    outside = Outside(required=True)
    run = train(PLAN, silent(), nn.Linear(3, 2), RunStore(tmp_path / "run", head_hook=outside))
    assert [next(run).round_index for _ in range(2)] == [0, 1]
    outside.away = True
    with pytest.raises(LedgerError, match=r"head after 3 rounds was not taken \(outside: away\), and it is required: no rel"):
        next(run)
    # Nor does the next start release anything.
    with pytest.raises(LedgerError, match="head after 3 rounds"):
        go(RunStore(tmp_path / "run", head_hook=outside))
    outside.away = False
    assert go(RunStore(tmp_path / "run", head_hook=outside)) == [3, 4, 5]
    assert [rounds for rounds, _ in outside.kept] == list(range(ROUNDS + 1))
    assert (tmp_path / "run/state/releases/2.safetensors").exists()
    assert verify(tmp_path / "run").ok


@pytest.mark.parametrize("command", ["import time; time.sleep(60)", "import os, time; os.fork(); time.sleep(60)"])
def test_a_command_that_hangs_ends_with_all_it_started(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_hook, "_PATIENCE", 0.5)
    mark = str(tmp_path / "mark")
    started = time.monotonic()
    said = HeadHook([sys.executable, "-c", command, mark]).give("0" * 64, 1, "1" * 64)
    assert said == f"{sys.executable}: no answer in 0.5 seconds"

    def left() -> bool:
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        return any(mark.encode() in line for line in lines)

    # On a busy machine a killed process is there for a moment more.
    while left() and time.monotonic() - started < 20:
        time.sleep(0.05)
    assert not left()


def test_a_server_that_hangs_refuses_or_leads_elsewhere_takes_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = HeadHook(server.url)
    for status in (302, 404, 500):
        server.status = status
        assert hook.give("0" * 64, 1, "1" * 64) == f"127.0.0.1: status {status}"
    monkeypatch.setattr(head_hook, "_PATIENCE", 0.2)
    server.status, server.pause = 200, 1.0
    assert hook.give("0" * 64, 1, "1" * 64) == "127.0.0.1: no answer in 0.2 seconds"
    server.stop()
    assert "refused" in hook.give("0" * 64, 1, "1" * 64)
    assert "not in range" in HeadHook("http://localhost:1/ä").give("0" * 64, 1, "1" * 64)


@pytest.mark.parametrize(
    "to", ["http://example.org/heads", "ftp://example.org", "keep-head", "", "https://", "https://[", [], ["", "x"], [1]]
)
def test_a_hook_is_a_command_or_a_url_that_nobody_on_the_way_reads(to: object) -> None:
    with pytest.raises(ConfigError, match="head hook = "):
        HeadHook(to)  # type: ignore[arg-type]


@pytest.mark.slow
def test_cra_19_a_run_that_is_killed_before_any_call_loses_no_head(tmp_path: Path) -> None:
    def start(folder: Path, outside: Outside, number: int = -1) -> int:
        """A start that does one round, or is killed before a call; how many calls there were."""
        disk, calls = Disk(folder.parent), itertools.count()

        def before(call: str, path: Path) -> None:
            if next(calls) >= number >= 0:
                raise Killed

        disk.before = before
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hubbub._util.files.os", disk)
            with suppress(Killed):
                go(RunStore(folder, head_hook=outside), 1)
        return next(calls)

    (tmp_path / "whole").mkdir()
    start(tmp_path / "whole" / "run", Outside())
    whole = start(tmp_path / "whole" / "run", Outside())
    assert whole > 30
    for number in range(whole):
        folder, outside = tmp_path / f"{number}" / "run", Outside()
        folder.parent.mkdir()
        start(folder, outside)
        start(folder, outside, number)
        start(folder, outside)
        ends = read_chain(folder / "ledger.jsonl").round_heads()
        assert list(dict.fromkeys(outside.kept)) == ends, f"killed before call {number}"
        # At least once, and no more than once again.
        assert len(outside.kept) <= len(ends) + 1, f"killed before call {number}"


# A list of heads that was kept.


def test_cra_19_a_folder_that_was_rolled_back_is_found_by_the_kept_list_and_cannot_go_on(tmp_path: Path) -> None:
    key, public = key_pair(tmp_path)
    hook = HeadHook([*KEEP, str(tmp_path / "heads.jsonl")], key=key)
    run = tmp_path / "run"
    go(RunStore(run, head_hook=hook), 2)
    shutil.copytree(run, tmp_path / "earlier")
    go(RunStore(run, head_hook=hook), 2)
    shutil.rmtree(run)
    (tmp_path / "earlier").rename(run)
    verdict = verify(run, heads=tmp_path / "heads.jsonl", signer=public)
    assert [check.name for check in verdict.checks if not check.ok] == ["heads"]
    # It goes on, with other noise: what it gives now and what was kept do not fit one ledger.
    go(RunStore(run, head_hook=hook))
    assert not verify(run, heads=tmp_path / "heads.jsonl", signer=public).ok
    assert verify(run).ok
    # A ledger alone that is rolled back is refused by the last head that was taken.
    content = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "state/heads").write_text("1" * 64)
    with pytest.raises(LedgerError, match="rolled back"):
        go(RunStore(run, head_hook=hook))
    with pytest.raises(LedgerError, match="state/heads names a head"):
        read_run(run)
    assert [check.name for check in verify(run).checks if not check.ok] == ["traces"]
    assert content == (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)


def evaluating(folder: Path, hook: HeadHook) -> Iterator[RoundResult]:
    """A run whose clients measure after each second round."""
    measured = PrivateEvaluation(2.0, every=2)
    clients = [(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))] * 12
    mechanism = Mechanism(Identity(ROUNDS), PoissonSampling(0.5), noise_multiplier=2.0)
    population = SimulatedPopulation(clients, nn.functional.cross_entropy)
    whole = Plan(mechanism, 1.0, 1e-5, evaluation=measured)
    return train(whole, population, nn.Linear(3, 2), RunStore(folder, head_hook=hook))


def test_cra_19_evaluations_that_were_rolled_back_are_found_by_the_kept_list(tmp_path: Path) -> None:
    key, public = key_pair(tmp_path)
    run, heads = tmp_path / "run", tmp_path / "heads.jsonl"
    list(evaluating(run, HeadHook([*KEEP, str(heads)], key=key, required=True)))
    runs = [json.loads(line)["run"] for line in heads.read_bytes().splitlines()]
    ledgers = [read_chain(path / "ledger.jsonl") for path in (run, run / "evaluation")]
    assert [runs.count(ledger.hashes[0]) for ledger in ledgers] == [ROUNDS + 1, ROUNDS // 2 + 1]
    kept = Kept(run, heads, key, public)
    assert kept.ok()[0]
    assert "the last after 6 of 6 rounds and 3 of 3 evaluations" in kept.ok()[1]
    (bare := tmp_path / "bare").write_text("\n".join(json.loads(line)["head"] for line in heads.read_bytes().splitlines()))
    assert verify(run, heads=bare).ok
    own = run / "evaluation/ledger.jsonl"
    whole, records = own.read_bytes(), [record["kind"] for record in ledgers[1].records]
    last = len(records) - 1 - records[::-1].index("begin")
    own.write_bytes(b"".join(whole.splitlines(keepends=True)[:last]))
    assert not kept.ok()[0]
    assert "is not in the ledger, which was rolled back" in kept.ok()[1]
    # Nor do the heads of one ledger pass for those of the other.
    own.write_bytes((run / "ledger.jsonl").read_bytes())
    assert not kept.ok()[0]
    own.unlink()
    assert not kept.ok()[0]
    assert "is of run" in kept.ok()[1]


def test_cra_19_a_required_hook_that_fails_stops_an_evaluation_before_it_leaves(tmp_path: Path) -> None:
    outside = Outside(required=True)

    class OfEvaluations(HeadHook):
        """Away for the heads of the second ledger, from the second evaluation on."""

        required, first = True, ""

        def __init__(self) -> None:
            pass

        def give(self, run: str, rounds: int, head: str) -> str:
            self.first = self.first or run
            outside.away = run != self.first and rounds == 2 and not left_alone
            return outside.give(run, rounds, head)

    hook, left_alone = OfEvaluations(), False
    run = evaluating(tmp_path / "run", hook)
    assert [next(run).round_index for _ in range(3)] == [0, 1, 2]
    with pytest.raises(LedgerError, match=r"head after 2 rounds was not taken \(outside: away\), and it is required"):
        next(run)
    with pytest.raises(LedgerError, match="head after 2 rounds"):
        next(evaluating(tmp_path / "run", hook))
    left_alone = True
    results = list(evaluating(tmp_path / "run", hook))
    # The round was released; the evaluation after it stays in the folder, and is not repeated.
    assert [result.round_index for result in results] == [4, 5]
    assert [len(result.evaluation) for result in results] == [0, 1]
    assert [rounds for rounds, _ in outside.kept].count(2) == 2
    assert verify(tmp_path / "run").ok


def changed(line: bytes, **changes: object) -> bytes:
    return strict_json.canonical(json.loads(line) | changes) + b"\n"


def test_lines_may_come_again_and_be_bare_but_must_be_of_this_run_and_in_order(kept: Kept) -> None:
    lines = kept.lines
    assert kept.ok([*lines[:4], lines[3], *lines[4:], lines[2]])[0]
    assert not kept.ok([*lines[:3], lines[4], lines[3]])[0]
    assert kept.ok([*lines[:3], lines[5]])[1].startswith("4 kept heads in the ledger, in order, the last after 5 of 6 rounds")
    for wrong, said in (
        ([], "no head was kept"),
        ([b"\n"], "no head was kept"),
        ([*lines, b"x\n"], "line 8"),
        ([changed(lines[2], rounds=3)], "signature is of something else"),
        ([changed(lines[2], run="0" * 64)], "is of run"),
        ([changed(lines[2], time=1)], "neither a head nor"),
        ([changed(lines[2], rounds=True)], "neither a head nor"),
        ([changed(lines[2], head="0" * 64)], "signature is of something else"),
        ([changed(lines[2], signature=None)], "has no signature"),
        ([changed(lines[2], signature=json.loads(lines[3])["signature"])], "signature is of something else"),
        ([changed(lines[2], signature="x")], "not of OpenSSH's form"),
    ):
        found = kept.ok(wrong)
        assert not found[0], said
        assert said in found[1]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH")
def test_openssh_checks_what_is_signed_here_and_the_other_way_round(kept: Kept, tmp_path: Path) -> None:
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (tmp_path / "allowed").write_text(f"operator {key.with_suffix('.pub').read_text()}")
    lines: list[bytes] = []
    hook = HeadHook([*KEEP, str(tmp_path / "line")], key=key)
    assert hook.give("0" * 64, 3, "1" * 64) == ""
    body = json.loads((tmp_path / "line").read_bytes())
    (tmp_path / "sig").write_text(body.pop("signature"))
    message = strict_json.canonical(body)
    check = ["ssh-keygen", "-Y", "verify", "-f", "allowed", "-I", "operator", "-n", "hubbub", "-s", "sig"]
    assert subprocess.run(check, cwd=tmp_path, input=message, capture_output=True, check=False).returncode == 0
    assert subprocess.run(check, cwd=tmp_path, input=message + b" ", capture_output=True, check=False).returncode != 0
    # And OpenSSH's own signature of a line is one of ours.
    for line in kept.lines:
        body = json.loads(line)
        del body["signature"]
        sign = ["ssh-keygen", "-Y", "sign", "-q", "-f", key, "-n", "hubbub"]
        made = subprocess.run(sign, input=strict_json.canonical(body), capture_output=True, check=True).stdout.decode()
        lines.append(changed(line, signature=made))
    assert kept.ok(lines, key.with_suffix(".pub"))[0]
    # Nobody is there to type a passphrase.
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "word", "-f", tmp_path / "locked"], check=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", tmp_path / "ecdsa"], check=True)
    for name, said in (("locked", "under a passphrase"), ("ecdsa", "is no Ed25519 key")):
        with pytest.raises(KeyFileError, match=said):
            HeadHook(["cat"], key=tmp_path / name)
    # For another purpose it is none.
    made = subprocess.run([*sign[:-1], "file"], input=strict_json.canonical(body), capture_output=True, check=True).stdout
    assert "for another purpose" in kept.ok([changed(lines[-1], signature=made.decode())], key.with_suffix(".pub"))[1]


def test_keys_in_pem_do_and_all_others_are_refused_without_a_word_of_what_is_in_them(tmp_path: Path) -> None:
    key, path = Ed25519PrivateKey.generate(), tmp_path / "key"
    pem, nothing = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = serialization.BestAvailableEncryption(b"word")

    def written(form: serialization.PrivateFormat, encryption: object, mode: int = 0o600) -> Path:
        path.write_bytes(key.private_bytes(pem, form, encryption))  # type: ignore[arg-type]
        path.chmod(mode)
        return path

    HeadHook(["cat"], key=written(serialization.PrivateFormat.PKCS8, nothing))
    with pytest.raises(KeyFileError, match="under a passphrase"):
        HeadHook(["cat"], key=written(serialization.PrivateFormat.PKCS8, secret))
    with pytest.raises(KeyFileError, match="read by others"):
        HeadHook(["cat"], key=written(serialization.PrivateFormat.OpenSSH, nothing, 0o640))
    path.write_bytes(b"-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n")
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="no private key") as refused:
        HeadHook(["cat"], key=path)
    assert "c2VjcmV0" not in str(refused.value)
    with pytest.raises(KeyFileError, match="cannot be read"):
        HeadHook(["cat"], key=tmp_path / "none")


def test_cra_19_the_release_of_means_and_variances_is_shown_as_well(tmp_path: Path) -> None:
    run, heads = tmp_path / "run", tmp_path / "heads"
    settings = SMALL.replace('name = "digits"', 'name = "digits", normalization = "private"')
    (tmp_path / "run.toml").write_text(f'{settings}heads = {{ command = ["tee", "-a", "{heads}"], required = true }}\n')
    assert hubbub("train", tmp_path / "run.toml", "--out", run, "--allow-import") == 0
    kept = {json.loads(line)["head"] for line in heads.read_bytes().splitlines()}
    own = run / "normalization/ledger.jsonl"
    assert {head for _, head in read_chain(own).round_heads()} <= kept
    (check,) = (check for check in verify(run, heads=heads).checks if check.name == "heads")
    assert "4 of 4 rounds and 1 of 1 releases of means and variances" in check.detail
    own.unlink()
    assert not verify(run, heads=heads).ok


def test_a_command_gives_heads_and_signs_what_it_publishes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, public, heads, (key, signer) = tmp_path / "run", tmp_path / "public", tmp_path / "heads", key_pair(tmp_path)
    (tmp_path / "run.toml").write_text(f'{SMALL}heads = {{ command = ["tee", "-a", "{heads}"], key = "{key}" }}\n')
    # Settings run nothing by themselves.
    assert hubbub("train", tmp_path / "run.toml", "--out", run) == 2
    assert not heads.exists()
    assert hubbub("train", tmp_path / "run.toml", "--out", run, "--allow-import") == 0
    assert hubbub("verify", run, "--heads", heads, "--signer", signer) == 0
    assert hubbub("publish", run, "-o", public, "--sign-with", key) == 0
    assert "published.json.sig" in capsys.readouterr().out
    assert hubbub("verify", public, "--signer", signer) == 0
    assert "passes signature" in capsys.readouterr().out
    assert hubbub("verify", public, "--heads", heads) == 2
    other, signer_of_other = key_pair(tmp_path, "other")
    assert hubbub("verify", public, "--signer", signer_of_other) == 1
    stated = public / "published.json"
    whole, signature = stated.read_bytes(), (public / "published.json.sig").read_bytes()
    # A record that is consistent by itself, of changed files, has no signature.
    forged = tmp_path / "forged"
    assert hubbub("publish", run, "-o", forged, "--sign-with", other) == 0
    (forged / "published.json.sig").write_bytes(signature)
    capsys.readouterr()
    assert hubbub("verify", forged, "--signer", signer) == 1
    assert "FAILS  signature" in capsys.readouterr().out
    (public / "published.json.sig").unlink()
    assert hubbub("verify", public, "--signer", signer) == 1
    assert stated.read_bytes() == whole
    # Without a signer nobody asks for one.
    assert hubbub("verify", public) == 0
