"""Rollout workers: processes that grow the trees of a run's groups."""
