"""Worlds of tools, and dialogues with a user who has a request."""
