"""Curricula: which tasks come next."""
