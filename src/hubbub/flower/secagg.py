"""The ``secagg`` argument of the private strategies: the Paillier key, and who adds the noise."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hubbub._util.checks import integer, plain_numbers, positive
from hubbub.errors import ConfigError
from hubbub.mechanism import Mechanism
from hubbub.secagg import key_files
from hubbub.secagg.packing import Packing
from hubbub.secagg.paillier import PublicKey
from hubbub.secagg.threshold import ThresholdKey
from hubbub.training.encryption import Encryption, NoiseSide


@dataclass(frozen=True)
class Paillier:
    """Secure aggregation with Paillier: clients encrypt their updates, and the holders of the key open sums only.

    Args:
        public: The public key or its file (from ``hubbub paillier``): of one owner, who must not be the server, or of holders
            of shares.
        bits: Of one packed number, its sign included, from 10 to 26.
        noise_by: ``"server"``, which then knows its noise and sees exact sums; ``"holders"``: each adds the whole noise under
            encryption, from a key of its own; or ``"clients"``, in shares (with ``min_survivors``).
        min_contributions: The fewest contributions in a sum that is opened.
        timeout: Seconds that holders have for an answer.

    Raises:
        KeyFileError: The file is missing, damaged or of another kind, or the key is not sound.
        ConfigError: The holders are to add noise, and one owner has the whole key.
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
        plain_numbers(self)
        if isinstance(self.public, str | Path):
            object.__setattr__(self, "public", key_files.read_public(self.public))
        if not isinstance(self.public, PublicKey | ThresholdKey):
            raise TypeError(f"secagg.public = {type(self.public).__name__}: must be a file, a PublicKey or a ThresholdKey")
        if isinstance(self.public, ThresholdKey) and self.public.holders == 1:
            raise ConfigError(
                "secagg.public: is a threshold key of one holder, whose share no run takes; make a whole key by "
                "'hubbub paillier keygen'"
            )
        integer("secagg.min_contributions", self.min_contributions, at_least=2)
        positive("secagg.timeout", self.timeout)
        # Refuses terms that do not go together.
        self.encryption(1 if self.noise_by == "clients" else None)

    @property
    def shared(self) -> ThresholdKey | None:
        """The threshold key; ``None`` if one owner has the whole key."""
        return self.public if isinstance(self.public, ThresholdKey) else None

    @property
    def least(self) -> int:
        """The fewest contributions in a sum that is opened: the argument, or more if the threshold key demands it."""
        return max(self.min_contributions, self.parsed.min_contributions)

    @property
    def parsed(self) -> PublicKey | ThresholdKey:
        """The public key, read from its file if it was given as one."""
        return cast(PublicKey | ThresholdKey, self.public)

    def encryption(self, min_survivors: int | None) -> Encryption:
        """All terms of encryption, those of the key included.

        Args:
            min_survivors: With noise by the clients: the number of clients whose shares make up the whole noise.
        """
        return Encryption(
            key_bits=self.parsed.public_key.bits,
            bits=self.bits,
            holders=self.parsed.holders,
            threshold=self.parsed.threshold,
            noise_by=self.noise_by,
            min_contributions=max(self.least, min_survivors or 1),
            min_survivors=min_survivors,
        )

    def packing(self, mechanism: Mechanism, clients: int) -> Packing:
        """How numbers are packed into plaintexts.

        Raises:
            ValueError: A sum would not be exact, or the key is too short for it.
        """
        shares = mechanism.shares
        return self.encryption(shares.clients if shares else None).packing(clients, mechanism)

    def summary(self) -> str:
        """The key and who opens sums, in one line."""
        opened = f"any {self.shared.threshold} of {self.shared.holders} holders" if self.shared else "the owner of the key"
        return f"Paillier, {self.parsed.public_key.bits} bits; sums of {self.least} and more are opened by {opened}"

    def settings(self) -> dict[str, Any]:
        """The settings that a resumed run must share with the interrupted one."""
        return {
            "scheme": "paillier",
            "key": self.parsed.key_id,
            "bits": self.bits,
            "noise_by": self.noise_by,
            "min_contributions": self.min_contributions,
        }

    def require_cohort(self, clients: int | None) -> None:
        """Refuse cohorts that are random, or too small for their sum to be opened.

        Args:
            clients: The clients in a round; ``None`` if cohorts are random.

        Raises:
            ConfigError: Names the argument and the next step.
        """
        if clients is None:
            raise ConfigError(
                "secagg with random cohorts: holders of the key see how many clients took part, while amplification requires "
                "secret cohorts; give num_sampled_clients"
            )
        if clients < self.least:
            raise ConfigError(
                f"secagg.min_contributions = {self.least}: cohorts have {clients}, so that no sum would be opened; "
                "ask for fewer, or raise num_sampled_clients"
            )
