"""Processes of a run: how they are started, watched, restarted and ended, and where their output goes."""
