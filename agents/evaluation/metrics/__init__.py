"""Metrics of episodes, in training and evaluation alike: one method, one file; `agents/catalog.toml` has the table."""
