"""The command group ``archipel bench``: the tables and figures of the papers."""
