"""What everything stands on: trees of tensors, keys, examples, cohorts, checks."""
