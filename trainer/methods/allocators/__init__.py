"""How many episodes a group gets while it is under way, and which of them train."""
