"""Environments in which agents write programs."""
