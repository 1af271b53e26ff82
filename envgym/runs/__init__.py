"""A run on disk: its directory, files that outlive a crash, episodes, journal, changes and migrations.

It must not know what a run computes.
"""
