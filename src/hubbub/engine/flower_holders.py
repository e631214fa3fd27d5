"""Who opens the sums of an encrypted run as a Flower app: the keys of its holders, which node has which, and the way there."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import UserConfig
from flwr.serverapp import Grid

from hubbub import files
from hubbub.engine.folder import RunInFolder
from hubbub.engine.parties import agreement_of, fresh_keys
from hubbub.errors import ConfigError, RunFolderError
from hubbub.flower.encrypted_population import EncryptedGridPopulation
from hubbub.flower.population import GridPopulation
from hubbub.flower.secagg_client import FOLDER, SEED, SHARE
from hubbub.flower.secagg_server import GridHolders, kept_agreement
from hubbub.randomness import derive, seed_for, seed_key
from hubbub.secagg import key_files
from hubbub.secagg.paillier import PublicKey
from hubbub.secagg.threshold import KeyShare, ThresholdKey
from hubbub.training.encryption import Encryption

__all__ = ["encrypted", "local_holders", "public_file"]


def local_holders(begun: RunInFolder, terms: Encryption) -> Callable[[int], UserConfig]:
    """The configuration of each node of a federation in this process: the first ones are the holders of the key.

    Keys that the settings do not name are made, and kept for the run's next start.

    Args:
        begun: The run.
        terms: How it encrypts.
    """
    folder, clients = _holders_folder(begun), len(begun.run.population.clients)
    keys = _named_folder(begun) or folder
    if keys == folder and not (folder / key_files.PUBLIC).exists():
        _deal(folder, terms)
    plan = begun.run.plan
    seeds = derive(seed_key(plan.seed), "holders")

    def configured(index: int) -> UserConfig:
        told: UserConfig = {"partition-id": index, "num-partitions": clients}
        if index < terms.holders:
            told[SHARE] = str(keys / (key_files.share_name(index + 1) if terms.holders > 1 else key_files.PRIVATE))
            told[FOLDER] = str(folder / str(index + 1))
            if plan.noise == "simulation":
                told[SEED] = seed_for(seeds, index)
        return told

    return configured


def public_file(begun: RunInFolder, settings: Mapping[str, Any]) -> Path:
    """Where the server finds the public key of a run.

    Args:
        begun: The run.
        settings: Of the app: its ``paillier-public`` comes first, then the folder that the run's settings name, then what a
            federation in this process has made.

    Raises:
        ConfigError: Nobody says where it is.
    """
    told, named = str(settings.get("paillier-public", "")), _named_folder(begun)
    if told or named:
        return Path(told) if told else Path(str(named)) / key_files.PUBLIC
    made = _holders_folder(begun) / key_files.PUBLIC
    if not made.exists():
        raise ConfigError(
            "paillier-public: is missing; say where the public key of 'hubbub paillier' is, --run-config "
            "'paillier-public=\"/srv/hubbub/public-key.json\"', or name its folder as secagg.keys in the settings"
        )
    return made


def encrypted(
    begun: RunInFolder, terms: Encryption, grid: Grid, population: GridPopulation, public: Path, timeout: float
) -> EncryptedGridPopulation:
    """The clients of a run, encrypting, and the holders that open its sums; they are asked at once whether they are there.

    Args:
        begun: The run.
        terms: How it encrypts.
        grid: The nodes.
        population: The clients.
        public: The file of the public key.
        timeout: Seconds that holders are waited for.

    Raises:
        ConfigError: The run promises nothing, or the key is not that of such holders.
        KeyFileError: The key is missing or damaged.
        SumNotOpenedError: Too few holders are connected; nothing was charged.
    """
    run = begun.run
    if run.plan.mechanism is None:
        raise ConfigError(
            "privacy.mode = 'none' with secagg.scheme = 'paillier' and training.engine = 'flower': clients encrypt updates of "
            "a bounded norm; say engine = 'process' to see what encryption costs a run without privacy"
        )
    found = _fitting(public, terms)
    shared, key = (found, found.public_key) if isinstance(found, ThresholdKey) else (None, found)
    _require_same_streams(begun, terms)
    agreement = kept_agreement(begun.folder, lambda name: agreement_of(run, terms, key, name))
    holders = GridHolders(lambda: grid, agreement, shared, run.plan.promise(), timeout)
    holders.require_there()
    return EncryptedGridPopulation(
        population, agreement, holders, lattice_bits=terms.lattice_bits, mechanism=run.plan.mechanism
    )


def _fitting(public: Path, terms: Encryption) -> PublicKey | ThresholdKey:
    """The key, if its holders are those of the settings."""
    key = key_files.read_public(public)
    bits = key.public_key.bits if isinstance(key, ThresholdKey) else key.bits
    holders, needed = (key.holders, key.threshold) if isinstance(key, ThresholdKey) else (1, 1)
    found = {"key_bits": bits, "holders": holders, "threshold": needed}
    for name, value in found.items():
        if value != getattr(terms, name):
            raise ConfigError(
                f"secagg.{name} = {getattr(terms, name)}: the key in {public} has {value}; say so, or take its own"
            )
    if isinstance(key, ThresholdKey) and key.min_contributions > terms.min_contributions:
        raise ConfigError(
            f"secagg.min_contributions = {terms.min_contributions}: holders of the key in {public} open sums of at least "
            f"{key.min_contributions}; ask for as many"
        )
    return key


def _require_same_streams(begun: RunInFolder, terms: Encryption) -> None:
    """Refuse to go on, with noise of holders on a grid, where those of one process have added it before."""
    if terms.noise_rows and begun.rounds_measured and not (begun.folder / "state" / "agreement.json").exists():
        raise RunFolderError(
            f"{begun.folder}: the holders' noise of its rounds was drawn in one process, and nodes cannot go on with it; "
            "resume with --engine process"
        )


def _deal(folder: Path, terms: Encryption) -> None:
    """Make the keys of a federation in this process; the public one comes last, when all others are there."""
    files.make_folder(folder)
    for key in fresh_keys(terms):
        if isinstance(key, KeyShare):
            key_files.write_share(folder / key_files.share_name(key.holder), key)
        else:
            key_files.write_private(folder / key_files.PRIVATE, key)
    key_files.write_public(folder / key_files.PUBLIC, key.public if isinstance(key, KeyShare) else key.public_key)


def _holders_folder(begun: RunInFolder) -> Path:
    return begun.folder / "state" / "holders"


def _named_folder(begun: RunInFolder) -> Path | None:
    named = begun.run.config.secagg.keys
    return None if named is None else Path(named).expanduser().absolute()
