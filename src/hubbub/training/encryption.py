"""How a run encrypts what its clients send: who opens the sums, who adds the noise, and against whom that protects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from hubbub._util.checks import integer, one_of, plain_numbers
from hubbub.accounting.wording import Assumption
from hubbub.errors import ConfigError
from hubbub.mechanism import Mechanism, NoiseShares
from hubbub.noise.steps import DEVIATIONS, share_stddev

if TYPE_CHECKING:
    from hubbub.secagg.packing import Packing
    from hubbub.secagg.paillier import PublicKey
    from hubbub.secagg.protocol import Agreement

NoiseSide = Literal["server", "holders", "clients"]
# Beside the bits of the lattice: its sign, and since a clip norm has up to twice as many steps as its power of two.
BITS_ABOVE = 2


@dataclass(frozen=True)
class Encryption:
    """The terms of secure aggregation with Paillier.

    Args:
        key_bits: Of the modulus.
        bits: Of one number that a client packs, its sign included, from 10 to 26: the lattice has 2 fewer.
        holders: Who open sums: 1 has the whole key, more have shares of it.
        threshold: How many of them open a sum together, more than half.
        noise_by: The server, which then knows it; each holder, the whole noise; or the clients, in shares.
        min_contributions: The fewest contributions in a sum that is opened.
        min_survivors: With noise by the clients, how many of them bring the whole noise together.
        clip: The largest absolute value of a single number, where there is no clip norm.
        in_process: Whether all parties are in one process.

    Raises:
        ConfigError: Numbers that do not go together.
        ValueError: A number out of range.
    """

    key_bits: int = 3072
    bits: int = 16
    holders: int = 1
    threshold: int = 1
    noise_by: NoiseSide = "server"
    min_contributions: int = 2
    min_survivors: int | None = None
    clip: float = 1.0
    in_process: bool = False

    def __post_init__(self) -> None:
        plain_numbers(self)
        integer("secagg.key_bits", self.key_bits, at_least=2048, at_most=16_384)
        integer("secagg.bits", self.bits, at_least=8 + BITS_ABOVE, at_most=24 + BITS_ABOVE)
        integer("secagg.holders", self.holders, at_least=1, at_most=100)
        integer("secagg.threshold", self.threshold, at_least=1, at_most=self.holders)
        one_of("secagg.noise_by", self.noise_by, get_args(NoiseSide))
        # Of one, a sum is its update.
        integer("secagg.min_contributions", self.min_contributions, at_least=2)
        if (self.noise_by == "clients") != (self.min_survivors is not None):
            raise ConfigError(
                f"secagg.min_survivors = {self.min_survivors!r} with secagg.noise_by = {self.noise_by!r}: shares of clients "
                "need it, so that this many together bring the whole noise, and nobody else does"
            )
        if self.min_survivors is not None:
            # A sum of fewer shares than are the whole is not opened.
            integer("secagg.min_survivors", self.min_survivors, at_least=1, at_most=self.min_contributions)
        if 2 * self.threshold <= self.holders:
            raise ConfigError(
                f"secagg.threshold = {self.threshold} of secagg.holders = {self.holders}: two groups could open two sums of "
                f"one round, whose difference is a single update; take at least {self.holders // 2 + 1}"
            )
        if self.noise_by == "holders" and self.holders == 1:
            raise ConfigError(
                "secagg.noise_by = 'holders' with secagg.holders = 1: who has the whole key and knows all noise sees every "
                "sum bare; let more hold shares of the key, or let the server add the noise"
            )

    @property
    def lattice_bits(self) -> int:
        """How fine the lattice is on which updates are summed."""
        return self.bits - BITS_ABOVE

    @property
    def tolerated(self) -> int:
        """How many holders may work with the server.

        With f of them it would have a second sum of a round opened, of other contributions, by other honest holders: each opens
        a round once, so that it takes 2·(threshold − f) of them. More than threshold − 1 open sums by themselves.
        """
        return 2 * self.threshold - self.holders - 1

    @property
    def noise_rows(self) -> int:
        """How many holders add a row of noise to each sum."""
        return self.holders if self.noise_by == "holders" else 0

    def shares(self) -> NoiseShares | None:
        """The shares of noise that clients bring along, if they do."""
        if self.min_survivors is None:
            return None
        return NoiseShares(self.min_survivors, lattice_bits=self.lattice_bits)

    def packing(self, clients: int, mechanism: Mechanism | None) -> Packing:
        """How numbers lie in plaintexts, with room for all contributions and all noise; refused if a sum would not be exact."""
        # Only a run that encrypts needs gmpy2.
        from hubbub.mechanism.utility import largest_deviation
        from hubbub.secagg.packing import Packing

        noise = 0
        if mechanism is not None and mechanism.shares is not None:
            # Of the clip norms that have most steps.
            widest = share_stddev(mechanism.noise_multiplier, 2 - 2.0**-30, mechanism.shares.clients, self.lattice_bits)
            noise = int(clients) * DEVIATIONS * widest
        elif mechanism is not None:
            # Of each row of noise that one party adds.
            row = math.ceil(DEVIATIONS * largest_deviation(mechanism) * 2 ** (self.lattice_bits + 1))
            noise = max(1, self.noise_rows) * row
        return Packing(self.bits, self.clip, clients, self.key_bits, noise)

    def agreement(self, key: PublicKey, packing: Packing, size: int, run: str) -> Agreement:
        """What clients, server and holders agree on, for sums of ``size`` numbers and under a name that no other run has."""
        from hubbub.secagg.protocol import Agreement

        return Agreement(
            key,
            packing,
            size,
            run,
            self.min_contributions,
            self.noise_rows,
            whole_key=self.holders == 1,
            server_noise=self.noise_by == "server",
        )

    # What is stated of it.

    def setting(self, *, hidden: bool = True) -> str:
        """Who is trusted with what, in one line; ``hidden`` says whether there is any noise."""
        opened = "the owner of the key, who is not the server, opens sums"
        unread = "the owner of the key, as long as nothing but sums reaches it"
        if self.holders > 1:
            some = f"all {self.holders}" if self.threshold == self.holders else f"any {self.threshold} of {self.holders}"
            opened = f"{some} holders of shares of the key open sums together"
            unread = f"fewer than {self.threshold} holders together, who use what they are handed only to open sums"
        reader = f"{self.threshold} holders together" if self.threshold > 1 else "that owner"
        few = self.tolerated
        against = f"the server and {few} of the holders together" if few else "the server, as long as no holder works with it"
        how = {
            "server": "the server adds its noise under encryption. The guarantee holds against all who see releases and "
            f"{unread}; not against the server: it knows its noise and can take it off every release, so that it sees exact "
            "sums, though no single update",
            "holders": f"each of the {self.holders} holders adds the whole noise under encryption, from a key of its own. The "
            f"guarantee holds against all who see releases, and against {against}: the noise of one other holder hides all; a "
            "holder that is missing costs the round",
            "clients": f"each client adds its share of the noise before it encrypts, so that {self.min_survivors} shares are "
            f"the whole. The guarantee holds against all who see releases, and against {against}; clients who join them "
            f"take their own shares of the noise away; a round with fewer than {self.min_survivors} is not opened",
        }[self.noise_by]
        if not hidden:
            how = "nobody adds noise: all who see releases, the server and the holders see exact sums, though no single update"
        begun = "all parties simulated in one process, whose owner can read everything: " if self.in_process else ""
        return (
            f"{begun}secure aggregation with Paillier, {self.key_bits} bits: each client clips and encrypts its update, the "
            f"server adds them unread, {opened}, none of fewer than {self.min_contributions}, and {how}. "
            f"{reader[0].upper()}{reader[1:]}, with what clients send, could read every single update; so could a server that "
            "cheats, by runs and contributions that it makes up."
        )

    def further(self) -> tuple[Assumption, ...]:
        """What is assumed in addition to what every guarantee assumes."""
        alone = f", and no more than {self.tolerated} of them with the server"
        together = (
            f"fewer than {self.threshold} of the {self.holders} holders of shares work together against the clients{alone}"
            if self.holders > 1
            else "the owner of the key sees nothing but the sums that the server hands it, and does not work together with it"
        )
        own = (
            "holders use what they are handed to open the sum, and for nothing else: nobody who has seen a contribution, or "
            "the noise of another, sends it once more, disguised or multiplied",
        )
        texts = (
            "each client clips what it encrypts: nobody can check the norm of what cannot be read",
            f"Paillier encryption with {self.key_bits} bits hides plaintexts (composite residuosity; short exponents)",
            together,
            "the server keeps to the protocol, which nobody checks: it asks each client in the rounds, with the clip norm and "
            "the noise, that the ledger states; it hands on contributions and noise as they came, each in its run and round, "
            "the same to all holders; it makes up no clients, and what it adds as noise is noise",
            *(own if self.holders > 1 else ()),
            "clients know the key by another way than from the server (paillier-key-id)",
            *(() if self.in_process else ("clients, server and holders are on machines of their own",)),
            "whether a contribution is missing does not depend on the data",
        )
        return tuple(Assumption(text, "operator") for text in texts)

    def not_covered(self) -> tuple[str, ...]:
        """What is not hidden."""
        return ("which clients took part: whoever opens sums from their parts sees it",) if self.holders > 1 else ()
