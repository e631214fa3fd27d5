"""Two engines for a run with a folder: this process, or a Flower app."""
