"""The release, and how far one unit can move it: participation, workloads, strategies, sensitivity, the mechanism."""

from hubbub.mechanism.mechanism import MOST_STDDEV, Mechanism, NoiseBy, NoiseShares, whole_share

__all__ = ["MOST_STDDEV", "Mechanism", "NoiseBy", "NoiseShares", "whole_share"]
