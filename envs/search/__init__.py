"""Worlds that are searched: questions whose answers lie in a corpus."""
