"""Credit: a group of trees to advantages. Computed on nodes, spread to tokens in one module (`batch.spread`).

Statistics count episodes, never rows, and only those whose reward is valid.
"""
