"""Shaping: rewards that training adds to those of the env, seen by credit alone.

Filters, statistics and metrics see what the env paid.
"""
