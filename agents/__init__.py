"""Policies, rendering between text and tokens, the agent loop, search over turns and evaluation.

This part knows tokens and the contract of environments; it knows no concrete environment and nothing of training.
"""

if __name__ != "envgym.agents":
    raise ImportError(f"{__name__!r} must be imported by its full name, got a top-level import; use 'envgym.agents'.")
