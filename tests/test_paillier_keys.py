"""Keys as files: never overwritten, and refused by file and field where they are damaged, with no secret shown."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gmpy2
import pytest

from hubbub.errors import KeyFileError
from hubbub.secagg import ciphertext, key_files, paillier, threshold
from hubbub.secagg.paillier import PublicKey
from hubbub.secagg.threshold import ThresholdKey
from small_keys import SAFE, iso, other, small

KEY, SHARES = threshold.deal(*SAFE, holders=3, threshold=2, min_contributions=2)
SHARE = SHARES[1]
LARGE = paillier.generate(2048)
KINDS = ("public", "threshold", "private", "share")
READERS = (key_files.read_public, key_files.read_public, key_files.read_private, key_files.read_share)
READ: dict[str, Callable[[Path], Any]] = dict(zip(KINDS, READERS, strict=True))
SECRETS = [small().p, small().q, SHARE.secret, *SAFE]


@pytest.fixture(autouse=True)
def _small_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of 512 bits are written and read as those of 2048 are."""
    for module in (ciphertext, key_files):
        monkeypatch.setattr(module, "SMALLEST_BITS", 512)


def write(kind: str, path: Path) -> dict[str, Any]:
    """A file with a small key, and what it says."""
    match kind:
        case "public":
            key_files.write_public(path, small().public_key)
        case "threshold":
            key_files.write_public(path, KEY)
        case "private":
            key_files.write_private(path, small())
        case _:
            key_files.write_share(path, SHARE)
    return json.loads(path.read_text())


def overwrite(path: Path, said: Any) -> None:
    path.unlink(missing_ok=True)
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    path.chmod(0o600)


def refused(kind: str, path: Path, *words: str) -> str:
    """The one line that says why a file is refused: it names the file, and no secret in any notation."""
    with pytest.raises(KeyFileError) as caught:
        READ[kind](path)
    message = str(caught.value)
    assert message.startswith(f"{path}: "), message
    assert not [word for word in words if word not in message], message
    error: BaseException | None = caught.value
    while error is not None:
        for text in (str(error), repr(error), repr(vars(error))):
            for secret in SECRETS:
                assert f"{secret:x}"[:12] not in text
                assert str(secret)[:12] not in text
        error = error.__cause__ or error.__context__
    return message


WRONG = (None, True, False, 0, -1, 1.5, 2**40, [], ["0x2"], {}, "", "0x1" + "0" * 10_000, *"x 0x 0x0 0x00ff 0xFF 12".split())


def damaged(said: dict[str, Any], field: str) -> list[dict[str, Any]]:
    """Copies in which a field is gone, or something else than it was."""
    value = said[field]
    copies = [{name: item for name, item in said.items() if name != field}]
    copies += [{**said, field: wrong} for wrong in WRONG if wrong != value or type(wrong) is not type(value)]
    if isinstance(value, str) and value.startswith("0x"):
        number = int(value, 16)
        copies += [{**said, field: hex(x)} for x in (number + 2, number - 2, 2 * number, number ^ 1 << 40, 3)]
    elif isinstance(value, str):
        copies += [{**said, field: value[:-1]}, {**said, field: value.upper()}, {**said, field: value.encode().hex()}]
    elif isinstance(value, bool):
        copies.append({**said, field: not value})
    elif isinstance(value, int):
        copies += [{**said, field: x} for x in (value - 1, value + 1, str(value), float(value))]
    elif isinstance(value, list):
        copies += [{**said, field: x} for x in (value[:-1], value + value[:1], value[::-1], [*value[:-1], None])]
    return copies


