"""Verification of a run's folder: each claim is computed again from the files, without running code that they name.

Whoever can write to the folder can forge a consistent one, so a verdict is as good as the head of the ledger that was kept
elsewhere. For a published folder it proves only that the files are those that were published under a head.
"""

from hubbub.verification.verdict import PUBLICATION, SIGNATURE, Check, Verdict, verify

__all__ = ["PUBLICATION", "SIGNATURE", "Check", "Verdict", "verify"]
