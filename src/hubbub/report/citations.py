"""The references of a run as BibTeX: the results behind its training, noise, accounting and encryption."""

import re
from collections.abc import Iterator
from pathlib import Path

from hubbub.accounting.events import (
    BallsInBins,
    DiscreteGaussianShares,
    FixedSizeSampled,
    PoissonSampled,
    TruncatedPoissonSampled,
)
from hubbub.mechanism.participation import CyclicPoissonSampling
from hubbub.mechanism.strategies import Identity, own
from hubbub.report.summary import RunSummary

_FILE = Path(__file__).parent / "templates" / "references.bib"
_EVENTS: dict[type, tuple[str, ...]] = {
    PoissonSampled: ("doroshenko2022connect", "zhu2022optimal"),
    FixedSizeSampled: ("doroshenko2022connect", "zhu2022optimal"),
    TruncatedPoissonSampled: ("ganesh2025tighter", "doroshenko2022connect"),
    BallsInBins: ("chua2025balls", "doroshenko2022connect"),
    DiscreteGaussianShares: ("canonne2020discrete", "kairouz2021distributed"),
}


def cited(run: RunSummary) -> list[str]:
    """The BibTeX keys of a run's references, each once."""
    return list(dict.fromkeys(("hubbub", *_of_training(run), *_of_noise(run), *_of_accounting(run))))


def bibtex(keys: list[str]) -> str:
    """The BibTeX entries of the keys, in their order.

    Example:
        >>> print(bibtex(["abadi2016deep"]).splitlines()[0])
        @inproceedings{abadi2016deep,
    """
    entries = {key: entry for entry, key in re.findall(r"(@\w+\{(\w+),\n.*?\n\}\n)", _FILE.read_text(), flags=re.DOTALL)}
    return "\n".join(entries[key] for key in keys)


def _of_training(run: RunSummary) -> Iterator[str]:
    training = run.settings.get("training", {})
    yield "abadi2016deep" if run.guarantee.privacy_unit == "example" else "mcmahan2017communication"
    if run.mechanism is not None and run.guarantee.privacy_unit != "example":
        yield "mcmahan2018learning"
    if training.get("proximal"):
        yield "li2020federated"
    if training.get("server_optimizer") == "fedadam":
        yield "reddi2021adaptive"
    if "flower" in (training.get("engine"), run.recorded.promise.settings.get("engine")):
        yield "beutel2020flower"
    if "adaptive_clipping" in run.recorded.promise.settings:
        yield "andrew2021differentially"


def _of_noise(run: RunSummary) -> Iterator[str]:
    if run.settings.get("secagg", {}).get("scheme") == "paillier" or "Paillier" in run.guarantee.setting:
        yield from ("paillier1999public", "damgard2001generalisation")
    if run.mechanism is None:
        return
    yield "ponomareva2023dpfy"
    if not run.recorded.promise.simulation:
        yield "mironov2012significance"
    if isinstance(run.mechanism.strategy, Identity):
        return
    yield from ("kairouz2021practical", "denisov2022improved")
    known = own(run.mechanism.strategy)
    yield from known.sources if known else ("choquettechoo2023multi",)
    if run.guarantee.sensitivity_of == "the whole run" and run.guarantee.rounds > 1:
        yield "choquettechoo2023multi"
    if isinstance(run.mechanism.participation, CyclicPoissonSampling):
        yield from ("choquettechoo2023amplified", "choquettechoo2024privacy")


def _of_accounting(run: RunSummary) -> Iterator[str]:
    events = run.guarantee.events
    if events is None:
        return
    kinds = {type(event) for event, _ in events}
    for kind, keys in _EVENTS.items():
        if kind in kinds:
            yield from keys
    if run.guarantee.accountant == "rdp" or DiscreteGaussianShares in kinds:
        yield "mironov2017renyi"
    if run.guarantee.accountant == "rdp" and PoissonSampled in kinds:
        yield "mironov2019renyi"
    if not run.guarantee.amplified:
        yield from ("balle2018improving", "dong2022gaussian")
    if run.guarantee.unamplified_zcdp_rho is not None:
        yield "bun2016concentrated"
