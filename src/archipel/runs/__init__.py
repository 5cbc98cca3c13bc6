"""Trained federations: their facts, queries and evaluation."""
