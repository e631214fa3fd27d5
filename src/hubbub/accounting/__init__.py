"""What a run costs in privacy: events, their composition, guarantees and what they say, and calibration."""

from hubbub.accounting.calibrate import (
    calibrate,
    calibrate_cohort_size,
    calibrate_min_separation,
    calibrate_noise_multiplier,
    calibrate_rounds,
    calibrate_sampling_probability,
)
from hubbub.accounting.composition import ACCOUNTANTS, delta, epsilon
from hubbub.accounting.conversions import (
    bun_steinke_epsilon_from_zcdp,
    delta_from_rdp,
    delta_from_zcdp,
    epsilon_from_rdp,
    epsilon_from_zcdp,
    split_noise_multiplier,
)
from hubbub.accounting.events import (
    RELATIONS,
    BallsInBins,
    DiscreteGaussianShares,
    Event,
    FixedSizeSampled,
    Gaussian,
    MixtureOfGaussians,
    NeighboringRelation,
    PoissonSampled,
    TreeAggregation,
    TruncatedPoissonSampled,
)
from hubbub.accounting.groups import group_epsilon, group_events, group_noise_multiplier
from hubbub.accounting.guarantee import guarantee, unprotected
from hubbub.accounting.renyi import rdp
from hubbub.accounting.runs import RunCharge
from hubbub.accounting.statement import PrivacyGuarantee, Restated, RunFacts, rounded_up
from hubbub.accounting.trade_offs import gdp_mu, trade_off
from hubbub.accounting.wording import Assumption

__all__ = [
    "ACCOUNTANTS",
    "RELATIONS",
    "Assumption",
    "BallsInBins",
    "DiscreteGaussianShares",
    "Event",
    "FixedSizeSampled",
    "Gaussian",
    "MixtureOfGaussians",
    "NeighboringRelation",
    "PoissonSampled",
    "PrivacyGuarantee",
    "Restated",
    "RunCharge",
    "RunFacts",
    "TreeAggregation",
    "TruncatedPoissonSampled",
    "bun_steinke_epsilon_from_zcdp",
    "calibrate",
    "calibrate_cohort_size",
    "calibrate_min_separation",
    "calibrate_noise_multiplier",
    "calibrate_rounds",
    "calibrate_sampling_probability",
    "delta",
    "delta_from_rdp",
    "delta_from_zcdp",
    "epsilon",
    "epsilon_from_rdp",
    "epsilon_from_zcdp",
    "gdp_mu",
    "group_epsilon",
    "group_events",
    "group_noise_multiplier",
    "guarantee",
    "rdp",
    "rounded_up",
    "split_noise_multiplier",
    "trade_off",
    "unprotected",
]
