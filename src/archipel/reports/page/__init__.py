"""Reports on runs as pages."""
