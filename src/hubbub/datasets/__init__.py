"""Data sets and how they are dealt to clients."""

from hubbub.datasets.dataset import Dataset
from hubbub.datasets.examples import from_examples
from hubbub.datasets.partition import by_user, dealt, dirichlet, iid

__all__ = ["Dataset", "by_user", "dealt", "dirichlet", "from_examples", "iid"]
