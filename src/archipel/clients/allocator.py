"""Keeping freed memory at hand between local steps."""

from __future__ import annotations

import ctypes
import sys

# glibc's mallopt: the parameters' numbers are those of <malloc.h>.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Asks glibc to reuse freed blocks instead of handing them back to the kernel; false where there is no glibc.

    Activations are allocated and freed at every step. By default glibc maps each large one anew, and faulting its pages
    in costs a convolutional step up to a third of its time (``benchmarks/allocator.py``). It costs address space only:
    what a process holds stays at its peak.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
