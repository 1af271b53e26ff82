"""Who acts: policies, rendering between text and tokens, the agent loop, search over turns and evaluation.

This room knows tokens and the environment contract; it must not know any concrete environment, or how anybody learns.
"""

if __name__ != "envgym.agents":
    raise ImportError(f"{__name__!r} must be imported by its full name, got a top-level import; use 'envgym.agents'.")
