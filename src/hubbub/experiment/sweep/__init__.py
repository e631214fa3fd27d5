"""Sweeps: runs of one config over a grid of settings, and the privacy cost of choosing among them."""
