"""Replay: what joins the groups of a step beside what was sampled for it."""
