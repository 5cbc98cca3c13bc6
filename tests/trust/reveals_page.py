"""Write docs/reveals.md: ``PYTHONPATH=tests:tests/conformance python tests/trust/reveals_page.py``."""

from pathlib import Path

from table import ROWS

from archipel import Federation
from archipel.trust import reveals
from random_tables import random_tables

HEAD = """# What methods reveal

Each row is a message that a client sends to the server. It is found by running the method on random examples with a
handle that records all replies (`archipel.trust.reveals`), once with few examples and once with twice as many.
`archipel run` tells the same of the run that it starts, and a report and a model card repeat it. The rows are the
methods of the conformance table; two settings of a method have a row each where their messages differ.

"The sum" means that the server needs only a sum or a mean over clients, which secure sums could compute without showing
a single reply. "Each" means that the server sees every client's. A loss is the mean over a client's examples.

| Method | Step | Entries of the reply | The server needs | When |
| --- | --- | --- | --- | --- |
"""
FOOT = """
Parameters of a model can reveal training examples to somebody who inverts or compares them; that only sums are needed
doesn't by itself hide them. Statistics of few examples are nearly the examples. Metrics of sites are counts
([deciding.md](deciding.md)).
"""


def page(found):
    """The page's text."""
    lines, before = [], set()
    for name, rows in found.items():
        steps = {}
        for row in rows:
            place = row.step.split(".")[-1], row.seen, row.when, row.per_example
            steps.setdefault(place, dict.fromkeys([]))[row.leaf.split("/")[0] or "one tensor"] = None
        for (step, seen, when, per_example), entries in steps.items():
            what = ", ".join(entries) + (" (an entry for every example)" if per_example else "")
            method = name.split(" ")[0]
            needed, often = "the sum" if seen == "sum" else "each", "once" if when == "start" else "rounds"
            line = f"| {{}} | {step} | {what} | {needed} | {often} |"
            if (method, line) not in before:
                before.add((method, line))
                lines.append(line.format(name))
    return HEAD + "\n".join(lines) + "\n" + FOOT


if __name__ == "__main__":
    uneven = Federation.from_arrays(random_tables((13, 17, 36, 24)), test=0.3)
    found = {name: reveals(row.make(uneven), uneven, groups=row.groups) for name, row in ROWS.items()}
    (Path(__file__).parents[2] / "docs" / "reveals.md").write_text(page(found))
