"""``hubbub paillier``: what each command writes and says, and what it refuses in one line."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from hubbub.secagg import key_files, paillier, threshold
from hubbub.secagg.threshold import ThresholdKey
from recorded_runs import invoke
from refusals import refused
from small_keys import LONG_SAFE as PRIMES

pytestmark = pytest.mark.usefixtures("workplace")


@pytest.fixture(autouse=True)
def _known_primes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Safe primes of 2048 bits take a second or five to find; that they are found is tested elsewhere."""

    def found(bits: int, progress: Any = None) -> tuple[int, int]:
        assert bits == 2048
        if progress is not None:
            progress(1)
        return PRIMES

    monkeypatch.setattr(threshold, "safe_prime_pair", found)


def names_in(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def mode(path: str) -> int:
    return Path(path).stat().st_mode & 0o777


def test_keygen_writes_a_key_that_only_its_owner_may_read() -> None:
    text = invoke("paillier", "keygen", "--bits", "2048", "-o", "keys")
    private, public = key_files.read_private("keys/private-key.json"), key_files.read_public("keys/public-key.json")
    assert (private.public_key, private.public_key.bits) == (public, 2048)
    assert [mode(f"keys/{name}") for name in ("private-key.json", "public-key.json", "")] == [0o600, 0o644, 0o700]
    assert names_in("keys") == ["private-key.json", "public-key.json"]
    assert public.key_id in text
    assert "never" in text
    for secret in (private.p, private.q):
        assert f"{secret:x}"[:12] not in text


def test_what_is_there_is_not_overwritten() -> None:
    Path("keys").mkdir()
    shares = "shares --holders 3 --threshold 2"
    for command, names in (("keygen", ("private-key", "public-key")), (shares, ("public-key", "share-1", "share-3"))):
        for name in (f"{name}.json" for name in names):
            Path("keys", name).write_text("mine")
            asked = ["paillier", *command.split(), "--bits", "2048", "-o", "keys"]
            refused(asked, f"keys/{name}: exists", "never overwritten", "-o")
            assert names_in("keys") == [name]
            Path("keys", name).unlink()


SHARES = ["paillier", "shares", "--bits", "2048", "-o", "keys"]


def test_shares_of_the_written_files_decrypt_together() -> None:
    text = invoke(*SHARES, "--holders", "5", "--threshold", "3")
    public = key_files.read_public("keys/public-key.json")
    assert isinstance(public, ThresholdKey)
    assert (public.n, public.min_contributions) == (math.prod(PRIMES), 2)
    names = [f"share-{i}.json" for i in range(1, 6)]
    assert names_in("keys") == ["public-key.json", *names]
    assert [mode(f"keys/{name}") for name in names] == [0o600] * 5
    read = [key_files.read_share(f"keys/share-{i}.json") for i in (5, 1, 3)]
    assert [share.holder for share in read] == [5, 1, 3]
    given = [public.encrypt(40), public.encrypt(2)]
    assert threshold.combine(public, [share.partial_of(given) for share in read]) == 42
    for words in (public.key_id, "at most 2 of them are away or lie", "sums of at least 2", "delete it"):
        assert words in text
    assert "Any 3 of the 5 holders decrypt; 2 of them decrypt nothing" in text
    assert "The primes were in this machine's memory" in text
    assert "No run accepts" not in text
    for secret in (*PRIMES, *(share.secret for share in read)):
        assert f"{secret:x}"[:12] not in text


@pytest.mark.parametrize("command", [["keygen"], ["shares", "--holders", "3", "--threshold", "2"]], ids=lambda words: words[0])
def test_keys_have_3072_bits_and_json_names_files_and_no_secret(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked, key = [], paillier.PrivateKey.from_primes(*PRIMES)
    monkeypatch.setattr(paillier, "generate", lambda bits: asked.append(bits) or key)
    monkeypatch.setattr(threshold, "safe_prime_pair", lambda bits, progress=None: asked.append(bits) or PRIMES)
    text = invoke("paillier", *command, "-o", "keys", "--json")
    assert asked == [3072]
    secrets = [*PRIMES, *(key_files.read_share(path).secret for path in Path("keys").glob("share-*"))]
    assert not [secret for secret in secrets if f"{secret:x}"[:12] in text or str(secret)[:12] in text]
    told = json.loads(text)
    named = {told["public_key"], *told.get("shares", []), told.get("private_key")} - {None}
    assert named == {f"keys/{name}" for name in names_in("keys")}


@pytest.mark.slow
def test_bench_writes_nine_plots_and_their_numbers() -> None:
    pytest.importorskip("phe")
    text = invoke("paillier", "bench", "--bits", "256", "--sizes", "200,10", "-o", "out")
    assert names_in("out") == ["bench.json", "bench.png"]
    told = json.loads(Path("out/bench.json").read_text())
    assert (told["bits"], told["phe"] is not None) == (256, True)
    keys = ("implementation", "operation", "stage", "operand_bits")
    seconds = {tuple(row[key] for key in keys): row["seconds"] for row in told["times"]}
    assert {name[0] for name in seconds} == {"hubbub", "phe"}
    assert len(seconds) == 2 * 3 * 3 * 2
    for (name, operation, stage, size), value in seconds.items():
        assert 0 < value < 10
        # Each stage is the least of its repetitions, so that the total may not be below their sum.
        if stage == "total":
            assert value >= sum(seconds[name, operation, part, size] for part in ("encrypt", "decrypt"))
    assert matplotlib.image.imread("out/bench.png").shape == (1350, 1650, 4)
    assert "encrypt  add a constant" in text


def test_a_key_that_no_run_accepts_is_not_made(tmp_path: Path) -> None:
    asked = ["paillier", "shares", "-o", tmp_path / "keys", "--holders", "4", "--threshold", "2"]
    refused(asked, "--threshold = 2", "say 3 or")
    assert not (tmp_path / "keys").exists()


def test_pai_16_without_gmpy2_a_command_names_the_extra_in_one_line() -> None:
    code = "import sys; sys.modules['gmpy2'] = None; from hubbub.cli import main; main(sys.argv[1:])"
    for command in (["keygen", "-o", "keys"], ["shares", "-o", "keys", "--holders", "5", "--threshold", "3"]):
        done = subprocess.run([sys.executable, "-c", code, "paillier", *command], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "hubbub: hubbub.secagg needs gmpy2: pip install 'hubbub[secagg]'\n"
    done = subprocess.run(
        [sys.executable, "-c", code, "paillier", "keygen", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
