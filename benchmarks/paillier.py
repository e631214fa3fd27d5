"""Paillier: ours, packed, beside phe, element by element, under one key and for the same whole numbers.

Ten clients, 16 bits a value. phe is timed on a few values, and what all would cost is put together from that: a value costs it
the same whatever it is. Ours is timed on 20 ciphertexts at a time, packing and unpacking included: both in short turns, so that
both find the machine's quiet moments. The model of the report, and one client of 1.2 million values, are encrypted whole.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context

import gmpy2
import numpy as np
import numpy.typing as npt
import phe

import _runner
from hubbub.secagg import paillier, randomizers, threshold
from hubbub.secagg.packing import Packing
from hubbub.secagg.threshold import _powers, proved

Steps = npt.NDArray[np.int64]

VALUE_BITS, CLIENTS = 16, 10
SMALL, LARGE = 21_840, 1_200_000
# Values, or pairs of them, that phe is timed on at a time; ciphertexts of ours.
SAMPLE, PAIRS, PART = 8, 400, 20
ENCRYPT_GOAL, ADD_GOAL, DECRYPT_GOAL, CORES_GOAL = 1000.0, 100.0, 80.0, 1.5
# Ours alone: nobody has promised them.
CHECKED_GOAL, MESSAGE_GOAL = 50.0, 90.0
ENCRYPT_LIMIT, DECRYPT_LIMIT = 0.4, 1.0
KEY_LIMITS, HOLDER_GOAL = {2048: 2.0, 3072: 6.0}, 0.8
PEER = f"phe {phe.__version__}"


class Sides:
    """Both sides under one fresh key.

    Args:
        bits: Of the key.
        size: How many values a client has.
    """

    def __init__(self, bits: int, size: int) -> None:
        self.private = paillier.generate(bits)
        self.public = self.private.public_key
        self.peer = phe.PaillierPublicKey(self.public.n)
        self.peer_private = phe.PaillierPrivateKey(self.peer, self.private.p, self.private.q)
        self.plan = Packing(VALUE_BITS, 1.0, CLIENTS, bits)
        limit = self.plan.fixed_point.limit
        self.steps: Steps = np.random.default_rng(0).integers(-limit, limit + 1, size)
        self.count = self.plan.plaintexts(size)

    def encrypt(self, *, anew: bool = False, workers: int = 1) -> paillier.Ciphertext:
        """One client's contribution; ``anew`` makes the key's table of powers, too."""
        if anew:
            randomizers._table.cache_clear()
        return self.public.encrypt(self.plan.pack_steps(self.steps), workers=workers)

    def decrypt(self, total: paillier.Ciphertext, threads: int = 1) -> Steps:
        """The sum in steps."""
        return self.plan.unpack_steps(self.private.decrypt(total, threads=threads))

    def parts(self, total: paillier.Ciphertext) -> list[paillier.Ciphertext]:
        """The same, in short parts."""
        cuts = [total.integers[i : i + PART] for i in range(0, self.count, PART)]
        return [paillier.Ciphertext(self.public, (len(part),), part) for part in cuts]


def cpu(call: Callable[[], object], repetitions: int) -> float:
    """The least CPU seconds of a call."""
    spent = []
    for _ in range(repetitions):
        begin = time.process_time()
        call()
        spent.append(time.process_time() - begin)
    return min(spent)


def operation_rows(bits: int, seconds: float) -> list[_runner.Row]:
    """Encrypt, add, decrypt, for the MNIST model, under a key of so many bits."""
    sides = Sides(bits, SMALL)
    numbers, few = sides.steps[:SAMPLE].tolist(), sides.steps[: PART * sides.plan.slots]
    part = sides.public.encrypt(sides.plan.pack_steps(few))
    clients = [sides.encrypt() for _ in range(CLIENTS)]
    arriving = [[int(c) for c in client.integers] for client in clients]
    theirs = [sides.peer.encrypt(number) for number in numbers]
    pairs = [(theirs[i % SAMPLE], theirs[(i + 1) % SAMPLE]) for i in range(PAIRS)]
    exact = sides.decrypt(sum(clients))
    _runner.require_agreement("the sum", exact, CLIENTS * sides.steps, 0.0)
    read = [sides.peer_private.decrypt(sum([one] * CLIENTS)) for one in theirs]
    _runner.require_agreement("the sum of phe", read, exact[:SAMPLE], 0.0)

    def encrypts() -> object:
        return sides.public.encrypt(sides.plan.pack_steps(few))

    def peer_adds() -> object:
        return [one + other for one, other in pairs]

    def peer_decrypts() -> object:
        return list(map(sides.peer_private.decrypt, theirs))

    def checks_and_adds() -> object:
        return sum(sides.public.ciphertext(integers) for integers in arriving)

    rows = []
    added = SMALL * (CLIENTS - 1)
    for what, ours, values, peer, sample, goal in (
        ("encrypt", encrypts, few.size, lambda: list(map(sides.peer.encrypt, numbers)), SAMPLE, ENCRYPT_GOAL),
        ("add", lambda: sum(clients), added, peer_adds, PAIRS, ADD_GOAL),
        ("check and add; peer: adds", checks_and_adds, added, peer_adds, PAIRS, CHECKED_GOAL),
        ("decrypt", lambda: sides.decrypt(part), few.size, peer_decrypts, SAMPLE, DECRYPT_GOAL),
    ):
        measured = _runner.measure(lambda call=ours: call() is None, lambda call=peer: call() is None, seconds / 4)
        costs = 1e6 * measured.ours / values, 1e6 * measured.peer / sample
        note = f"{PEER} timed on {sample} values"
        rows.append(_runner.Row(f"{bits} bits: {what}", *costs, goal, unit="CPU µs a value", projected=True, note=note))
    up, peer_up = sides.count * 2 * bits / 8 / SMALL, 2 * bits / 8
    return [*rows, _runner.Row(f"{bits} bits: a client's message", up, peer_up, MESSAGE_GOAL, unit="bytes a value")]


def values_rows(seconds: float) -> list[_runner.Row]:
    return operation_rows(2048, seconds)


def long_rows(seconds: float) -> list[_runner.Row]:
    return operation_rows(3072, seconds)


def model_rows(seconds: float) -> list[_runner.Row]:
    """One client and round of the MNIST model against limits; the report took 240 s and 70 s."""
    sides = Sides(3072, SMALL)
    repetitions = max(3, round(seconds / 2))
    encrypting = cpu(lambda: sides.encrypt(anew=True), repetitions)
    total = sum(sides.encrypt() for _ in range(CLIENTS))
    opened = sides.private.decrypt(total)
    decrypting = sum(cpu(partial(sides.private.decrypt, part), repetitions) for part in sides.parts(total))
    decrypting += cpu(lambda: sides.plan.unpack_steps(opened), repetitions)
    name = f"{SMALL:,} values, one client and round: "
    return [
        _runner.Row(f"{name}encrypt, table included; peer: a limit of {ENCRYPT_LIMIT} s", encrypting, ENCRYPT_LIMIT, 1.0),
        _runner.Row(f"{name}decrypt, in parts; peer: a limit of {DECRYPT_LIMIT} s", decrypting, DECRYPT_LIMIT, 1.0),
    ]


def large_rows(seconds: float) -> list[_runner.Row]:
    """A model of 1.2 million values: one client is encrypted whole (a tenth of one, quickly), table included."""
    size = LARGE if seconds >= _runner.FULL else LARGE // 10
    sides = Sides(2048, size)
    made: list[paillier.Ciphertext] = []
    encrypting = cpu(lambda: made.append(sides.encrypt(anew=True)), 1)
    adding = cpu(lambda: made[0] + made[0], 3)
    few = sides.parts(made[0] + made[0])[0]
    decrypting = cpu(lambda: sides.private.decrypt(few), 10) * sides.count / PART
    numbers = sides.steps[:SAMPLE].tolist()
    theirs = [sides.peer.encrypt(number) for number in numbers]
    peers = (
        cpu(lambda: [sides.peer.encrypt(number) for number in numbers], 3) / SAMPLE,
        cpu(lambda: [theirs[i % SAMPLE] + theirs[-1] for i in range(PAIRS)], 3) / PAIRS,
        cpu(lambda: [sides.peer_private.decrypt(number) for number in theirs], 3) / SAMPLE,
    )
    rows = []
    for what, ours, peer, goal, note in (
        ("encrypt a client, table included", encrypting, peers[0], ENCRYPT_GOAL, f"ours: all {sides.count:,} ciphertexts"),
        ("add a client", adding, peers[1], ADD_GOAL, f"ours: all {sides.count:,} ciphertexts"),
        ("decrypt", decrypting, peers[2], DECRYPT_GOAL, f"ours: {PART} ciphertexts, times {sides.count / PART:.4g}"),
    ):
        told = f"{note}; {PEER}: {PAIRS if what.startswith('add') else SAMPLE} values, times {size:,} over that"
        rows.append(_runner.Row(f"{size:,} values: {what}", ours, peer * size, goal, projected=True, note=told))
    return rows


def cores_rows(seconds: float) -> list[_runner.Row]:
    """A large client encrypted, and a sum of the MNIST model decrypted, on two cores against one, by the clock on the wall."""
    sides, large = Sides(2048, SMALL), Sides(2048, LARGE if seconds >= _runner.FULL else LARGE // 10)
    repetitions = max(2, round(seconds / 8))
    total = sum(sides.encrypt() for _ in range(CLIENTS))

    def wall(call: Callable[[], object]) -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    def least(call: Callable[[int], object]) -> tuple[float, float]:
        turns = [(wall(partial(call, 2)), wall(partial(call, 1))) for _ in range(repetitions)]
        return min(two for two, _ in turns), min(one for _, one in turns)

    control = least(spin)
    note = f"two processes that only count gained {control[1] / control[0]:.3g} in the same minutes: the machine's own limit"
    encrypting = least(lambda workers: large.encrypt(anew=True, workers=workers))
    decrypting = least(lambda threads: sides.decrypt(total, threads=threads))
    name = f"encrypt {large.steps.size:,} values in two processes; peer: in one"
    return [
        _runner.Row(name, *encrypting, CORES_GOAL, unit="wall seconds", note=note),
        _runner.Row("decrypt on two cores; peer: on one", *decrypting, CORES_GOAL, unit="wall seconds"),
    ]


def spin(processes: int) -> None:
    """Count to ten million, by halves in two processes."""
    started = [get_context("fork").Process(target=count, args=(10_000_000 // processes,)) for _ in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join()


def count(most: int) -> None:
    for _ in range(most):
        pass


def keys_rows(seconds: float) -> list[_runner.Row]:
    """What keys cost, and a holder's part of a threshold decryption."""
    repetitions = max(5, round(seconds))
    rows = []
    for bits, limit in KEY_LIMITS.items():
        middle = statistics.median(cpu(partial(paillier.generate, bits), 1) for _ in range(repetitions))
        name = f"a key of {bits} bits, median of {repetitions}; peer: a limit of {limit:g} s"
        rows.append(_runner.Row(name, middle, limit, 1.0))
    return [*rows, *holder_rows(seconds)]


