"""Runs from configurations: presets, folders that can be gone on with, results and figures."""

from archipel.core.lazy import export

export(__name__)
