"""Metrics of episodes, in training and evaluation alike; `agents/tables.toml` has the table."""
