"""Data sets and how they are dealt to clients."""

from hubbub.datasets.dataset import Dataset, by_user, dealt, dirichlet, from_examples, iid

__all__ = ["Dataset", "by_user", "dealt", "dirichlet", "from_examples", "iid"]
