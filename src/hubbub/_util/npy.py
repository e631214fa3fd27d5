"""The header of a NumPy file, read by its own short grammar: nothing is evaluated, and sizes are known before anything is read.

The format: ``\\x93NUMPY``, two bytes of version, the length of the header, and a literal such as
``{'descr': '<f8', 'fortran_order': False, 'shape': (3, 3), }``.
"""

import re
from typing import BinaryIO

import numpy as np

MAGIC = b"\x93NUMPY"
_LONGEST = 4096
_HEADER = re.compile(
    r"\{'descr': '([<>|=][a-zA-Z][0-9]{1,2})', 'fortran_order': (False|True), "
    r"'shape': \(((?:[0-9]{1,12}, ?)*(?:[0-9]{1,12})?)\),? ?\}\s*"
)


def read_header(stream: BinaryIO) -> tuple[np.dtype[np.generic], bool, tuple[int, ...]]:
    """Read up to the entries: the type that a file states, whether it is in Fortran's order, and the shape."""
    start = stream.read(8)
    if start[:6] != MAGIC or start[6:] not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise ValueError(f"it does not begin as a NumPy file of version 1 to 3 ({start[:8]!r})")
    length = int.from_bytes(stream.read(2 if start[6] == 1 else 4), "little")
    if length > _LONGEST:
        raise ValueError(f"its header claims {length} bytes")
    text = stream.read(length).decode("latin-1")
    found = _HEADER.fullmatch(text)
    if not found:
        raise ValueError(f"its header is not that of a plain array ({text[:80]!r})")
    shape = tuple(int(size) for size in found[3].split(",") if size.strip())
    try:
        dtype = np.dtype(found[1])
    except TypeError as error:
        raise ValueError(f"its header names the type {found[1]!r}, which there is not") from error
    return dtype, found[2] == "True", shape
