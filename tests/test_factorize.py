"""``hubbub factorize`` and ``hubbub compare``, and published matrices, which are verified before use."""

import re
from pathlib import Path

import numpy as np
import pytest

from conftest import oracle
from hubbub import MinSeparation, SingleParticipation, factorization
from hubbub._util.tensor_proto import read_tensor_proto
from hubbub.errors import DataError
from hubbub.factorization import families, published, strategy_file
from hubbub.factorization.families import DESCRIPTIONS
from hubbub.mechanism import sensitivity, utility
from hubbub.mechanism.workloads import Workload, prefix_sum
from recorded_runs import answer, invoke
from refusals import refused

pytestmark = pytest.mark.usefixtures("workplace")
FAMILIES = [name for name in DESCRIPTIONS if name != "file"]


def proto(array: np.ndarray) -> bytes:
    """A TensorProto of doubles, written from the protocol-buffer definition."""

    def message(field: int, content: bytes) -> bytes:
        return bytes([field << 3 | 2]) + varint(len(content)) + content

    def varint(value: int) -> bytes:
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

    shape = b"".join(message(2, b"\x08" + varint(size)) for size in array.shape)
    return b"\x08\x02" + message(2, shape) + message(4, array.astype("<f8").tobytes())


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_printed_with_the_error_that_its_file_has(family: str) -> None:
    found = answer(*f"factorize {family} --rounds 24 -o s.safetensors".split())
    strategy = strategy_file.load("s.safetensors")
    C = strategy.matrix()
    B = np.tri(24) @ (np.linalg.inv(C) if C.shape == (24, 24) else utility.noising_matrix(strategy))
    worst_column = np.linalg.norm(C, axis=0).max()
    assert found["squared_error"] == pytest.approx(np.square(B).sum() / 24 * worst_column**2, rel=1e-9)
    assert found["l2_sensitivity"] == found["column_norm"] == pytest.approx(worst_column, rel=1e-12)
    assert found["lower_bound"] <= found["squared_error"] * (1 + 1e-12)
    assert (found["family"], found["strategy"]) == (family, type(strategy).__name__)
    assert found["memory_rows"] == strategy.memory_rows


def test_a_file_that_states_another_error_is_refused() -> None:
    answer = factorization.banded.optimize(prefix_sum(rounds=24), 6)
    object.__setattr__(answer, "squared_error", answer.squared_error * 1.01)
    strategy_file.save("s.safetensors", answer)
    refused("factorize file --matrix s.safetensors".split(), "s.safetensors", "states squared_error = ", "it is ")


def test_a_file_beyond_the_rounds_of_a_matrix_is_checked_by_its_buffers_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in ("blt", "time-varying", "banded"):
        answer(*f"factorize {family} --rounds 24 -o {family}.safetensors".split())
    errors = [answer(*f"factorize file --matrix {f}.safetensors".split())["squared_error"] for f in ("blt", "time-varying")]
    monkeypatch.setattr(families, "_MOST_BY_MATRIX", 23)
    monkeypatch.setattr(utility, "squared_errors", None)
    for family, error in zip(("blt", "time-varying"), errors, strict=True):
        for setting in ("", " --min-separation 24"):
            found = answer(*f"factorize file --matrix {family}.safetensors{setting}".split())
            assert found["squared_error"] == pytest.approx(error, rel=1e-9)
    refused("factorize file --matrix banded.safetensors".split(), "Banded", "not checked beyond 23 rounds", "account and train")
    refused("factorize file --matrix blt.safetensors --learning-rates cooldown".split(), "learning_rates")


def test_a_schedule_that_begins_with_0_is_refused_with_the_next_step() -> None:
    np.save("rates.npy", np.linspace(0, 1, 8))
    words = ("learning_rates[0] = 0.0", "give a small positive rate, or leave that round out")
    refused("factorize banded --rounds 8 --learning-rates rates.npy".split(), *words)


def test_what_a_file_says_is_shown_and_not_obeyed() -> None:
    strategy_file.save(
        "s.safetensors", factorization.banded.optimize(prefix_sum(rounds=8), 2), command="rm \x1b[2J\n[red]it[/red]"
    )
    shown = invoke(*"factorize file --matrix s.safetensors".split())
    assert "\x1b" not in shown
    assert "rm \\x1b[2J\\n[red]it[/red]" in shown.replace("\n", " ").replace("  ", "")


@pytest.fixture
def files(workplace: Path) -> Workload:
    """Files of C, B and learning rates as Google publishes them: B·C is the prefix sum times learning rates."""
    workload = Workload(24, 0.0, published.cooldown(24))
    C = 0.2**0.5 * factorization.banded.optimize(workload, 6).strategy.matrix()
    Path("c_pb").write_bytes(proto(C))
    Path("b_pb").write_bytes(proto(np.tri(24) * np.array(workload.learning_rates) @ np.linalg.inv(C)))
    Path("lr_pb").write_bytes(proto(np.array(workload.learning_rates)))
    return workload


