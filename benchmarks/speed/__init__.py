"""How fast rounds are, beside bare loops and other simulators."""
