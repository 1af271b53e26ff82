"""Weights on their way from the learner to policies: files, shared memory and process groups, with digests.

It must not know which engine takes the weights.
"""
