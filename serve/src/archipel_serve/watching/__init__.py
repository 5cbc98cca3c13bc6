"""Watching a server run: its decisions, decided again, and alarms on drift."""
