"""Statistical tests of what hubbub promises, and broken twins of hubbub by which these tests show their teeth.

A :class:`System` is a part of hubbub that is run as it is: its noise, its sums with canaries, its cohorts, its shares of
noise, its releases before an adversary. What a run of it shows goes to the system's statistics, each of which raises an alarm
or not. A :class:`Twin` is the same system with one thing broken, and names the one statistic that must notice.

Every threshold is fixed here, before anything is drawn. Of a right system each statistic raises an alarm with a probability of
at most ``FALSE_ALARM``; its docstring says by which law.

Other statistics stand beside what they test, each with its broken twins: of bits, moments, pairs and epochs in
``test_secure_noise.py``, of whole systems by canaries in ``test_audit_runs.py``, of the discrete Gaussian in
``test_discrete_gaussian.py``, of a private strategy's deeds in ``test_flower_defects.py``, where Flower's own are the twins.
"""

from twins import canaries, coins, membership, noise, shares
from twins.twin import FALSE_ALARM, System, Twin

__all__ = ["FALSE_ALARM", "SYSTEMS", "System", "Twin"]

SYSTEMS: dict[str, System] = {
    "noise": noise.SYSTEM,
    "canaries": canaries.SYSTEM,
    "coins": coins.SYSTEM,
    "truncated cohorts": coins.TRUNCATED,
    "groups in turn": coins.CYCLIC,
    "balls in bins": coins.BINS_FILLED,
    "shares": shares.SYSTEM,
    "last bits": membership.SYSTEM,
}
