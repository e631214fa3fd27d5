"""Safe primes, and keys as files: read back as they were, refused by name when anything is wrong, and never shown."""

import itertools
import json
import os
import random
import re
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gmpy2
import pytest

from hubbub import errors
from hubbub.errors import KeyFileError
from hubbub.secagg import key_files, paillier, safe_primes, threshold
from hubbub.secagg.paillier import PrivateKey, PublicKey
from hubbub.secagg.shares import KeyShare, ThresholdKey
from small_keys import SAFE, iso, other, small

KEY, SHARES = threshold.deal(*SAFE, holders=3, threshold=2, min_contributions=2)
SHARE = SHARES[1]
LARGE = paillier.generate(2048)
KINDS = ("public", "threshold", "private", "share")
READ: dict[str, Callable[[Path], Any]] = {
    "public": key_files.read_public,
    "threshold": key_files.read_public,
    "private": key_files.read_private,
    "share": key_files.read_share,
}
SECRETS = [small().p, small().q, SHARE.secret, *SAFE]


def write(kind: str, path: Path) -> dict[str, Any]:
    """A file with a small key, and what it says."""
    match kind:
        case "public":
            key_files.write_public(path, small().public_key, allow_small=True)
        case "threshold":
            key_files.write_public(path, KEY, allow_small=True)
        case "private":
            key_files.write_private(path, small(), allow_small=True)
        case _:
            key_files.write_share(path, SHARE, allow_small=True)
    said: dict[str, Any] = json.loads(path.read_text())
    return said


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


# Safe primes.


