"""The compiled kernel answers what GMP answers, and is kept only if it does; where it lies is tried in test_compiled.py.

Where a machine cannot have it (no AVX-512 IFMA, or no compiler), the same tests show that everything goes on without.
"""

import json
import platform
import random
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz

from hubbub.cli import main
from hubbub.errors import ConfigError
from hubbub.secagg import fixed_base, kernel, kernel_arithmetic, paillier, shares
from kernel_caches import kernels_in
from refusals import output

# Around every length at which the kernel takes four limbs more, and the lengths of keys.
LENGTHS = (2, 3, 51, 52, 53, 205, 206, 207, 208, 413, 414, 415, 623, 1024, 2048, 3072, 4096, 6144)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """A folder, and whether the kernel was built into it, as it must be where the machine can run it."""
    folder = tmp_path_factory.mktemp("cache")
    able = sys.platform == "linux" and platform.machine() == "x86_64" and bool(shutil.which("cc"))
    able = able and "avx512ifma" in Path("/proc/cpuinfo").read_text()
    with pytest.MonkeyPatch.context() as patch, kernels_in(folder, patch):
        if able:
            kernel.KERNEL.build()
        else:
            with pytest.raises(ConfigError, match=r"no AVX-512 IFMA|no C compiler|the kernel is for Linux|cannot build"):
                kernel.KERNEL.build()
    return folder, able


@pytest.fixture(scope="module")
def keys() -> dict[int, paillier.PrivateKey]:
    """A fresh key of each size: what is to be shown holds for all."""
    return {bits: paillier.generate(bits) for bits in (2048, 3072)}


