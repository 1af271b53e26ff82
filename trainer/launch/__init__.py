"""Processes of a training run: what is started where, learner ranks, and servers that join and leave."""
