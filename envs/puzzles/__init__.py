"""Games and procedural puzzles."""
