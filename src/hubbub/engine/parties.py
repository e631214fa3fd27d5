"""Clients, server and holders of the key of an encrypted run, all in this process: to see what encryption costs."""

import math
import secrets
from collections.abc import Sequence
from pathlib import Path

from hubbub.build import Run, clients_of
from hubbub.engine.folder import RunInFolder
from hubbub.errors import ConfigError, RunFolderError
from hubbub.estimates import agreed
from hubbub.randomness import derive, seed_for, seed_key
from hubbub.secagg import key_files, paillier, threshold
from hubbub.secagg.key_holder import Holder
from hubbub.secagg.paillier import PrivateKey, PublicKey
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.threshold import KeyShare
from hubbub.training.encrypted import EncryptedPopulation
from hubbub.training.encryption import Encryption
from hubbub.training.flat import FlatModel
from hubbub.training.holder_noise import HolderNoise

__all__ = ["agreement_of", "fresh_keys", "parties", "require_keys"]


def parties(begun: RunInFolder, terms: Encryption) -> EncryptedPopulation:
    """The clients of a run that encrypt what they send, and holders that open their sums.

    Args:
        begun: The run.
        terms: How it encrypts.

    Raises:
        ConfigError: The keys that the settings name are not those of so many holders.
        RunFolderError: What the holders keep in the run's folder cannot be read.
    """
    run = begun.run
    if terms.noise_rows and (begun.folder / "state" / "agreement.json").exists():
        raise RunFolderError(
            f"{begun.folder}: the holders' noise of its rounds was drawn on a grid, and one process cannot go on with it; "
            "resume with --engine flower"
        )
    keys = _keys(run, terms)
    first = keys[0]
    public, key = (first.public, first.public.public_key) if isinstance(first, KeyShare) else (None, first.public_key)
    agreement = agreement_of(run, terms, key, secrets.token_hex(16))
    # Here all clients have one table of powers.
    key.prepare(run.plan.rounds * math.ceil(run.plan.expected_cohort_size) * agreement.ciphertexts)
    holders = [Holder(one, agreement) for one in keys]
    return EncryptedPopulation(
        clients_of(run.population),
        agreement,
        holders,
        public,
        lattice_bits=terms.lattice_bits,
        noise=_streams(begun, terms, agreement.size),
        mechanism=run.plan.mechanism,
    )


def require_keys(run: Run, terms: Encryption) -> None:
    """Refuse, before a run begins, keys that the settings name and that are not there or are others.

    Raises:
        ConfigError: They are not those of so many holders.
        KeyFileError: A file is open to others or damaged.
    """
    if run.config.secagg.keys is not None:
        _keys(run, terms)


def agreement_of(run: Run, terms: Encryption, key: PublicKey, name: str) -> Agreement:
    """What clients, server and holders of a run agree on.

    Args:
        run: The run.
        terms: How it encrypts.
        key: Under which everybody encrypts.
        name: That no other run has.
    """
    return agreed(run.plan, terms, key, FlatModel(run.model).dim, name)


def fresh_keys(terms: Encryption) -> Sequence[KeyShare | PrivateKey]:
    """A new key: whole, or in the shares of its holders."""
    if terms.holders == 1:
        return [paillier.generate(terms.key_bits)]
    # Who has one share only sees sums that it formed itself.
    _, shares = threshold.generate(
        terms.key_bits, holders=terms.holders, threshold=terms.threshold, min_contributions=terms.min_contributions
    )
    return shares


def _keys(run: Run, terms: Encryption) -> Sequence[KeyShare | PrivateKey]:
    """The keys of the folder that the settings name, or such as are thrown away."""
    if run.config.secagg.keys is not None:
        return _kept_keys(Path(run.config.secagg.keys).expanduser(), terms)
    return fresh_keys(terms)


def _kept_keys(folder: Path, terms: Encryption) -> Sequence[KeyShare | PrivateKey]:
    """What ``hubbub paillier`` wrote: a whole key, or the shares of one.

    Raises:
        ConfigError: It is another key than the settings say.
        KeyFileError: A file is missing, open to others or damaged.
    """
    keys: list[KeyShare | PrivateKey]
    names = [key_files.PRIVATE] if terms.holders == 1 else [key_files.share_name(i + 1) for i in range(terms.holders)]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        made = "keygen" if terms.holders == 1 else f"shares --holders {terms.holders} --threshold {terms.threshold}"
        raise ConfigError(
            f"secagg.keys = {str(folder)!r}: has no {missing[0]}, while secagg.holders = {terms.holders}; name a folder that "
            f"'hubbub paillier {made}' made, or say who holds the key"
        )
    if terms.holders == 1:
        private = key_files.read_private(folder / names[0])
        keys, found = [private], (private.public_key.bits, 1, 1)
    else:
        shares = [key_files.read_share(folder / name) for name in names]
        public = shares[0].public
        keys, found = [*shares], (public.public_key.bits, public.holders, public.threshold)
        if any(share.public != public or share.holder != i + 1 for i, share in enumerate(shares)):
            raise ConfigError(f"secagg.keys = {str(folder)!r}: holds shares of several keys, or one of them twice")
    if found != (terms.key_bits, terms.holders, terms.threshold):
        raise ConfigError(
            f"secagg.keys = {str(folder)!r}: has a key of {found[0]} bits, {found[2]} of {found[1]} holders; the settings say "
            f"{terms.key_bits} bits, {terms.threshold} of {terms.holders}; set secagg.key_bits, secagg.holders and "
            "secagg.threshold to those of the key, or name another"
        )
    return keys


def _streams(begun: RunInFolder, terms: Encryption, dim: int) -> list[HolderNoise]:
    """The noise of each holder, where holders add any."""
    plan = begun.run.plan
    if plan.mechanism is None or not terms.noise_rows:
        return []
    if plan.noise == "simulation":
        secret = derive(seed_key(plan.seed), "holders")
        return [HolderNoise(plan.mechanism, dim, seed=seed_for(secret, i)) for i in range(terms.holders)]
    folders = [begun.folder / "state" / "holders" / str(i + 1) for i in range(terms.holders)]
    return [HolderNoise(plan.mechanism, dim, folder) for folder in folders]
