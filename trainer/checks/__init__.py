"""Checks that stop a run which must not go on: before it starts, on every batch, and after every weight update."""
