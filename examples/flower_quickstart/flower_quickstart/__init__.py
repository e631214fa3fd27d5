"""Digits, learnt in private by a federation."""
