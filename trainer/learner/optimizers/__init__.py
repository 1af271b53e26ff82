"""The optimizers of a learner, and how weights in bfloat16 lose no update to rounding."""
