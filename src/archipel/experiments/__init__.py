"""Runs from configurations: presets, folders that can be resumed, results and figures."""

from archipel.core.lazy import export

export(__name__)
