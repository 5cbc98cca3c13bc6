"""Personal models between local optima and consensus."""
