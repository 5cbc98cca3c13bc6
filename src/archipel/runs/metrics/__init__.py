"""Metrics that a decision needs, from counts that leave a site instead of patients' scores."""

from archipel.core.lazy import export

export(__name__)
