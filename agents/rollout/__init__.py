"""Rollouts: an episode's environment and policy, the loop that drives them, many at a time, and the tree they leave."""
