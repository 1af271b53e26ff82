"""Policies: what samples the next tokens (or, at message level, the next message)."""
