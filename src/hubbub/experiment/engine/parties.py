"""The parties of an encrypted run: clients, server and key holders in this process, or nodes of a grid; and their keys."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hubbub._util import files
from hubbub._util.prf import derive, seed_for, seed_key
from hubbub.errors import ConfigError, RunFolderError
from hubbub.experiment.build import Run
from hubbub.experiment.engine.folder import RunInFolder
from hubbub.experiment.estimates import agreed
from hubbub.mechanism import Mechanism
from hubbub.secagg import key_files, paillier, threshold
from hubbub.secagg.key_holder import Holder
from hubbub.secagg.paillier import PrivateKey, PublicKey
from hubbub.secagg.threshold import KeyShare, ThresholdKey
from hubbub.training import Population, SimulatedPopulation
from hubbub.training.encrypted import EncryptedPopulation, HolderNoise
from hubbub.training.encryption import Encryption
from hubbub.training.simulation.functional import FlatModel

if TYPE_CHECKING:
    from flwr.app import UserConfig
    from flwr.serverapp import Grid

    from hubbub.flower.population import GridPopulation


def parties(begun: RunInFolder, terms: Encryption) -> EncryptedPopulation:
    """The encrypting population of a run, with the key holders that decrypt its sums."""
    run = begun.run
    if terms.noise_rows and (begun.folder / "state" / "agreement.json").exists():
        raise RunFolderError(f"{begun.folder}: its holders' noise was drawn on a grid; resume with --engine flower")
    keys = _keys(run, terms)
    public = keys[0].public
    agreement = agreed(run.plan, terms, public.public_key, FlatModel(run.model).dim, secrets.token_hex(16))
    holders, plan = [Holder(one, agreement) for one in keys], run.plan

    def noise(mechanism: Mechanism) -> list[HolderNoise]:
        numbers = range(terms.holders)
        if plan.noise == "simulation":
            secret = derive(seed_key(plan.seed), "holders")
            return [HolderNoise(mechanism, agreement.size, seed=seed_for(secret, i)) for i in numbers]
        given, folder = begun.rounds_released, _holders_folder(begun)
        return [HolderNoise(mechanism, agreement.size, folder / str(i + 1), given=given) for i in numbers]

    return EncryptedPopulation(
        cast(SimulatedPopulation, run.population),
        agreement,
        holders,
        public if isinstance(public, ThresholdKey) else None,
        lattice_bits=terms.lattice_bits,
        noise=partial(noise, plan.mechanism) if plan.mechanism is not None and terms.noise_rows else None,
        mechanism=plan.mechanism,
    )


def require_keys(run: Run) -> None:
    """Check the keys that the settings name, before a run begins whose holders are on this machine."""
    if run.encryption and run.config.secagg.keys is not None:
        _keys(run, run.encryption)


def _fresh_keys(terms: Encryption) -> Sequence[KeyShare | PrivateKey]:
    """A new key: whole, or as one share for each holder."""
    if terms.holders == 1:
        return [paillier.generate(terms.key_bits)]
    # All shares are in this process, which sees only sums that it formed itself.
    _, shares = threshold.generate(
        terms.key_bits, holders=terms.holders, threshold=terms.threshold, min_contributions=terms.min_contributions
    )
    return shares


def _keys(run: Run, terms: Encryption) -> Sequence[KeyShare | PrivateKey]:
    """The keys in the folder that the settings name, from ``hubbub paillier``, or new ones."""
    if run.config.secagg.keys is None:
        return _fresh_keys(terms)
    folder, whole = Path(run.config.secagg.keys).expanduser(), terms.holders == 1
    paths = [folder / (key_files.PRIVATE if whole else key_files.share_name(i + 1)) for i in range(terms.holders)]
    if missing := [path.name for path in paths if not path.is_file()]:
        made = "keygen" if whole else f"shares --holders {terms.holders} --threshold {terms.threshold}"
        raise ConfigError(
            f"secagg.keys = {str(folder)!r}: has no {missing[0]}, while secagg.holders = {terms.holders}; name a folder of "
            f"'hubbub paillier {made}'"
        )
    keys = [key_files.read_private(path) if whole else key_files.read_share(path) for path in paths]
    if any(key.public != keys[0].public or key.holder != i for i, key in enumerate(keys, start=1)):
        raise ConfigError(f"secagg.keys = {str(folder)!r}: holds shares of several keys, or one of them twice")
    _require_terms(keys[0].public, terms, folder)
    return keys


def _require_terms(key: PublicKey | ThresholdKey, terms: Encryption, where: Path) -> None:
    for name, value in {"key_bits": key.public_key.bits, "holders": key.holders, "threshold": key.threshold}.items():
        if value != getattr(terms, name):
            raise ConfigError(f"secagg.{name} = {getattr(terms, name)}: the key in {where} has {value}; say so")
    if key.min_contributions > terms.min_contributions:
        raise ConfigError(
            f"secagg.min_contributions = {terms.min_contributions}: must be at least {key.min_contributions}, as for the key "
            f"in {where}"
        )


def local_holders(begun: RunInFolder, terms: Encryption) -> "Callable[[int], UserConfig]":
    """The configuration of each node of a federation in this process: the first ones are the holders of the key.

    Keys that the settings do not name are made, and kept for the run's next start.
    """
    from hubbub.flower.secagg_client import FOLDER, SEED, SHARE

    folder, clients = _holders_folder(begun), len(begun.run.population.clients)
    keys = _named_folder(begun) or folder
    if keys == folder and not (folder / key_files.PUBLIC).exists():
        files.make_folder(folder)
        for left in folder.glob("*.json"):
            left.unlink()
        for key in _fresh_keys(terms):
            if isinstance(key, KeyShare):
                key_files.write_share(folder / key_files.share_name(key.holder), key)
            else:
                key_files.write_private(folder / key_files.PRIVATE, key)
        # The public one comes last, when all others are there: what a start leaves that ends before is nobody's.
        key_files.write_public(folder / key_files.PUBLIC, key.public)
    plan = begun.run.plan
    seeds = derive(seed_key(plan.seed), "holders")

    def configured(index: int) -> "UserConfig":
        told: dict[str, Any] = {"partition-id": index, "num-partitions": clients}
        if index < terms.holders:
            told[SHARE] = str(keys / (key_files.share_name(index + 1) if terms.holders > 1 else key_files.PRIVATE))
            told[FOLDER] = str(folder / str(index + 1))
            if plan.noise == "simulation":
                told[SEED] = seed_for(seeds, index)
        return told

    return configured


def public_file(begun: RunInFolder, settings: Mapping[str, Any]) -> Path:
    """The file of the public key of a run: as the app's settings say, or next to the keys of the run."""
    told, named = str(settings.get("paillier-public", "")), _named_folder(begun)
    if told or named:
        return Path(told) if told else Path(str(named)) / key_files.PUBLIC
    made = _holders_folder(begun) / key_files.PUBLIC
    if not made.exists():
        raise ConfigError(
            "paillier-public: is missing; say --run-config 'paillier-public=\"/srv/hubbub/public-key.json\"', or name the "
            "folder of the keys as secagg.keys"
        )
    return made


