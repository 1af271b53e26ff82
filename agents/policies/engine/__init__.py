"""The decode engine: batches of requests on one transformers model whose weights the learner shares.

It samples with the weights of the learner itself, bit by bit as the learner scores, and keeps the prefixes of a tree
once. Continuous batching of transformers cannot share weights with a learner. The engine must not know how a policy is
served, and nothing of vLLM.
"""
