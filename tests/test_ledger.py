import hashlib
import math
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from cohort_file import cohorts, name_of
from hubbub import Mechanism, MinSeparation, TruncatedPoissonSampling
from hubbub.errors import LedgerError, ParticipationError
from hubbub.ledger import Promise, read_chain
from hubbub.ledger.ledger import Ledger, Ticket
from hubbub.mechanism import participation as parts
from hubbub.mechanism.strategies import Identity
from hubbub.training import PlainSum, ReleasePath
from hubbub.training.cohorts import draw

SECRET = bytes(range(32))
PROMISE = Promise(6, Mechanism(Identity(6), MinSeparation(3, 2), 1.0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def full(path: Path | None = None) -> Ledger:
    """Three rounds: committed, aborted, committed."""
    ledger = Ledger(PROMISE, SECRET, path)
    ledger.commit(ledger.begin(0, ["a", "b"], "sum 0"), b"release 0")
    ledger.abort(ledger.begin(1, ["c"], "sum 1"))
    ledger.commit(ledger.begin(2, ["d"], "sum 2"), b"release 2")
    return ledger


def test_prt_4_a_client_joins_as_the_promise_allows_and_aborted_rounds_count() -> None:
    ledger = full()
    assert not ledger.may_join("c", 3)
    assert ledger.may_join("c", 4)
    assert ledger.participations("c") == (1,)
    with pytest.raises(ValueError, match="read-only"):
        ledger.history.participations.counts[:] = 0
    assert ledger.rounds == ("committed", "aborted", "committed")


def test_prt_1_a_breach_is_refused_by_name_and_nothing_is_charged() -> None:
    ledger = full()
    with pytest.raises(ParticipationError, match=r"client 'c' may not join round 3: it took part in rounds \[1\]"):
        ledger.begin(3, ["a", "c"], "sum 3")
    assert (ledger.next_round, ledger.participations("a")) == (3, (0,))


@pytest.mark.parametrize(
    ("promised", "cohorts_", "message"),
    [
        (parts.FixedSizeSampling(2, 100), ["abc"], "round 0: there are 3 clients in its cohort, .* of 2 at most"),
        (TruncatedPoissonSampling(0.5, 2, 100), ["abc"], "round 0: there are 3 clients in its cohort, .* of 2 at most"),
        (
            TruncatedPoissonSampling(0.5, 2, 3),
            ["ab", "bc", "ad"],
            "round 2: there are 4 clients in the rounds so far, .* of 3 at",
        ),
        (parts.CyclicPoissonSampling(0.5, 2), ["ab", "c", "a", "db"], "client 'b' may not join round 3: .* in round 0 and"),
        (parts.BallsInBinsSampling(3), ["ab", "c", "", "ab", "a"], "client 'a' may not join round 4: .* in round 3 and"),
        (parts.PoissonSampling(0.5), ["ab", "abcdef", "a"], None),
        (parts.FixedSizeSampling(2, 3), ["ab", "cd", "ef"], None),
        (MinSeparation(2, 2), ["ab", "cdefgh", "a"], None),
    ],
    ids=["fixed size", "truncated", "more than the population", "two groups", "two bins", "Poisson", "more names", "a pattern"],
)
def test_prt_12_cohorts_that_the_promise_cannot_give_are_refused_where_they_cost_more(
    promised: parts.Participation, cohorts_: list[str], message: str | None
) -> None:
    """And where they do not, names and number of clients are one's own."""
    ledger = Ledger(Promise(6, Mechanism(Identity(6), promised, 1.0)), SECRET)
    for t, cohort in enumerate(cohorts_):
        refused = message and t == len(cohorts_) - 1
        with pytest.raises(ParticipationError, match=message) if refused else nullcontext():
            ledger.commit(ledger.begin(t, list(cohort), f"sum {t}"), b"release")
    assert ledger.next_round == len(cohorts_) - bool(message)


@pytest.mark.parametrize(
    ("q", "size", "every"),
    [(0.1, 100, 0), (0.5, 1, 0), (0.7, 5, 0), (1e-300, 1, 0), (0.1, 100, 5), (0.1, 100, 9)],
)
def test_prt_12_poisson_cohorts_of_one_size_are_refused_when_it_cannot_be_chance(q: float, size: int, every: int) -> None:
    """Where the last batch of an epoch is shorter, too."""
    ledger = Ledger(Promise(10**5, Mechanism(Identity(10**5), parts.PoissonSampling(q), 1.0)), SECRET)

    def went_on() -> None:
        while True:
            shorter = every and ledger.next_round % every == every - 1
            ledger.commit(ledger.begin(ledger.next_round, range(size // 2 if shorter else size), "sum"), b"")

    with pytest.raises(ParticipationError, match=rf"cohorts before it had {size} clients? each, .*\(FixedEpochs"):
        went_on()
    done = ledger.next_round
    seen = sum(not every or t % every != every - 1 for t in range(done))
    # Likelier cohorts of any number of clients there are not.
    law = (stats.binom.pmf(size, n, q) for n in range(size, 4 * int(size / q) + 2)) if q > 1e-9 else [math.exp(-1)]
    chance = max(law)
    least = (math.log(1e-20) - math.log(math.comb(done, seen))) / math.log(chance)
    assert least <= seen <= 1.5 * least + 2


@pytest.mark.parametrize("law", [parts.PoissonSampling(1e-3), parts.PoissonSampling(1.0), parts.PoissonSampling(0.3)])
def test_prt_12_cohorts_that_were_drawn_are_never_refused(law: parts.PoissonSampling) -> None:
    path = ReleasePath(Promise(300, Mechanism(Identity(300), law, 1.0), simulation=True), 1, clients=20)
    path.start()
    for t in range(300):
        cohort = path.draw(range(20))
        keys, ledger = path.cohort_keys, path.ledger
        assert cohort == draw(law, t, range(20), 0, keys=keys, ledger=ledger)
        total = PlainSum(torch.zeros(1, dtype=torch.float64), {})
        ticket = path.begin(cohort, total, 1.0)
        with pytest.raises(LedgerError, match=f"round {t} is in progress"):
            path.draw(range(20))
        path.commit(ticket, total.open(path.row(ticket)))
    assert path.ledger.head in path.ledger.statement()
    for late in (lambda: path.begin([], total, 1.0), lambda: path.draw(range(20))):
        with pytest.raises(LedgerError, match="all 300 rounds are done"):
            late()


def test_acc_10_what_is_begun_is_charged_before_it_is_released() -> None:
    ledger = Ledger(PROMISE, SECRET)
    assert ledger.spent(1e-5).epsilon == 0
    ledger.begin(0, ["a"], "sum")
    assert ledger.spent(1e-5).epsilon == PROMISE.after(1, 1e-5).epsilon > 0


def test_a_row_of_noise_is_used_once_and_in_order() -> None:
    ledger = full()
    for wrong in (0, 2, 4):
        with pytest.raises(LedgerError, match="used once, in order"):
            ledger.begin(wrong, ["e"], "sum")
    with pytest.raises(LedgerError, match="not the one that was begun"):
        ledger.commit(Ticket(2), b"again")


def test_a_round_has_the_clip_norm_that_was_promised() -> None:
    ledger = Ledger(replace(PROMISE, settings={"clip_norm": 1.0}), SECRET)
    for other in (None, 2.0, 0.5):
        with pytest.raises(LedgerError, match=r"the run promised 1\.0"):
            ledger.begin(0, ["a"], "sum", other)
    ledger.begin(0, ["a"], "sum", np.float32(1.0))


def test_prt_7_the_round_after_the_last_is_refused() -> None:
    ledger = full()
    for t in range(3, 6):
        ledger.abort(ledger.begin(t, [], ""))
    with pytest.raises(LedgerError, match="all 6 rounds are done"):
        ledger.begin(6, [], "")


def test_it_names_no_client_and_no_bare_hash_of_a_sum(path: Path) -> None:
    full(path)
    one = path.read_text()
    assert '"a"' not in one
    other = Ledger(PROMISE, bytes(32), path.with_name("other.jsonl"))
    other.begin(0, ["a", "b"], "sum 0")
    members, others = cohorts(path)[0], cohorts(path.with_name("other.jsonl"))[0]
    assert sorted(members) == sorted(name_of(SECRET, client) for client in "ab")
    assert not set(members) & set(others)


def test_cra_4_cutting_the_last_line_anywhere_leaves_a_ledger_that_is_at_most_one_record_shorter(path: Path) -> None:
    full(path)
    content = path.read_bytes()
    last = content.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(content)):
        path.write_bytes(content[:cut])
        ledger = Ledger(PROMISE, SECRET, path)
        whole = cut >= len(content) - 1
        assert ledger.rounds[-1] == ("committed" if whole else "begun")
        assert Ledger(PROMISE, SECRET, path).head == ledger.head


def test_cra_4_a_last_record_that_was_changed_is_not_taken_for_a_torn_one(path: Path) -> None:
    full(path)
    *before, last = path.read_bytes().splitlines(keepends=True)
    # Its end of line, too.
    for at in (*range(0, len(last) - 1, 3), len(last) - 1):
        changed = bytearray(last)
        changed[at] ^= 1
        path.write_bytes(b"".join(before) + changed)
        with pytest.raises(LedgerError, match=f"line {len(before) + 1}"):
            Ledger(PROMISE, SECRET, path)


def test_cra_10_an_edited_cut_or_reordered_ledger_is_refused(path: Path) -> None:
    full(path)
    lines = path.read_bytes().splitlines(keepends=True)
    changed = [
        [lines[0], *lines[2:]],
        [lines[0], lines[2], lines[1], *lines[3:]],
        [*lines[:3], lines[3], lines[4].replace(b'"abort"', b'"commit"'), *lines[5:]],
        [lines[0].replace(b"1.0", b"9.0"), *lines[1:]],
        [*lines[:2], b"{}\n", *lines[2:]],
        [*lines[:2], b"\x00\xff\n", *lines[2:]],
        [b"\n"],
        [],
    ]
    for wrong in changed:
        path.write_bytes(b"".join(wrong))
        with pytest.raises(LedgerError, match=r"ledger\.jsonl"):
            Ledger(PROMISE, SECRET, path)


def test_cra_10_a_record_from_another_ledger_of_the_same_run_is_refused(tmp_path: Path) -> None:
    ledgers = []
    for name, cohort in (("one", ["a", "b"]), ("two", ["c"])):
        ledger = Ledger(PROMISE, SECRET, tmp_path / name)
        for round_index, clients in enumerate((cohort, ["d"])):
            ledger.commit(ledger.begin(round_index, clients, "sum"), b"release")
        ledgers.append((tmp_path / name).read_bytes().splitlines(keepends=True))
    one, two = ledgers
    assert one[0] == two[0]
    # Each of these lines is one that the run might have written; only the chain tells that it did not.
    (tmp_path / "one").write_bytes(b"".join([one[0], two[1], *one[2:]]))
    with pytest.raises(LedgerError, match=r"line 3: .*hash does not follow"):
        Ledger(PROMISE, SECRET, tmp_path / "one")


def test_a_number_that_is_written_otherwise_is_refused_even_where_its_hash_is_right(path: Path) -> None:
    full(path)
    *before, last = path.read_bytes().splitlines()
    content, head = last[len(b'{"body":') : -75], read_chain(path).hashes[-2]
    known = re.search(rb'"round":([0-9]+)', content)
    for written in (b"0%s", b"%s.0", b"+%s", b" %s", b"%se0"):
        wrong = content.replace(known[0], b'"round":' + written % known[1])
        line = b'{"body":' + wrong + b',"hash":"' + hashlib.sha256(head.encode() + wrong).hexdigest().encode() + b'"}'
        path.write_bytes(b"\n".join([*before, line, b""]))
        with pytest.raises(LedgerError, match=f"line {len(before) + 1}"):
            Ledger(PROMISE, SECRET, path)


@pytest.mark.parametrize(
    "other",
    [
        Promise(5, PROMISE.mechanism),
        Promise(6, Mechanism(Identity(6), MinSeparation(3, 2), 0.5)),
        Promise(6, Mechanism(Identity(6), MinSeparation(2, 2), 1.0)),
        Promise(6, PROMISE.mechanism, "replace-one"),
        Promise(6, PROMISE.mechanism, simulation=True),
        Promise(6, None),
    ],
    ids=["rounds", "noise", "pattern", "relation", "simulation", "none"],
)
def test_cra_6_a_ledger_holds_to_the_promise_it_was_written_for(path: Path, other: Promise) -> None:
    full(path)
    with pytest.raises(LedgerError, match="another promise"):
        Ledger(other, SECRET, path)


def test_rng_4_a_simulations_round_may_be_done_again_only_with_the_same_sum() -> None:
    ledger = Ledger(Promise(2, PROMISE.mechanism, simulation=True), SECRET)
    ticket = ledger.begin(0, ["a"], "sum")
    with pytest.raises(LedgerError, match="another sum"):
        ledger.begin(0, ["a"], "another")
    assert ledger.begin(0, ["a"], "sum") == ticket


def test_num_2_a_run_without_privacy_says_infinite() -> None:
    ledger = Ledger(Promise(2, None), SECRET)
    ledger.begin(0, ["a"], "sum")
    assert not ledger.spent(1e-5).private
    assert "no privacy guarantee" in ledger.spent(1e-5).sentence()


@pytest.mark.parametrize("cohort", [["a", "a"], [True], [1.0]])
def test_a_client_comes_once_and_by_a_name_that_is_written_in_one_way(cohort: list[object]) -> None:
    with pytest.raises((ParticipationError, TypeError), match="twice" if "a" in cohort else "text or a whole number"):
        Ledger(PROMISE, SECRET).begin(0, cohort, "sum")
