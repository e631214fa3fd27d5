"""Textbook Paillier gives the published numbers, refuses what is no plaintext, unit or ciphertext, and nothing trains on it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import oracle
from hubbub.secagg import textbook
from small_keys import VECTORS, number

RAW = VECTORS["raw"]
P, Q = 293, 433
N = P * Q


@pytest.mark.parametrize("key", RAW, ids=lambda key: str(key["bits"]))
def test_the_reference_encryptions_come_out_and_are_read_back(key: dict[str, Any]) -> None:
    n, p, q = (number(key[name]) for name in ("n", "p", "q"))
    for case in key["encrypt"]:
        m, r, c = (number(case[name]) for name in ("m", "r", "c"))
        assert textbook.encrypt(n, m, r) == c
        assert textbook.decrypt(p, q, c) == m
        assert textbook.decrypt(q, p, c) == m


@pytest.mark.parametrize("key", RAW, ids=lambda key: str(key["bits"]))
def test_the_reference_sums_and_products_are_read(key: dict[str, Any]) -> None:
    for case in key["ops"]:
        if "m" in case:
            assert textbook.decrypt(number(key["p"]), number(key["q"]), number(case["c"])) == number(case["m"])


def test_the_regression_number_of_phe_comes_out() -> None:
    tiny = VECTORS["tiny"]
    assert textbook.encrypt(tiny["n"], tiny["m"], tiny["r"]) == tiny["c"]
    assert textbook.decrypt(tiny["p"], tiny["q"], tiny["c"]) == tiny["m"]


def test_the_numbers_of_the_iso_standard_come_out() -> None:
    iso = oracle("paillier_iso_18033_6")
    p, q, m, r, c = (number(iso[name]) for name in "pqmrc")
    assert textbook.encrypt(p * q, m, r) == c
    assert textbook.decrypt(p, q, c) == m


@settings(max_examples=100, deadline=None)
@given(m=st.integers(0, N - 1), r=st.integers(1, N - 1).filter(lambda r: r % P and r % Q))
def test_encryption_is_its_definition_in_python_integers(m: int, r: int) -> None:
    c = textbook.encrypt(N, m, r)
    assert type(c) is int
    assert c == pow(1 + N, m, N * N) * pow(r, N, N * N) % (N * N)
    assert textbook.decrypt(P, Q, c) == m


@pytest.mark.parametrize("key", RAW, ids=lambda key: str(key["bits"]))
def test_the_reference_invalid_ciphertexts_are_refused(key: dict[str, Any]) -> None:
    for case in key["invalid_ciphertexts"]:
        with pytest.raises(ValueError, match="c "):
            textbook.decrypt(number(key["p"]), number(key["q"]), number(case["c"]))
