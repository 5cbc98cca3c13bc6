"""Other simulators at the same work: one script each, run by the interpreter that has the package.

The scripts import nothing of Archipel: what they share is in ``pace``, ``networks`` and ``shards`` beside them.
"""
