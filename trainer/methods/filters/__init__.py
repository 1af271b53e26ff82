"""Filters: which groups are worth a gradient, with a reason for every one that is dropped."""
