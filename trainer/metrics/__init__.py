"""Metrics: what an update, its rows and its rollouts were like, and the callbacks that are told."""
