"""Private training: one loop for every population and every mechanism.

One update, from a client to its release, in :func:`.rounds.train`::

    cohorts.draw                       the cohort of the round
    simulation.simulate, .local        the update of each client
    clipping.bounded                   the update, clipped, in whole steps of hubbub.noise.lattice
    aggregate.LatticeSum               the sum of all updates
    release.ReleasePath.begin          the cost of the round is on disk: hubbub.ledger.ledger
    release.ReleasePath.row            a row of noise, used once: hubbub.noise.stream
    aggregate.LatticeSum.open          noise is added to the sum, here alone
    release.ReleasePath.commit         the release is on disk: run_folder
    rounds.server_step                 the model is updated by the release
"""

from typing import TYPE_CHECKING

from hubbub._util import lazily

if TYPE_CHECKING:
    from hubbub.training.aggregate import LatticeSum, PlainSum, Population, Sum
    from hubbub.training.clipping import clip
    from hubbub.training.evaluation import evaluate
    from hubbub.training.head_hook import HeadHook
    from hubbub.training.moments import Moments, private_moments
    from hubbub.training.per_example import ExamplePopulation, private_gradients
    from hubbub.training.plan import Plan, RunPlan, ServerOptimizer
    from hubbub.training.ranks import Ranks
    from hubbub.training.release import ReleasePath
    from hubbub.training.rounds import RoundResult, train
    from hubbub.training.run_folder import RunStore
    from hubbub.training.simulation import Execution
    from hubbub.training.simulation.local import LocalTraining
    from hubbub.training.simulation.simulate import SimulatedPopulation
    from hubbub.training.warm_start import charged_with, extended

__all__ = [
    "ExamplePopulation",
    "Execution",
    "HeadHook",
    "LatticeSum",
    "LocalTraining",
    "Moments",
    "PlainSum",
    "Plan",
    "Population",
    "Ranks",
    "ReleasePath",
    "RoundResult",
    "RunPlan",
    "RunStore",
    "ServerOptimizer",
    "SimulatedPopulation",
    "Sum",
    "charged_with",
    "clip",
    "evaluate",
    "extended",
    "private_gradients",
    "private_moments",
    "train",
]

# A plan of a run loads no torch, which takes longer than all that it computes.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "aggregate": ("LatticeSum", "PlainSum", "Population", "Sum"),
        "clipping": ("clip",),
        "evaluation": ("evaluate",),
        "head_hook": ("HeadHook",),
        "moments": ("Moments", "private_moments"),
        "per_example": ("ExamplePopulation", "private_gradients"),
        "plan": ("Plan", "RunPlan", "ServerOptimizer"),
        "ranks": ("Ranks",),
        "release": ("ReleasePath",),
        "rounds": ("RoundResult", "train"),
        "run_folder": ("RunStore",),
        "simulation": ("Execution",),
        "simulation.local": ("LocalTraining",),
        "simulation.simulate": ("SimulatedPopulation",),
        "warm_start": ("charged_with", "extended"),
    },
)