def encrypted(
    begun: RunInFolder, terms: Encryption, grid: "Grid", population: "GridPopulation", public: Path, timeout: float
) -> Population:
    """The encrypting population of a run on a grid, once its key holders have answered."""
    from hubbub.flower.secagg_server import EncryptedGridPopulation, GridHolders, kept_agreement
    from hubbub.flower.summing import Streaming

    run = begun.run
    found = key_files.read_public(public)
    _require_terms(found, terms, public)
    if terms.noise_rows and begun.rounds_released and not (begun.folder / "state" / "agreement.json").exists():
        raise RunFolderError(f"{begun.folder}: its holders' noise was drawn in one process; resume with --engine process")
    agreement = kept_agreement(
        begun.folder, lambda name: agreed(run.plan, terms, found.public_key, FlatModel(run.model).dim, name)
    )
    holders = GridHolders(lambda: cast("Grid", Streaming(grid)), agreement, found, run.plan.promise(), timeout)
    holders.reach()
    return EncryptedGridPopulation(population, holders, lattice_bits=terms.lattice_bits, mechanism=run.plan.mechanism)


def _holders_folder(begun: RunInFolder) -> Path:
    return begun.folder / "state" / "holders"


def _named_folder(begun: RunInFolder) -> Path | None:
    named = begun.run.config.secagg.keys
    return None if named is None else Path(named).expanduser().absolute()