def test_pai_15_only_the_owner_may_read_secrets_and_everybody_public_keys(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for kind in KINDS:
            write(kind, tmp_path / kind)
    finally:
        os.umask(before)
    modes = {kind: (tmp_path / kind).stat().st_mode & 0o777 for kind in KINDS}
    assert modes == {"public": 0o644, "threshold": 0o644, "private": 0o600, "share": 0o600}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(KINDS)
    assert {path.stat().st_nlink for path in tmp_path.iterdir()} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_never_overwritten(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    for make in (lambda: path.write_text("mine"), path.mkdir, lambda: path.symlink_to("nowhere")):
        make()
        with pytest.raises(KeyFileError, match="exists, and a key file is never overwritten"):
            write(kind, path)
        assert [found.name for found in tmp_path.iterdir()] == ["key"]
        if path.is_symlink():
            assert not path.exists()
        elif path.is_file():
            assert path.read_text() == "mine"
            path.unlink()
        else:
            path.rmdir()


def test_a_name_that_is_taken_at_the_last_moment_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    link = os.link

    def raced(source: Path, target: Path) -> None:
        path.write_text("somebody else's")
        link(source, target)

    monkeypatch.setattr(os, "link", raced)
    with pytest.raises(KeyFileError, match="exists"):
        write("private", path)
    assert path.read_text() == "somebody else's"
    assert [found.name for found in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("kind", KINDS)
def test_small_keys_are_neither_written_nor_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(kind, tmp_path / "key")
    for module in (ciphertext, key_files):
        monkeypatch.setattr(module, "SMALLEST_BITS", 2048)
    refused(kind, tmp_path / "key", "2048", "512")
    with pytest.raises(KeyFileError, match="512 bits hides nothing: must have at least 2048"):
        write(kind, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_with_any_field_damaged_is_refused(kind: str, tmp_path: Path) -> None:
    said = write(kind, tmp_path / "key")
    tried = 0
    for field in said:
        for copy in damaged(said, field):
            overwrite(tmp_path / "key", copy)
            if kind == "public" and copy.get("short_exponents") is False and copy == {**said, "short_exponents": False}:
                # Not a lie: the textbook form is always safe.
                assert key_files.read_public(tmp_path / "key") == small().public_key
                continue
            refused(kind, tmp_path / "key")
            tried += 1
    assert tried > 100
    overwrite(tmp_path / "key", said)
    READ[kind](tmp_path / "key")


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_field_is_named_and_an_unknown_one_is_not_shown(kind: str, tmp_path: Path) -> None:
    said = write(kind, tmp_path / "key")
    for field in set(said) - {"format", "version"}:
        overwrite(tmp_path / "key", {name: value for name, value in said.items() if name != field})
        refused(kind, tmp_path / "key", f"{field}: is missing")
    overwrite(tmp_path / "key", {**said, f"{small().p:x}": 1})
    refused(kind, tmp_path / "key", "has a field that is not one of ", "key_id")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_cut_off_or_no_json_is_refused(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path / "key")
    text = (tmp_path / "key").read_text().rstrip()
    broken = [text[:end] for end in range(0, len(text), max(1, len(text) // 50))]
    twice = text[:-1] + f',"bits":{SECRETS[0]}}}'
    broken += [text + "}", f"[{text}]", "null", twice, text.replace(",", ",,", 1), '{"a":1e999}']
    broken += [f"{SECRETS[0]:x}", f"0x{SECRETS[0]:x}", f'{{"{SECRETS[0]:x}":1,"{SECRETS[0]:x}":1}}', "[" * 10_000]
    for content in broken:
        overwrite(tmp_path / "key", content)
        refused(kind, tmp_path / "key", "is no key file: must be one JSON object")
    (tmp_path / "key").write_bytes(b"\xff\xfe" + text.encode())
    refused(kind, tmp_path / "key", "is no key file")
    overwrite(tmp_path / "key", text + " " * 2**22)
    refused(kind, tmp_path / "key", "cannot be read", "at most")


def test_a_key_of_one_file_in_another_is_refused(tmp_path: Path) -> None:
    said = write("private", tmp_path / "key")
    overwrite(tmp_path / "key", {**said, "p": hex(other().p), "q": hex(other().q)})
    refused("private", tmp_path / "key", "key_id: the key is")
    share = write("share", tmp_path / "share")
    stranger, _ = threshold.deal(*SAFE, holders=3, threshold=2, min_contributions=2)
    key_files.write_public(tmp_path / "stranger", stranger)
    public = json.loads((tmp_path / "stranger").read_text())
    for key_id in (share["key_id"], stranger.key_id):
        overwrite(tmp_path / "share", {**share, "key_id": key_id, "public": public})
        refused("share", tmp_path / "share", "secret of holder 2 is no share of the key")


def test_a_public_key_that_no_sound_primes_make_is_refused(tmp_path: Path) -> None:
    """With its id and its length told truly."""
    n = LARGE.public_key.n
    bad = {
        "has the factor 3": 3 * (n // 3 | 1),
        "two different odd primes": int(gmpy2.next_prime(n)),
        "must be the product of two different odd primes": LARGE.p**2,
        "3 mod 4": n + 2,
    }
    for words, number in bad.items():
        said = {"format": "hubbub paillier public key", "version": 1, "bits": number.bit_length(), "short_exponents": True}
        key_id = "x" if gmpy2.is_prime(number) or gmpy2.is_power(number) else PublicKey(number).key_id
        overwrite(tmp_path / "key", {**said, "n": hex(number), "key_id": key_id})
        with pytest.raises(KeyFileError, match=re.escape(words) + "|has the factor"):
            key_files.read_public(tmp_path / "key")


def test_verification_by_numbers_that_are_no_squares_is_refused(tmp_path: Path) -> None:
    """Of half of those that are none it can be seen."""
    bad = next(x for x in range(2, 100) if gmpy2.jacobi(x, KEY.n) == -1)
    units = list(KEY.verification)
    for base, verification in ((bad, units), (KEY.base, [*units[:2], bad])):
        key = ThresholdKey(KEY.n, 3, 2, base, tuple(verification), 2)
        path = tmp_path / str(base)[:9]
        key_files.write_public(path, key)
        refused("threshold", path, "no square")


@pytest.mark.parametrize("kind", ["private", "share"])
def test_pai_15_a_secret_that_others_may_read_is_refused_with_what_to_type(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "my key"
    write(kind, path)
    for mode in (0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o666):
        path.chmod(mode)
        refused(kind, path, f"mode {mode:04o}", f"type: chmod 600 '{path}'")
    for mode in (0o600, 0o400, 0o700):
        path.chmod(mode)
        READ[kind](path)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path / "key")
    (tmp_path / "link").symlink_to("key")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "pipe", "gone", "."):
        refused(kind, tmp_path / name, "cannot be read")


def test_a_key_that_takes_the_textbook_form_stays_one(tmp_path: Path) -> None:
    key_files.write_private(tmp_path / "private", iso())
    key_files.write_public(tmp_path / "public", iso().public_key)
    public = key_files.read_public(tmp_path / "public")
    assert isinstance(public, PublicKey)
    assert not public.short_exponents
    assert not key_files.read_private(tmp_path / "private").public_key.short_exponents
