"""How a workload A = B·C is factorized with the least error: arrays in, arrays and proved bounds out.

The families of C with their names, sensitivities and streams are in :mod:`hubbub.strategies`, whose ``optimize`` functions
call this room. Letters, in all of its files: n rounds, A workload, C strategy, B = A·C⁻¹, X = CᵀC, M = AᵀA, V the dual matrix
of the constraints on X, b bands or separation, k participations.
"""
