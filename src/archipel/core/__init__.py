"""The foundation of all other packages: trees of tensors, keys, examples, cohorts, checks."""
