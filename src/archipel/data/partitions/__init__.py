"""Partitions of one data set over clients: which client holds which example."""
