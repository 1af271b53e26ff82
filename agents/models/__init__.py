"""Models by name: the tiny one built from a seed, SmolLM2 from its wheel, any directory or hub name.

This package may import torch; everything heavy is imported where it is used.
"""