@pytest.fixture
def built(cache: tuple[Path, bool], monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether there is a kernel; if so, it is in use."""
    with kernels_in(cache[0], monkeypatch):
        assert kernel.KERNEL.standing().startswith("in use" if cache[1] else "not built")
        yield cache[1]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache without anything in it."""
    with kernels_in(tmp_path, monkeypatch):
        yield tmp_path


def drawer(seed: int) -> random.Random:
    """Numbers that are the same in every run."""
    return random.Random(seed)  # noqa: S311 # they hide nothing


def require_powers(units: list[mpz], exponent: int, modulus: mpz, built: bool) -> None:
    made = kernel.powers(units, exponent, modulus)
    assert made == ([gmpy2.powmod(unit, exponent, modulus) for unit in units] if built else None)


def hard(draw: random.Random, bits: int) -> mpz:
    """A number of at most so many bits, often with long runs of equal bits: what carries go through."""
    kind = draw.randrange(4)
    number = draw.getrandbits(bits)
    if kind == 1:
        number = (1 << bits) - 1 - (1 << draw.randrange(bits))
    elif kind == 2:
        number = (1 << draw.randrange(bits)) + draw.choice((-1, 0, 1))
    elif kind == 3:
        for _ in range(6):
            low, high = sorted(draw.randrange(bits + 1) for _ in range(2))
            number ^= (1 << high) - (1 << low)
    return mpz(number)


@pytest.mark.parametrize("bits", LENGTHS)
def test_powers_are_those_of_gmp_at_every_length(bits: int, built: bool) -> None:
    draw = drawer(bits)
    for modulus in (mpz(2) ** bits - 1, mpz(2) ** (bits - 1) + 1, hard(draw, bits) | 1 | 1 << bits - 1):
        if modulus % 2 == 0:
            continue
        units = [mpz(0), mpz(1) % modulus, modulus - 1, modulus // 2, *(hard(draw, bits) % modulus for _ in range(5))]
        require_powers(units, draw.getrandbits(24), modulus, built)


@pytest.mark.parametrize("count", range(kernel.FEWEST, 18))
def test_any_number_of_lanes_is_filled(count: int, built: bool) -> None:
    draw = drawer(count)
    modulus = mpz(draw.getrandbits(1000)) | 1
    require_powers([mpz(draw.getrandbits(1000)) % modulus for _ in range(count)], draw.getrandbits(90), modulus, built)


@pytest.mark.parametrize("exponent", [0, 1, 2, 30, 31, 32, 33, 2**10 - 1, 2**10, 2**125, 2**125 - 1, 2**300 + 1])
def test_exponents_at_the_edges_of_a_window(exponent: int, built: bool) -> None:
    modulus = mpz(2) ** 415 - 33
    require_powers([mpz(0), mpz(1), modulus - 1, mpz(3) ** 200 % modulus], exponent, modulus, built)


def test_a_hundred_thousand_products_of_hard_numbers_are_exact(built: bool) -> None:
    # 60 batches of 32 numbers, each multiplied 30 times for its table and about 50 times for its exponent.
    draw = drawer(0)
    for _ in range(60):
        bits = draw.choice((51, 104, 205, 206, 207, 208, 312, 413, 414, 500))
        modulus = hard(draw, bits) | 1
        if modulus < 3:
            continue
        require_powers([hard(draw, bits) % modulus for _ in range(32)], draw.getrandbits(40), modulus, built)


@pytest.mark.slow
def test_a_million_products_of_long_hard_numbers_are_exact(built: bool) -> None:
    draw = drawer(1)
    for _ in range(160):
        bits = draw.choice((1024, 2048, 2047, 3072, 4096, 6144))
        modulus = hard(draw, bits) | 1 | 1 << bits - 1
        require_powers([hard(draw, bits) % modulus for _ in range(64)], draw.getrandbits(60), modulus, built)


def test_the_longest_modulus_is_exact_and_a_longer_one_is_left_to_gmp(built: bool) -> None:
    modulus = mpz(2) ** kernel_arithmetic.LONGEST - 1
    units = [modulus - 1, modulus // 2, modulus // 3]
    require_powers(units, 5, modulus, built)
    assert kernel.powers(units, 5, 2 * modulus + 1) is None


def test_what_the_kernel_does_not_take_is_left_to_gmp(built: bool) -> None:
    units = [mpz(3)] * 8
    assert kernel.powers(units[: kernel.FEWEST - 1], 5, mpz(101)) is None
    assert kernel.powers(units, 5, mpz(100)) is None
    if built:
        for wrong in ([*units, mpz(101)], [*units, mpz(-1)]):
            with pytest.raises(ValueError, match="must be from 0"):
                kernel.powers(wrong, 5, mpz(101))
        with pytest.raises(ValueError, match="exponent"):
            kernel.powers(units, -1, mpz(101))


@pytest.mark.parametrize(("window", "passes"), [(1, 1), (3, 1), (4, 2), (5, 7), (6, 4), (6, 32), (4, 40)])
@pytest.mark.parametrize("bits", [60, 104, 207, 512])
def test_products_of_a_table_are_powers(
    bits: int, window: int, passes: int, built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = drawer(100 * window + passes)
    n = gmpy2.next_prime(mpz(1) << bits - 1)
    table = fixed_base.Table(hard(draw, bits) % (n * n), n * n, bits, window, passes)
    assert (table._comb is not None) == (built and min(passes, -(-bits // window)) <= 32)
    base, drawn = table.power(1), []

    def token_bytes(size: int) -> bytes:
        drawn.append(draw.randbytes(size))
        return drawn[-1]

    monkeypatch.setattr(secrets, "token_bytes", token_bytes)
    for count in (1, 2, 3, 8, 17):
        made = table.random_powers(count)
        assert len(made) == count
        for power, exponent in zip(made, exponents(drawn[-1], count, bits, window, passes), strict=True):
            assert power == gmpy2.powmod(base, exponent, n * n)


def exponents(drawn: bytes, count: int, bits: int, window: int, passes: int) -> list[int]:
    """By the definition of the comb: digits in the order in which they are drawn, their bits one column apart."""
    columns = -(-bits // window)
    order = [c for first in reversed(range(min(passes, columns))) for c in range(first, columns, passes)]
    digits = np.frombuffer(drawn, dtype=np.uint16).reshape(count, columns)
    places = [[column + row * columns for row in range(window) if column + row * columns < bits] for column in order]
    return [
        sum((int(digit) >> k & 1) << place for digit, its in zip(row, places, strict=True) for k, place in enumerate(its))
        for row in digits
    ]


def test_a_table_of_the_largest_slopes_does_not_overflow(built: bool) -> None:
    n = mpz(2) ** 207 - 1
    rows = [[mpz(1), n - 1] for _ in range(kernel_arithmetic.MOST_DIGITS)]
    slopes = [[mpz(0), n - 1] for _ in rows]
    parts = [kernel_arithmetic.MOST_DIGITS] * kernel_arithmetic.MOST_PARTS
    table = kernel.comb(rows, slopes, n, parts)
    assert (table is not None) == built
    assert kernel.comb(rows, slopes, n, [*parts, 1]) is None
    assert kernel.comb(rows, slopes, n, [parts[0] + 1]) is None
    if table is not None:
        digits = np.ones((1, sum(parts)), dtype=np.uint16)
        one, total = (n - 1) * (1 + n * (n - 1)) % n**2, 0
        for part in parts:
            total = 2 * total + part
        assert table.products(digits) == [gmpy2.powmod(one, total, n**2)]
        with pytest.raises(ValueError, match="no row in its block"):
            table.products(2 * digits)


@pytest.mark.parametrize("bits", [2048, 3072])
def test_the_same_randomness_gives_the_same_ciphertexts(
    bits: int, keys: dict[int, paillier.PrivateKey], built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, values = keys[bits].public_key.n, [0, 1, -1, 2**60, 7]
    made = {}
    for short in (True, False):
        for switch in ("on", "off"):
            monkeypatch.setenv("HUBBUB_KERNEL", switch)
            draw = drawer(0)
            monkeypatch.setattr(secrets, "token_bytes", draw.randbytes)
            monkeypatch.setattr(secrets, "randbelow", draw.randrange)
            public = paillier.PublicKey(n, short)
            # The shape of the table says in which order digits are drawn: one shape on both sides.
            table = fixed_base.Table(mpz(4) ** n.bit_length() % n, public.n_square, public._source._bits, 4, 8)
            monkeypatch.setattr(public._source, "_base", mpz(4))
            monkeypatch.setattr(public._source, "prepare", lambda count, table=table: (mpz(4), table))
            monkeypatch.setattr(public._source, "_table", table)
            made[short, switch] = public.encrypt(values).integers
        assert made[short, "on"] == made[short, "off"]
    assert made[True, "on"] != made[False, "on"]


@pytest.mark.parametrize("bits", [2048, 3072])
def test_what_is_encrypted_with_or_without_it_is_read_with_and_without(
    bits: int, keys: dict[int, paillier.PrivateKey], built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = keys[bits]
    most = private.public_key.n // 2
    values = [0, 1, -1, most, -most]
    for switch in ("on", "off"):
        monkeypatch.setenv("HUBBUB_KERNEL", switch)
        public = paillier.PublicKey(private.public_key.n, private.public_key.short_exponents)
        public.prepare(30)
        sums = public.encrypt(values)
        for other in ("on", "off"):
            monkeypatch.setenv("HUBBUB_KERNEL", other)
            assert private.decrypt(sums, threads=2 if other == "on" else 1) == values


def test_two_processes_encrypt_with_it(keys: dict[int, paillier.PrivateKey], built: bool) -> None:
    private = keys[2048]
    private.public_key.prepare(100)
    assert private.decrypt(private.public_key.encrypt(list(range(9)), workers=2)) == list(range(9))


def test_the_parts_of_a_holder_are_the_same_with_and_without(
    keys: dict[int, paillier.PrivateKey], built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = drawer(5)
    n = mpz(keys[2048].public_key.n)
    units = [mpz(draw.randrange(int(n * n))) for _ in range(3)] + [n + 1, n * n - 1]
    # With a high part of 0, and a low part of 0, too.
    for exponent in (draw.getrandbits(100), int(n) * draw.getrandbits(90), int(n) * draw.getrandbits(50) + 2**80):
        monkeypatch.setenv("HUBBUB_KERNEL", "off")
        plain = shares._powers(units, exponent, n)
        monkeypatch.setenv("HUBBUB_KERNEL", "on")
        assert shares._powers(units, exponent, n) == plain == [gmpy2.powmod(unit, exponent, n * n) for unit in units]


def test_encryption_decryption_and_a_holders_part_go_through_it(
    keys: dict[int, paillier.PrivateKey], built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = keys[2048]
    public, n = paillier.PublicKey(private.public_key.n, short_exponents=True), mpz(private.public_key.n)
    public.prepare(100)
    calls: list[str] = []
    monkeypatch.setattr(kernel_arithmetic, "powers", noted(calls, "powers", kernel_arithmetic.powers))
    monkeypatch.setattr(kernel_arithmetic.Comb, "products", noted(calls, "products", kernel_arithmetic.Comb.products))
    sums = public.encrypt([1, 2, 3])
    assert private.decrypt(sums) == [1, 2, 3]
    shares._powers(list(sums.integers), int(n) * 2**70 + 3, n)
    paillier.PublicKey(public.n, short_exponents=False).randomizers(3)
    assert calls == (["products", *["powers"] * 6] if built else [])


def noted(calls: list[str], name: str, work: Callable[..., object]) -> Callable[..., object]:
    def called(*arguments: object) -> object:
        calls.append(name)
        return work(*arguments)

    return called


def test_threads_do_not_disturb_one_another(built: bool) -> None:
    draw = drawer(6)
    moduli = [mpz(draw.getrandbits(1024)) | 1 for _ in range(4)]
    units = [mpz(draw.getrandbits(1000)) for _ in range(24)]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda m: kernel.powers(units, 2**200 - 3, m), moduli * 4))
    expected = [[gmpy2.powmod(unit, 2**200 - 3, m) for unit in units] if built else None for m in moduli * 4]
    assert done == expected


# Where it comes from.


def refusal(folder: Path) -> str:
    """Why nothing is used; and nothing is."""
    kernel.KERNEL.forget()
    assert kernel.powers([mpz(3)] * 8, 5, mpz(101)) is None
    assert folder.exists()
    return kernel.KERNEL.standing()


def changed(right: str, wrong: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is made from a source in which one thing is another from now on."""
    source = kernel.KERNEL.source.read_text()
    assert source.count(right) == 1
    (folder / "changed.c").write_text(source.replace(right, wrong))
    monkeypatch.setattr(kernel, "KERNEL", replace(kernel.KERNEL, source=folder / "changed.c"))


def test_without_a_library_nothing_is_built_and_gmp_does_it(empty: Path) -> None:
    assert refusal(empty) == "not built: 'hubbub kernel encryption' builds it, where the machine can have it"
    assert list(empty.iterdir()) == []


def test_a_library_that_others_can_write_is_left_alone_and_gmp_does_it(built: bool, cache: tuple[Path, bool]) -> None:
    libraries = list(cache[0].glob("kernel/encryption-*.so"))
    assert len(libraries) == built
    for path in libraries:
        path.chmod(0o722)
        try:
            assert f"others can change {path}" in refusal(cache[0])
        finally:
            path.chmod(0o700)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("_mm512_andnot_si512(keep, r->sums[j])", "_mm512_andnot_si512(keep, x[j])"),
        pytest.param("sums[ROWS] = _mm512_add_epi64(sums[ROWS], carry);", "(void)carry;", marks=pytest.mark.slow),
        pytest.param("settle(c.slopes, half, 1);", "settle(c.slopes, half, 0);", marks=pytest.mark.slow),
        pytest.param("bit = 0; bit < WINDOW && i > 0", "bit = 1; bit < WINDOW && i > 0", marks=pytest.mark.slow),
    ],
)
def test_a_kernel_that_answers_wrongly_is_not_kept(
    right: str, wrong: str, cache: tuple[Path, bool], empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(right, wrong, empty, monkeypatch)
    with pytest.raises(ConfigError, match="wrongly" if cache[1] else r"compiler|Linux|IFMA"):
        kernel.KERNEL.build()
    assert list(empty.glob("kernel/*")) == []
    assert refusal(empty).startswith("not built")


def test_a_processor_without_the_instructions_is_told_so(
    cache: tuple[Path, bool], empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed('__builtin_cpu_supports("avx512ifma")', "0", empty, monkeypatch)
    with pytest.raises(ConfigError, match="no AVX-512 IFMA" if cache[1] else r"compiler|Linux|IFMA"):
        kernel.KERNEL.build()
    assert list(empty.glob("kernel/*")) == []


def test_a_library_of_another_source_is_not_found(
    cache: tuple[Path, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBBUB_CACHE", str(cache[0]))
    (tmp_path / "next.c").write_text("/* the next version */")
    monkeypatch.setattr(kernel, "KERNEL", replace(kernel.KERNEL, source=tmp_path / "next.c"))
    assert refusal(cache[0]).startswith("not built")


def test_the_switch_does_without_the_kernel(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBBUB_KERNEL", "off")
    assert kernel.powers([mpz(3)] * 8, 5, mpz(101)) is None
    assert not kernel.combines(mpz(101))
    with pytest.raises(ConfigError, match="the encryption kernel is to do this, and is not used: HUBBUB_KERNEL is off"):
        kernel.measured()
    monkeypatch.setenv("HUBBUB_KERNEL", "no")
    with pytest.raises(ConfigError, match="HUBBUB_KERNEL = 'no': must be on or off"):
        kernel.powers([mpz(3)] * 8, 5, mpz(101))


def test_the_command_builds_measures_and_removes(
    cache: tuple[Path, bool], empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not cache[1]:
        with pytest.raises(SystemExit) as stop:
            main(["paillier", "kernel"])
        assert stop.value.code == 1
        assert capsys.readouterr().out.startswith("No encryption kernel: ")
        return
    (facts,) = json.loads(output(capsys, ["paillier", "kernel", "--json"]))["kernels"]
    assert (Path(facts["path"]).stat().st_mode & 0o777, Path(facts["path"]).parent) == (0o700, empty / "kernel")
    assert [gain["what"] for gain in facts["gains"]] == [f"a power mod a number of {bits} bits" for bits in (2048, 4096)]
    assert all(0 < gain["kernel_us"] < gain["without_us"] for gain in facts["gains"])
    assert kernel.KERNEL.standing() == f"in use: {facts['path']}"
    assert output(capsys, ["paillier", "kernel", "--remove"]) == f"Removed {facts['path']}\n"
    assert kernel.KERNEL.standing().startswith("not built")
    assert output(capsys, ["paillier", "kernel", "--remove"]) == f"There is none in {empty / 'kernel'}\n"
