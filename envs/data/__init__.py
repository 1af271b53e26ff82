"""Environments of data files."""
