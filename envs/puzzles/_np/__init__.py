"""The problems of `puzzles/np-v0`, one module each, and what they share; nothing here knows the environment."""
