"""Benchmarks: a grid of runs that can be stopped and gone on with, and the papers' tables and figures made from it."""

from archipel.core.lazy import export

export(__name__)
