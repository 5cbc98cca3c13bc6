"""Federated EM on clients that differ."""
