"""Sums that the server adds without reading them, as the private strategies know them: which key, and whose noise."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from hubbub._util.checks import integer, one_of, positive
from hubbub.errors import ConfigError
from hubbub.mechanism import Mechanism
from hubbub.mechanism.utility import largest_deviation
from hubbub.secagg import key_files
from hubbub.secagg.packing import Packing
from hubbub.secagg.paillier import PublicKey
from hubbub.secagg.threshold import ThresholdKey
from hubbub.training.encryption import Encryption, NoiseSide

__all__ = ["Paillier"]


@dataclass(frozen=True)
class Paillier:
    """Secure aggregation with Paillier: clients encrypt their updates, and whoever holds the key opens sums alone.

    Args:
        public: The public key, or the file that it is in (``hubbub paillier``): of one owner, who must not be the server, or of
            holders of shares.
        bits: Of one number that a client packs, its sign included, from 10 to 26.
        noise_by: ``"server"``, which then knows its noise and sees exact sums; ``"holders"``: each adds the whole noise under
            encryption, from a key of its own; or ``"clients"``, in shares (with ``min_survivors``).
        min_contributions: The fewest contributions in a sum that is opened.
        timeout: Seconds that holders are waited for, each time.

    Raises:
        KeyFileError: The file is missing, damaged or of another kind, or the key is not sound.
        ConfigError: Noise by the holders, and one owner has the whole key.
        ValueError: A number out of range.

    Example:
        >>> from hubbub.secagg import paillier
        >>> Paillier(paillier.generate(2048).public_key, min_contributions=10).summary()
        'Paillier, 2048 bits; sums of 10 and more are opened by the owner of the key'
    """

    public: str | Path | PublicKey | ThresholdKey
    bits: int = 16
    noise_by: NoiseSide = "server"
    min_contributions: int = 2
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if isinstance(self.public, str | Path):
            object.__setattr__(self, "public", key_files.read_public(self.public))
        if not isinstance(self.public, PublicKey | ThresholdKey):
            raise TypeError(f"secagg.public = {type(self.public).__name__}: must be a file, a PublicKey or a ThresholdKey")
        one_of("secagg.noise_by", self.noise_by, get_args(NoiseSide))
        integer("secagg.min_contributions", self.min_contributions, at_least=2)
        positive("secagg.timeout", self.timeout)
        # What it refuses is refused here.
        self.encryption(1 if self.noise_by == "clients" else None)

    @property
    def shared(self) -> ThresholdKey | None:
        """The key, where holders have shares of it."""
        return self.public if isinstance(self.public, ThresholdKey) else None

    @property
    def key(self) -> PublicKey:
        """Under which everybody encrypts."""
        return self.shared.public_key if self.shared else cast(PublicKey, self.public)

    @property
    def least(self) -> int:
        """The fewest contributions in a sum that is opened: what was said, or what holders of shares demand by their key."""
        return max(self.min_contributions, self.shared.min_contributions if self.shared else 1)

    def encryption(self, min_survivors: int | None) -> Encryption:
        """All terms, with those that follow from the key.

        Args:
            min_survivors: With noise by the clients, how many of them bring the whole noise together.
        """
        holders, threshold = (self.shared.holders, self.shared.threshold) if self.shared else (1, 1)
        return Encryption(
            key_bits=self.key.bits,
            bits=self.bits,
            holders=holders,
            threshold=threshold,
            noise_by=self.noise_by,
            min_contributions=max(self.least, min_survivors or 1),
            min_survivors=min_survivors,
        )

    def packing(self, mechanism: Mechanism, clients: int) -> Packing:
        """How numbers lie in plaintexts.

        Raises:
            ValueError: A sum would not be exact, or the key is too short for it.
        """
        shares = mechanism.shares
        encryption = self.encryption(shares.clients if shares else None)
        return encryption.packing(clients, mechanism, 0.0 if shares else largest_deviation(mechanism))

    def summary(self) -> str:
        """The key and who opens sums, in a few words."""
        opened = f"any {self.shared.threshold} of {self.shared.holders} holders" if self.shared else "the owner of the key"
        return f"Paillier, {self.key.bits} bits; sums of {self.least} and more are opened by {opened}"

    def settings(self) -> dict[str, Any]:
        """What a resumed run must have in common with the interrupted one."""
        return {
            "scheme": "paillier",
            "key": (self.shared or self.key).key_id,
            "bits": self.bits,
            "noise_by": self.noise_by,
            "min_contributions": self.min_contributions,
        }

    def require_cohort(self, clients: int | None) -> None:
        """Refuse cohorts of which no sum would be opened, or that are drawn at random.

        Args:
            clients: How many are asked in a round; ``None`` if they are drawn at random.

        Raises:
            ConfigError: Names the argument and the next step.
        """
        if clients is None:
            raise ConfigError(
                "secagg with cohorts that are drawn at random: whoever opens sums sees how many took part, while amplification "
                "counts on cohorts that nobody sees; give num_sampled_clients"
            )
        if clients < self.least:
            raise ConfigError(
                f"secagg.min_contributions = {self.least}: cohorts have {clients}, so that no sum would be opened; "
                "ask for fewer, or raise num_sampled_clients"
            )