def test_a_published_matrix_is_verified_and_its_sensitivity_computed(files: Workload) -> None:
    flags = "--b-matrix b_pb --learning-rates lr_pb --bands 6 --min-separation 6 --max-participations 3"
    found = answer(*f"factorize file --matrix c_pb {flags} -o s.safetensors".split())
    assert found["rounds"] == 24
    assert found["l2_sensitivity"] == pytest.approx((3 * 0.2) ** 0.5, rel=1e-12)
    assert found["checks"]["bands"] == "6, at most 6 as stated"
    assert "the workload, to" in found["checks"]["B·C"]
    # The best strategy of 6 bands at a separation of 6, whatever the scale.
    best = factorization.banded.optimize(files, 6, participation=MinSeparation(6, 3))
    assert found["squared_error"] == pytest.approx(best.squared_error, rel=1e-6)
    C = strategy_file.load("s.safetensors").matrix()
    assert sensitivity.of_matrix(C, SingleParticipation()).value ** 2 == pytest.approx(0.2, rel=1e-12)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--bands 5", ["c_pb: C[5, 0]", "0 in a matrix of 5 bands", "it has 6"]),
        ("--b-matrix b_pb", ["b_pb: B·C differs from the workload", "1e-06", "learning rates"]),
        ("--b-matrix b_pb --rounds 12", ["b_pb: B has shape (24, 24)", "12 rounds"]),
        ("--learning-rates b_pb", ["b_pb: has shape (24, 24)"]),
        ("--b-matrix nan_pb --learning-rates lr_pb", ["nan_pb: B·C differs from the workload by inf"]),
    ],
)
def test_a_published_matrix_that_is_not_what_is_said_is_refused(files: Workload, flags: str, words: list[str]) -> None:
    Path("nan_pb").write_bytes(proto(np.full((24, 24), np.nan)))
    refused(["factorize", "file", "--matrix", "c_pb", *flags.split()], *words)


def test_a_decoder_of_float32_is_near_enough_and_another_in_the_sixth_digit_is_not(files: Workload) -> None:
    C, B = published.verified("c_pb"), read_tensor_proto("b_pb")
    np.save("b32.npy", B.astype(np.float32))
    assert 0 < published.decoder_difference("b32.npy", C, files) < published.TOLERANCE
    B[20, 3] += 1e-5
    np.save("off.npy", B)
    with pytest.raises(DataError, match=r"off\.npy: B·C differs .* at \[20, "):
        published.decoder_difference("off.npy", C, files)


def test_strategies_are_compared_in_the_order_of_their_errors() -> None:
    found = answer(*"compare --rounds 64 --min-separation 16 --max-participations 4".split())
    rows = {row["family"]: row for row in found["strategies"]}
    errors = [row["root_mean_squared_error"] for row in found["strategies"]]
    assert errors == sorted(errors)
    assert set(rows) | set(found["left_out"]) == set(FAMILIES)
    assert set(found["left_out"]) == {"dense", "time-varying"}
    # Independent noise, by hand: a client of 4 rounds, and a mean of (1 + … + 64) / 64.
    assert rows["identity"]["root_mean_squared_error"] == pytest.approx((4 * 65 / 2) ** 0.5)
    assert rows["identity"]["root_max_squared_error"] == pytest.approx((4 * 64) ** 0.5)
    assert rows["identity"]["relative_to_best"] == pytest.approx((4 * 65 / 2) ** 0.5 / errors[0])
    assert all(row["relative_to_bound"] >= 1 for row in found["strategies"])
    assert rows["banded"]["memory_rows"] == 15
    found = answer(*"compare --rounds 40 --bands 3 --buffers 2 --objective max --families identity,banded,blt".split())
    assert {row["family"]: row["memory_rows"] for row in found["strategies"]} == {"identity": 0, "banded": 2, "blt": 2}
    largest = [row["root_max_squared_error"] for row in found["strategies"]]
    assert largest == sorted(largest)


def test_the_best_of_all_meets_the_bound_and_the_reference() -> None:
    (reference,) = (row for row in oracle("matrix_factorization")["dense_single_mean"] if row["n"] == 512)
    found = answer(*"compare --rounds 512 --families dense,identity,dense".split())
    first, last = found["strategies"]
    assert first["root_mean_squared_error"] ** 2 == pytest.approx(reference["mean_sq_error"], rel=1e-8)
    assert first["relative_to_bound"] == pytest.approx(1, abs=1e-8)
    assert (first["family"], last["family"]) == ("dense", "identity")


def test_an_error_that_is_shown_as_at_most_is_no_lower_than_it_is() -> None:
    asked = "compare --rounds 24 --min-separation 3 --families fourier".split()
    (row,) = answer(*asked)["strategies"]
    assert not row["sensitivity_exact"]
    keys = ("root_mean_squared_error", "root_max_squared_error")
    for key, shown in zip(keys, re.findall(r"≤ ([\d.]+)", invoke(*asked)), strict=True):
        assert row[key] <= float(shown) <= row[key] * (1 + 1e-4)


def test_what_compare_says_no_matrix_is_below_is_below_all_that_it_shows() -> None:
    """The dense one attains it, so that a digit too many would be false: it is shown rounded down."""
    for objective in ("mean", "max"):
        asked = f"compare --rounds 60 --objective {objective} --families dense,banded,identity"
        shown, found = invoke(*asked.split()), answer(*asked.split())
        least = float(re.search(r"No matrix C, with any decoder, has a root\s+squared error below ([\d.]+)", shown)[1])
        assert least <= found["root_lower_bound"] <= least * (1 + 1e-4)
        name = {"mean": "root_mean_squared_error", "max": "root_max_squared_error"}[objective]
        assert all(row[name] >= least for row in found["strategies"])
