"""Training: credit, losses, corrections, filters, curricula, engines, checkpoints and the training loop.

This part turns trees of turns into weight updates; it reaches environments only through `envgym.make`.
"""

if __name__ != "envgym.trainer":
    raise ImportError(f"{__name__!r} must be imported by its full name, got a top-level import; use 'envgym.trainer'.")
