"""How a server adds what it cannot read: Paillier encryption, fixed-point packing and threshold decryption."""

try:
    import gmpy2 as _gmpy2  # noqa: F401 # asked for once, for all modules in here
except ModuleNotFoundError as error:
    raise ImportError("hubbub.secagg needs gmpy2: pip install 'hubbub[secagg]'") from error
