"""Metrics of updates, of rows and of rollouts, and the callbacks that receive them."""
