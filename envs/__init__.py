"""The environments: text only, one family per package.

This part knows tasks, rewards and tools; it knows no tokens, policies, agents or trainers. Importing it imports no
environment: ids are resolved lazily through the registry.
"""

if __name__ != "envgym.envs":
    raise ImportError(f"{__name__!r} must be imported by its full name, got a top-level import; use 'envgym.envs'.")
