"""Paillier: the cases of the catalogue."""

from catalogue.case import Case

CASES = [
    Case(
        "PAI-1",
        "S1",
        "0, n, n², multiples of n or of a prime, negative numbers, numbers above n² in place of a ciphertext",
        "refused by the sender's name, and what is wrong: a ciphertext is from 1 to n² − 1 and a unit",
    ),
    Case(
        "PAI-2",
        "S1",
        "a ciphertext under another key",
        "refused by the digest of the agreement in each message; one under a forged header has no sum that is read, as fence, "
        "counter and padding of the plaintexts do not hold",
    ),
    Case(
        "PAI-3",
        "S1",
        "a slot that overflows, were all clients to send the most and all noise to be at its bound",
        "refused when the packing is made, before the first round; no value beyond its bits is packed",
    ),
    Case(
        "PAI-4",
        "S1",
        "a client that encrypts beyond its slot",
        "the sum is not read where a slot, the padding or the counter lies beyond what honest clients reach; what stays within "
        "is undetected without range proofs, which the statement says",
    ),
    Case("PAI-5", "S2", "NaN, infinity, text or floats to encrypt", "refused by place; no message shows a value"),
    Case(
        "PAI-6",
        "S1",
        "a key of fewer than 2048 bits; an n that is even, a prime, a power, 15 or 0, or has a small factor; equal or "
        "close primes",
        "refused; 3072 bits are the default, and 2048 are said to be worth 112 bits of security. A run has one modulus, so "
        "that no two share a factor",
    ),
    Case(
        "PAI-7", "S1", "randomness that is no unit, or is used twice", "drawn within for each ciphertext; no argument takes it"
    ),
    Case(
        "PAI-8",
        "S1",
        "a ciphertext that was sent before: in this round or an earlier one, by the same client or another",
        "refused: run, round and sender stand in each message, and no ciphertext comes twice, under whatever header",
    ),
    Case(
        "PAI-9",
        "S1",
        "a ciphertext changed on its way (c·(1 + n)^Δ)",
        "refused by its digest. Who writes on the channel itself makes digests anew: that is what TLS with registered keys is "
        "for, and he adds no more than a client could have sent",
    ),
    Case("PAI-10", "S1", "an exponent or a scale in the clear", "there is none: one public scale, one size for all values"),
    Case("PAI-11", "S2", "fewer than t shares", "refused with how many there are and how many it takes"),
    Case(
        "PAI-12",
        "S1",
        "a part of a decryption that is false, comes twice, or is of another holder, round or key",
        "refused by its proof, the holder named; the sum is right if t true ones remain",
    ),
    Case(
        "PAI-13",
        "S1",
        "a holder that is asked to open one client's ciphertext",
        "refused: it multiplies the contributions itself, at least as many as the key says, no two alike. Their senders are "
        "the channel's to know",
    ),
    Case(
        "PAI-14",
        "S1",
        "a sum without its noise",
        "not opened: the message of the server's noise, or of the holder's own, must be among what it adds; of shares the "
        "clients bring, too few are not opened",
    ),
    Case(
        "PAI-15",
        "S1",
        "secret keys on disk and in memory",
        "mode 0600, refused where others may read them; in no text, message, pickle or copy. Python erases no memory, which "
        "is said",
    ),
    Case("PAI-16", "S3", "gmpy2 is missing", "refused with what to install; all else works"),
    Case(
        "PAI-17",
        "S2",
        "a crash in the middle of an exchange with the holders",
        "the round is aborted, or opened by the same request again; no row of noise and no round is opened twice",
    ),
]
