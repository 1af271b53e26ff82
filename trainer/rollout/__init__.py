"""Rollouts: which tasks come next, the groups that are sampled for them, and what is known of each task."""
