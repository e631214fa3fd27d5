"""Many runs of one config over a grid of settings: each an ordinary run in a folder of its own, and what all of them cost."""
