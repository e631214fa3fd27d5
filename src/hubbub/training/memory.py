"""What the C library does with memory that was freed."""

import ctypes
import platform
from functools import cache

__all__ = ["keep_freed_memory"]

# Of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT = 256 * 2**20


@cache
def keep_freed_memory() -> None:
    """Have this process keep up to 256 MiB that it has freed, instead of giving every large block back at once.

    Each step of training frees what the next one needs again; a block that is given back comes back page by page, each with a
    fault, which costs stacked steps a fifth of their time. Where the C library is not GNU's, nothing changes.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    # The largest threshold that the library takes.
    library.mallopt(_MMAP_THRESHOLD, 32 * 2**20)
    library.mallopt(_TRIM_THRESHOLD, _KEPT)
    library.mallopt(_TOP_PAD, 16 * 2**20)