def holder_rows(seconds: float) -> list[_runner.Row]:
    """A holder's part of one ciphertext of 2048 bits, and the checking of it; what a whole batch costs stands beside."""
    public, shares = threshold.generate(2048, holders=5, threshold=3)
    one, many = public.encrypt([1]), public.encrypt(list(range(21)))
    share, n_square = shares[0], public.public_key.n_square
    exponent, units = 2 * public.delta * share.secret, list(one.integers)
    measured = _runner.measure(
        lambda: _powers(units, exponent, gmpy2.mpz(public.n)) is None,
        lambda: gmpy2.powmod_sec(units[0], exponent, n_square) is None,
        seconds / 2,
    )
    batch = cpu(lambda: share.partial(one), 5) - measured.ours
    parts = share.partial(one), share.partial(many)
    alone, together = (cpu(partial(proved, public, part), 5) for part in parts)
    checking = (together - alone) / (len(many.integers) - 1)
    name = "2048 bits, a holder of a threshold key, a ciphertext: "
    made, checked = (f"beside it {spent:.3g} s for the proof of a batch" for spent in (batch, alone - checking))
    return [
        _runner.Row(f"{name}its part; peer: one power mod n²", measured.ours, measured.peer, HOLDER_GOAL, note=made),
        _runner.Row(f"{name}checking it; peer: a limit of 2 ms", checking, 0.002, 1.0, note=checked),
    ]


if __name__ == "__main__":
    _runner.main(__doc__, values_rows, model_rows, cores_rows, keys_rows, long_rows, large_rows)
