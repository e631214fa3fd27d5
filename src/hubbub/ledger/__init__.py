"""What is on record: the promise of a run, the chain of records, who took part, and what was really spent."""

from typing import TYPE_CHECKING

from hubbub._util import lazily
from hubbub.ledger.actual_cost import spent
from hubbub.ledger.chain import Chain, read_chain
from hubbub.ledger.ledger import Ledger
from hubbub.ledger.promise import Promise

if TYPE_CHECKING:
    from hubbub.ledger.multi_run import compose_runs, run_charges

__all__ = ["Chain", "Ledger", "Promise", "compose_runs", "read_chain", "run_charges", "spent"]

# One run alone needs no account of several.
__getattr__, __dir__ = lazily(__name__, {"multi_run": ("compose_runs", "run_charges")})
