"""What a round of secure aggregation takes: bytes by the form of a message, seconds by a few ciphertexts on this machine."""

import time
from dataclasses import dataclass

import gmpy2

from hubbub.secagg.agreement import Agreement
from hubbub.secagg.paillier import PrivateKey
from hubbub.secagg.wire import framed, width

__all__ = ["Costs", "costs"]

# Ciphertexts that seconds are measured on.
_TRIED = 8


@dataclass(frozen=True)
class Costs:
    """What one round takes.

    Args:
        upload_bytes: One client's message, in full.
        request_bytes: What one holder gets: the sum alone for the owner of the whole key, else each contribution and all noise.
        encrypt_seconds: Of one client.
        add_seconds: Of the server, for all contributions and all noise.
        open_seconds: Of the holders, one after another: the noise that they or the server encrypt, and decryption.
    """

    upload_bytes: int
    request_bytes: int
    encrypt_seconds: float
    add_seconds: float
    open_seconds: float


def costs(agreement: Agreement, private: PrivateKey, *, contributions: int, threshold: int, uses: int, sender: str) -> Costs:
    """What a round takes, in wall-clock seconds of one process; the key may be thrown away afterwards.

    Args:
        agreement: What was agreed, under the key's public part.
        private: The whole key; parts of a decryption are measured as the powers that they are.
        contributions: Of a sum.
        threshold: How many holders open it.
        uses: Ciphertexts of the whole run, for which tables of powers are made.
        sender: The longest name of a client.
    """
    public, many = agreement.public_key, agreement.ciphertexts / _TRIED
    public.prepare(uses)
    started = time.perf_counter()
    sums = public.encrypt([1] * _TRIED)
    encrypted = time.perf_counter()
    sums = sums + sums
    added = time.perf_counter()
    if agreement.whole_key:
        private.decrypt(sums)
    else:
        # A part is a power as long as n, in constant time, mod n².
        for c in sums.integers:
            gmpy2.powmod_sec(c, public.n, public.n_square)
    opened = time.perf_counter()
    noise = agreement.noising_holders or int(agreement.server_noise and agreement.packing.noise > 0)
    holders = 1 if agreement.whole_key else threshold
    body = agreement.ciphertexts * width(public.bits)
    upload = framed(sender, body)
    return Costs(
        upload,
        framed("server", body) if agreement.whole_key else contributions * upload + noise * framed(f"holder {noise}", body),
        (encrypted - started) * many,
        (added - encrypted) * many * max(0, contributions + noise - 1),
        (encrypted - started) * many * noise + (opened - added) * many * holders,
    )
