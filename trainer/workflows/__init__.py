"""Whole programs beside the training loop: warm start, dry run, overfitting one batch, fitting a value."""
