"""hubbub trains models on people's data with a privacy guarantee that can be proved, published and checked.

A first program needs only these names; the packages have the rest, from the ground up: ``mechanism`` (what
is released, and how far one unit moves it), ``accounting`` (what it costs), ``noise``, ``factorization`` (which correlation of
noise has the least error), ``ledger`` (what is on record), ``secagg`` (sums that the server cannot read), ``training``.

Example:
    >>> import torch
    >>> import hubbub
    >>> mechanism = hubbub.calibrate(rounds=3, participation=hubbub.PoissonSampling(0.5), epsilon=4.0, delta=1e-5)
    >>> plan = hubbub.Plan(mechanism, clip_norm=1.0, delta=1e-5)
    >>> clients = [(torch.randn(8, 4), torch.zeros(8, dtype=torch.long)) for _ in range(20)]
    >>> model = torch.nn.Linear(4, 2)
    >>> population = hubbub.SimulatedPopulation(clients, torch.nn.functional.cross_entropy)
    >>> [result.round_index for result in hubbub.train(plan, population, model)]
    [0, 1, 2]
"""

from typing import TYPE_CHECKING

from hubbub._util import lazily

if TYPE_CHECKING:
    from hubbub._util import __version__
    from hubbub.accounting.calibrate import calibrate
    from hubbub.accounting.composition import delta, epsilon
    from hubbub.accounting.guarantee import guarantee
    from hubbub.accounting.statement import PrivacyGuarantee
    from hubbub.experiment.engine.finished import load
    from hubbub.mechanism import Mechanism
    from hubbub.mechanism.participation import (
        BallsInBinsSampling,
        CyclicPoissonSampling,
        FixedEpochs,
        FixedSizeSampling,
        MinSeparation,
        PoissonSampling,
        SingleParticipation,
        TruncatedPoissonSampling,
    )
    from hubbub.training.clipping import AdaptiveClipping
    from hubbub.training.per_example import ExamplePopulation, private_gradients
    from hubbub.training.plan import Plan, ServerOptimizer
    from hubbub.training.rounds import train
    from hubbub.training.run_folder import RunStore
    from hubbub.training.simulation.local import LocalTraining
    from hubbub.training.simulation.simulate import SimulatedPopulation
    from hubbub.verification import verify

__all__ = [
    "AdaptiveClipping",
    "BallsInBinsSampling",
    "CyclicPoissonSampling",
    "ExamplePopulation",
    "FixedEpochs",
    "FixedSizeSampling",
    "LocalTraining",
    "Mechanism",
    "MinSeparation",
    "Plan",
    "PoissonSampling",
    "PrivacyGuarantee",
    "RunStore",
    "ServerOptimizer",
    "SimulatedPopulation",
    "SingleParticipation",
    "TruncatedPoissonSampling",
    "__version__",
    "calibrate",
    "delta",
    "epsilon",
    "guarantee",
    "load",
    "private_gradients",
    "train",
    "verify",
]

# Modules that load torch are loaded on first use.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "_util": ("__version__",),
        "accounting": ("PrivacyGuarantee", "calibrate", "delta", "epsilon", "guarantee"),
        "experiment.engine.finished": ("load",),
        "mechanism": ("Mechanism",),
        "mechanism.participation": (
            "BallsInBinsSampling",
            "CyclicPoissonSampling",
            "FixedEpochs",
            "FixedSizeSampling",
            "MinSeparation",
            "PoissonSampling",
            "SingleParticipation",
            "TruncatedPoissonSampling",
        ),
        "training": (
            "ExamplePopulation",
            "LocalTraining",
            "Plan",
            "RunStore",
            "ServerOptimizer",
            "SimulatedPopulation",
            "private_gradients",
            "train",
        ),
        "training.clipping": ("AdaptiveClipping",),
        "verification": ("verify",),
    },
)
