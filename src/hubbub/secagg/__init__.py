"""Secure aggregation: Paillier encryption, fixed-point packing and threshold decryption."""

try:
    import gmpy2 as _gmpy2  # noqa: F401 # imported once, for all modules of the package
except ModuleNotFoundError as error:
    raise ImportError("hubbub.secagg needs gmpy2: pip install 'hubbub[secagg]'") from error