@pytest.mark.parametrize("bits", [64, 66, 256, 512])
def test_safe_primes_are_safe_and_their_product_has_the_bits_asked_for(bits: int) -> None:
    p, q = safe_primes.safe_prime_pair(bits)
    assert p != q
    assert (p * q).bit_length() == bits == 2 * p.bit_length() == 2 * q.bit_length()
    for prime in (p, q):
        assert prime % 12 == 11
        assert gmpy2.is_prime(prime)
        assert gmpy2.is_prime((prime - 1) // 2)
    assert gmpy2.gcd(p * q, (p - 1) * (q - 1)) == 1
    assert gmpy2.gcd(p - 1, q - 1) == 2
    if bits >= 256:
        assert abs(p - q).bit_length() > bits // 2 - 100


def test_the_sieve_strikes_what_has_a_small_factor_and_nothing_else() -> None:
    drawn = secrets.randbits(96) | 1 << 95
    start = gmpy2.mpz(drawn - drawn % 12 + 11)
    left = safe_primes._sieved(start)
    small_ones = gmpy2.primorial(safe_primes._BOUND)
    last = len(left) - 1
    # All that is left in a stretch at either end, and as much beside it.
    for place in (*range(250), *range(last - 250, last + 1)):
        p = start + 12 * place
        clean = gmpy2.gcd(p, small_ones % p) == 1 == gmpy2.gcd(p // 2, small_ones % (p // 2))
        assert bool(left[place]) == clean
    assert 0 < left[:251].sum() + left[-251:].sum() < 100


def test_candidates_come_from_all_over_the_window_in_no_order() -> None:
    found = list(itertools.islice(safe_primes._candidates(256), 200))
    assert all(p.bit_length() == 256 and p >> 254 == 3 and p % 12 == 11 for p in found)
    assert found != sorted(found)
    # 200 draws below a window of 2^20: the least is above a fifth of it once in 10^19 times.
    assert max(found) - min(found) > 12 * safe_primes._WINDOW // 2


def test_a_seed_of_pythons_generator_repeats_no_window() -> None:
    """Two of 256 bits are as near as one window once in 2^230 times."""
    state = random.getstate()
    found = []
    for _ in range(2):
        random.seed(0)
        found.append(next(safe_primes._candidates(256)))
    random.setstate(state)
    assert abs(found[0] - found[1]) > 12 * safe_primes._WINDOW


def test_a_composite_with_a_prime_half_is_no_safe_prime() -> None:
    """Each of the two numbers fails alone."""
    prime = gmpy2.is_prime
    half_only = next(p for p in range(10**6 + 1, 2 * 10**6, 2) if prime(p // 2) and not prime(p))
    whole_only = next(p for p in range(10**6 + 1, 2 * 10**6, 2) if prime(p) and not prime(p // 2))
    assert [safe_primes._is_safe(gmpy2.mpz(p)) for p in (half_only, whole_only, SAFE[0])] == [False, False, True]
    # 2^340 = 1 mod 341 = 11·31: a test to the base 2 alone is passed.
    assert not safe_primes._is_safe(gmpy2.mpz(683))


def test_progress_counts_candidates_and_is_near_what_is_expected() -> None:
    """The mean of 8 searches of geometric length; beyond these bounds less than once in 10^5 times."""
    counts = []
    for _ in range(4):
        seen: list[int] = []
        safe_primes.safe_prime_pair(256, seen.append)
        assert seen == list(range(1, len(seen) + 1))
        counts.append(len(seen))
    assert 0.12 < sum(counts) / 4 / safe_primes.expected_candidates(256) < 4


def test_a_shared_key_is_made_without_showing_its_primes() -> None:
    seen: list[int] = []
    public, shares = threshold.generate(2048, holders=3, threshold=2, min_contributions=2, progress=seen.append)
    assert (public.n.bit_length(), public.holders, public.threshold, public.min_contributions) == (2048, 3, 2, 2)
    assert seen
    given = [public.encrypt([5, -7]), public.encrypt([1, 1])]
    assert threshold.combine(public, [shares[i].partial_of(given) for i in (2, 0)]) == [6, -6]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bits": 2046}, "bits = 2046: must be at least 2048"),
        ({"bits": 2049}, "must be even"),
        ({"bits": 2**14}, "at most 8192"),
        ({"bits": 2048.0}, "whole number"),
        ({"holders": 0}, "holders = 0"),
        ({"holders": 101}, "at most 100"),
        ({"threshold": 4}, "at most 3"),
        ({"min_contributions": 0}, "min_contributions = 0"),
    ],
)
def test_a_shared_key_that_cannot_be_is_refused_before_the_search(
    changed: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threshold, "safe_prime_pair", lambda *_: pytest.fail("searched"))
    with pytest.raises((ValueError, TypeError), match=words):
        threshold.generate(**{"bits": 2048, "holders": 3, "threshold": 2, **changed})


# Files: there and back.


def test_keys_are_read_back_as_they_were(tmp_path: Path) -> None:
    key_files.write_private(tmp_path / "private", LARGE)
    key_files.write_public(str(tmp_path / "public"), LARGE.public_key)
    private, public = key_files.read_private(tmp_path / "private"), key_files.read_public(str(tmp_path / "public"))
    assert isinstance(public, PublicKey)
    assert public == LARGE.public_key == private.public_key
    assert public.short_exponents
    assert private.decrypt(public.encrypt([3, -4])) == [3, -4]
    assert "insecure" not in (tmp_path / "public").read_text() + (tmp_path / "private").read_text()


def test_a_shared_key_and_its_shares_are_read_back_as_they_were(tmp_path: Path) -> None:
    key_files.write_public(tmp_path / "public", KEY, allow_small=True)
    public = key_files.read_public(tmp_path / "public")
    assert isinstance(public, ThresholdKey)
    assert (public, public.key_id, public.min_contributions) == (KEY, KEY.key_id, 2)
    read: list[KeyShare] = []
    for share in SHARES[:2]:
        key_files.write_share(tmp_path / f"{share.holder}", share, allow_small=True)
        read.append(key_files.read_share(tmp_path / f"{share.holder}"))
    assert [(share.holder, share.secret, share.public) for share in read] == [(s.holder, s.secret, KEY) for s in SHARES[:2]]
    given = [KEY.encrypt(40), KEY.encrypt(2)]
    assert threshold.combine(public, [share.partial_of(given) for share in read]) == 42


def test_a_key_that_takes_the_textbook_form_stays_one(tmp_path: Path) -> None:
    key_files.write_private(tmp_path / "private", iso())
    key_files.write_public(tmp_path / "public", iso().public_key)
    public = key_files.read_public(tmp_path / "public")
    assert isinstance(public, PublicKey)
    assert not public.short_exponents
    assert not key_files.read_private(tmp_path / "private").public_key.short_exponents


def test_only_the_owner_may_read_secrets_and_everybody_public_keys(tmp_path: Path) -> None:
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


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"gone/key: cannot be written: No such file"):
        write("share", tmp_path / "gone" / "key")


@pytest.mark.parametrize("kind", KINDS)
def test_small_keys_are_written_by_tests_only_and_say_that_they_are_insecure(kind: str, tmp_path: Path) -> None:
    writers: dict[str, Callable[[], None]] = {
        "public": lambda: key_files.write_public(tmp_path / "key", small().public_key),
        "threshold": lambda: key_files.write_public(tmp_path / "key", KEY),
        "private": lambda: key_files.write_private(tmp_path / "key", small()),
        "share": lambda: key_files.write_share(tmp_path / "key", SHARE),
    }
    with pytest.raises(KeyFileError, match="512 bits hides nothing: must have at least 2048"):
        writers[kind]()
    assert not list(tmp_path.iterdir())
    said = write(kind, tmp_path / "key")
    assert said.pop("insecure") is True
    overwrite(tmp_path / "key", said)
    refused(kind, tmp_path / "key", "2048", "512")


def test_a_large_key_may_not_be_called_insecure(tmp_path: Path) -> None:
    """Or it would not be tested as keys that arrive are."""
    key_files.write_public(tmp_path / "key", LARGE.public_key)
    said = json.loads((tmp_path / "key").read_text())
    overwrite(tmp_path / "key", {**said, "insecure": True})
    refused("public", tmp_path / "key", "insecure", "2048")


# Files: damaged.

WRONG = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    "",
    "x",
    "0x",
    "0x0",
    "0x00ff",
    "0xFF",
    "12",
    "0x1" + "0" * 10_000,
    [],
    ["0x2"],
    {},
    2**40,
)


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


def test_a_share_with_any_field_of_its_public_key_damaged_is_refused(tmp_path: Path) -> None:
    said = write("share", tmp_path / "key")
    for field in said["public"]:
        for copy in damaged(said["public"], field):
            overwrite(tmp_path / "key", {**said, "public": copy})
            refused("share", tmp_path / "key")


@pytest.mark.parametrize(
    ("kind", "field", "value", "words"),
    [
        ("public", "n", 15, "n: must be a number as text"),
        ("public", "key_id", "0" * 32, "key_id: the key is"),
        ("public", "bits", 511, "bits: the key has 512"),
        ("public", "short_exponents", 1, "short_exponents = 1: must be True or False"),
        ("public", "format", "hubbub paillier private key", "format: is 'hubbub paillier private key': must be"),
        ("public", "format", "0xsecret", "format: is no word that is known"),
        ("public", "version", 2, "version: must be 1"),
        ("threshold", "verification", ["0x5"], "verification has 1 numbers"),
        ("threshold", "holders", 4, "verification has 3 numbers"),
        ("threshold", "threshold", 3, "key_id: the key is"),
        ("threshold", "min_contributions", 1, "key_id: the key is"),
        ("private", "p", "0x7", "must be of equal length"),
        ("private", "key_id", "x", "key_id: the key is"),
        ("share", "holder", 1, "secret of holder 1 is no share of the key"),
        ("share", "secret", "0x5", "secret of holder 2 is no share of the key"),
        ("share", "public", "x", "public: must be a JSON object"),
        ("share", "insecure", False, "insecure: must be true, or left out"),
    ],
)
def test_what_is_wrong_is_named(kind: str, field: str, value: object, words: str, tmp_path: Path) -> None:
    overwrite(tmp_path / "key", {**write(kind, tmp_path / "key"), field: value})
    refused(kind, tmp_path / "key", words)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_field_is_named_and_an_unknown_one_is_not_shown(kind: str, tmp_path: Path) -> None:
    said = write(kind, tmp_path / "key")
    for field in set(said) - {"insecure", "format", "version"}:
        overwrite(tmp_path / "key", {name: value for name, value in said.items() if name != field})
        refused(kind, tmp_path / "key", f"{field}: is missing")
    overwrite(tmp_path / "key", {**said, f"{small().p:x}": 1})
    refused(kind, tmp_path / "key", "has a field that is none of ", "key_id")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_cut_off_or_no_json_is_refused(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path / "key")
    text = (tmp_path / "key").read_text().rstrip()
    broken = [text[:end] for end in range(0, len(text), max(1, len(text) // 50))]
    broken += [
        text + "}",
        f"[{text}]",
        "null",
        text[:-1] + f',"bits":{SECRETS[0]}}}',
        text.replace(",", ",,", 1),
        '{"a":1e999}',
    ]
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
    key_files.write_public(tmp_path / "stranger", stranger, allow_small=True)
    overwrite(tmp_path / "share", {**share, "public": json.loads((tmp_path / "stranger").read_text())})
    refused("share", tmp_path / "share", "key_id: the key is")
    overwrite(
        tmp_path / "share", {**share, "key_id": stranger.key_id, "public": json.loads((tmp_path / "stranger").read_text())}
    )
    refused("share", tmp_path / "share", "secret of holder 2 is no share of the key")


def test_a_public_key_that_no_sound_primes_make_is_refused(tmp_path: Path) -> None:
    """With its id and its length told truly."""
    n = LARGE.public_key.n
    prime = LARGE.p
    bad = {
        "has the factor 3": 3 * prime * (prime + 2) * 5 | 1,
        "two different odd primes": int(gmpy2.next_prime(n)),
        "must be the product of two different odd primes": prime**2,
        "3 mod 4": n + 2,
    }
    for words, number in bad.items():
        number = number if words != "has the factor 3" else 3 * (n // 3 | 1)
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
        key_files.write_public(path, key, allow_small=True)
        refused("threshold", path, "no square")


@pytest.mark.parametrize("kind", ["private", "share"])
def test_a_secret_that_others_may_read_is_refused_with_what_to_type(kind: str, tmp_path: Path) -> None:
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


def test_each_reader_refuses_the_files_of_the_others(tmp_path: Path) -> None:
    for kind in KINDS:
        write(kind, tmp_path / kind)
        (tmp_path / kind).chmod(0o600)
    readers = {"public": {"public", "threshold"}, "private": {"private"}, "share": {"share"}}
    for reader, own in readers.items():
        for kind in set(KINDS) - own:
            refused(reader, tmp_path / kind, "format: is 'hubbub paillier ")


def test_the_error_is_in_the_tree_of_errors() -> None:
    assert "KeyFileError" in errors.__all__
    assert "KeyFileError" in str(errors.__doc__)
    assert issubclass(KeyFileError, errors.HubbubError)


# phe's form.


def pheutil(*arguments: str) -> None:
    cli = pytest.importorskip("phe.command_line").cli
    from click.testing import CliRunner

    result = CliRunner().invoke(cli, list(arguments))
    assert result.exit_code == 0, result.output


def test_keys_of_phes_command_line_are_read(tmp_path: Path) -> None:
    private_path, public_path, number = (str(tmp_path / name) for name in ("private", "public", "number"))
    pheutil("genpkey", "--keysize", "2048", private_path)
    pheutil("extract", private_path, public_path)
    pheutil("encrypt", "--output", number, public_path, "17")
    public = key_files.read_public(public_path)
    assert isinstance(public, PublicKey)
    assert not public.short_exponents
    Path(private_path).chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        key_files.read_private(private_path)
    Path(private_path).chmod(0o600)
    private = key_files.read_private(private_path)
    assert private.public_key == public
    said = json.loads(Path(number).read_text())
    assert private.decrypt(public.ciphertext(int(said["v"]))) * 16 ** said["e"] == 17


def test_public_keys_are_written_for_phes_command_line(tmp_path: Path) -> None:
    key_files.write_phe_public(tmp_path / "public", LARGE.public_key)
    pheutil("encrypt", "--output", str(tmp_path / "number"), str(tmp_path / "public"), "17")
    said = json.loads((tmp_path / "number").read_text())
    assert LARGE.decrypt(LARGE.public_key.ciphertext(int(said["v"]))) * 16 ** said["e"] == 17
    assert key_files.read_public(tmp_path / "public") == LARGE.public_key
    with pytest.raises(KeyFileError, match="exists"):
        key_files.write_phe_public(tmp_path / "public", LARGE.public_key)
    with pytest.raises(KeyFileError, match="at least 2048"):
        key_files.write_phe_public(tmp_path / "small", small().public_key)


def phe_private(p: int, q: int, n: int) -> dict[str, Any]:
    text = pytest.importorskip("phe.util").int_to_base64
    public = {"kty": "DAJ", "alg": "PAI-GN1", "key_ops": ["encrypt"], "n": text(n), "kid": "a key"}
    return {"kty": "DAJ", "key_ops": ["decrypt"], "p": text(p), "q": text(q), "pub": public, "kid": "a key"}


def test_damaged_keys_in_phes_form_are_refused(tmp_path: Path) -> None:
    said = phe_private(LARGE.p, LARGE.q, LARGE.public_key.n)
    isos, smalls = (phe_private(key.p, key.q, key.public_key.n) for key in (iso(), small()))
    overwrite(tmp_path / "key", said)
    assert key_files.read_private(tmp_path / "key").public_key == LARGE.public_key
    for field in set(said) - {"kid", "key_ops"}:
        for wrong in ("", "a", "A", "AAAA", "+/==", 5, None, [], {}, {"n": 1}):
            overwrite(tmp_path / "key", {**said, field: wrong})
            refused("private", tmp_path / "key")
        overwrite(tmp_path / "key", {name: value for name, value in said.items() if name != field})
        refused("private", tmp_path / "key")
    for changed, words in (
        ({**said["pub"], "alg": "PAI"}, "pub.alg: must be 'PAI-GN1'"),
        ({**said["pub"], "n": isos["pub"]["n"]}, "pub.n: is not the product of p and q"),
        ({**said["pub"], "more": 1}, "has a field that is none of pub.alg"),
        ({**said["pub"], "n": smalls["pub"]["n"]}, "from 2048"),
    ):
        overwrite(tmp_path / "key", {**said, "pub": changed})
        refused("private", tmp_path / "key", words)
    overwrite(tmp_path / "key", {**said, "d": 1})
    refused("private", tmp_path / "key", "has a field that is none of key_ops")
    overwrite(tmp_path / "key", smalls)
    refused("private", tmp_path / "key", "from 2048")
    overwrite(tmp_path / "key", said["pub"])
    refused("private", tmp_path / "key", "p: is missing")


# Without gmpy2.


def test_without_gmpy2_the_extra_to_install_is_named() -> None:
    code = "import sys; sys.modules['gmpy2'] = None; import hubbub; import hubbub.secagg.paillier"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.rstrip().endswith("ImportError: hubbub.secagg needs gmpy2: pip install 'hubbub[secagg]'")


def test_a_private_key_says_what_it_is_made_of() -> None:
    """The vectors above are of the primes that the helpers say they are."""
    assert PrivateKey.from_primes(*SAFE).public_key.n == KEY.n
