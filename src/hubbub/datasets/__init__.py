"""Data sets, and their partition among clients."""

from hubbub.datasets.dataset import Dataset, by_user, dealt, dirichlet, from_examples, iid

__all__ = ["Dataset", "by_user", "dealt", "dirichlet", "from_examples", "iid"]
