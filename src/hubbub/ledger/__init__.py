"""What is on record: the promise of a run, the chain of records, who took part, and what was really spent."""

from hubbub.ledger.actual_cost import spent
from hubbub.ledger.chain import Chain, read_chain
from hubbub.ledger.ledger import Ledger
from hubbub.ledger.multi_run import compose_runs, run_charges
from hubbub.ledger.promise import Promise

__all__ = ["Chain", "Ledger", "Promise", "compose_runs", "read_chain", "run_charges", "spent"]
