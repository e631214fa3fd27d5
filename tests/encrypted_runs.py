"""Encrypted runs of the small models, under keys that are far too small for anything but tests."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from hubbub._util import files
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import every_round
from hubbub.mechanism.strategies import Strategy
from hubbub.secagg import threshold
from hubbub.secagg.key_holder import Holder
from hubbub.training import RunPlan
from hubbub.training.encrypted import EncryptedPopulation, HolderNoise
from hubbub.training.encryption import Encryption
from small_keys import SAFE, small
from small_runs import CLIENTS, population

DIM, ROUNDS, CLIP = 8, 6, 0.5
BITS = 16


def terms(noise_by: str = "server", **changes: object) -> Encryption:
    """Three holders, of whom two open sums; the owner of the key where there is one."""
    given: dict[str, object] = {"holders": 3, "threshold": 2, "bits": BITS, "noise_by": noise_by, "key_bits": 2048}
    if noise_by == "clients":
        given |= {"min_survivors": CLIENTS, "min_contributions": CLIENTS}
    return Encryption(**{**given, **changes})  # type: ignore[arg-type]


def plan(strategy: Strategy, how: Encryption, **changes: object) -> RunPlan:
    """Six rounds in which each of twelve clients takes part."""
    pattern = every_round(ROUNDS)
    return RunPlan(
        rounds=ROUNDS,
        participation=pattern,
        expected_cohort_size=CLIENTS,
        mechanism=Mechanism(strategy, pattern, 0.7, how.shares()),
        clip_norm=CLIP,
        lattice_bits=how.lattice_bits,
        noise_by="holders" if how.noise_by == "holders" else "server",
        setting=how.setting(),
        further=how.further(),
        **changes,  # type: ignore[arg-type]
    )


def encrypted(
    chosen: RunPlan, how: Encryption, *, folder: Path | None = None, seeds: list[int] | None = None
) -> EncryptedPopulation:
    """The clients of the small runs; the holders keep what they do in folders, or have streams of known seeds."""
    if how.holders == 1:
        public, keys, key = None, [small()], small().public_key
    else:
        public, keys = threshold.deal(*SAFE, holders=how.holders, threshold=how.threshold)  # type: ignore[assignment]
        key = public.public_key  # type: ignore[union-attr]
    packing = replace(how.packing(CLIENTS, chosen.mechanism), key_bits=512)
    agreed = how.agreement(key, packing, DIM + chosen.clip_norms.further, "a run")
    holders = [Holder(one, agreed, folder and _made(folder / f"holder-{i}")) for i, one in enumerate(keys)]
    noise = None
    if chosen.mechanism and how.noise_rows:
        noise = partial(_streams, chosen.mechanism, how, folder, seeds, DIM + chosen.clip_norms.further)
    given = {"lattice_bits": how.lattice_bits, "noise": noise, "mechanism": chosen.mechanism}
    return EncryptedPopulation(population(), agreed, holders, public, **given)


def _streams(
    mechanism: Mechanism, how: Encryption, folder: Path | None, seeds: list[int] | None, dim: int
) -> list[HolderNoise]:
    if seeds is not None:
        return [HolderNoise(mechanism, dim, seed=seed) for seed in seeds]
    return [HolderNoise(mechanism, dim, folder and _made(folder / f"noise-{i}")) for i in range(how.holders)]


def _made(folder: Path) -> Path:
    files.make_folder(folder)
    return folder
