"""The faults and attacks that hubbub is tried against: what happens, and what must come of it.

Severities: S1, privacy is lost and nobody sees it; S2, a round, a run or data are lost; S3, an unclear error, or something does
not run; S4, a nuisance.
"""

from dataclasses import dataclass

# In the order of the page; each has a file here.
FAMILIES = {
    "NUM": "Bad numbers",
    "SHP": "Shapes and types of tensors",
    "CLI": "Clients",
    "PRT": "Participation",
    "CRA": "Crash, restart, disk",
    "ADA": "Adaptive clipping",
    "RNG": "Randomness",
    "FPT": "Floating point",
    "ACC": "Accounting",
    "FIL": "Files and settings",
    "PAI": "Paillier",
    "FLW": "Flower",
    "RES": "Resources",
}


@dataclass(frozen=True)
class Case:
    """One fault or attack.

    Args:
        id: Its family and number, as tests are named by it: ``test_num_1_...``.
        severity: ``"S1"`` to ``"S4"``.
        fault: What happens.
        expected: What must come of it.
        absent: Where the part that it concerns does not exist: the reason.
    """

    id: str
    severity: str
    fault: str
    expected: str
    absent: str = ""
