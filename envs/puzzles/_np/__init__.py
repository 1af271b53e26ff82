"""The problems of `puzzles/np-v0`, by kind, and what they share; nothing here knows the environment."""
