"""The server: a bundle behind HTTP."""
