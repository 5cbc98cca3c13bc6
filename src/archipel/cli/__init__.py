"""The command archipel, one module a command group."""
