"""Recorded runs as data sets and models for other projects. Knows recorded trees; imports no environment and no agent.

A kind of data set is one module: `chat`, `sharegpt`, `preferences`, `steps` and `tokens` turn recorded trees into rows.
`dataset` chooses the episodes and writes the folder with its card and its provenance.
"""
