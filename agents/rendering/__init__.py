"""Rendering: messages to tokens, observations to the tokens to append, sampled tokens to actions."""

from envgym.agents.rendering.factory import Prefer, make_renderer

__all__ = ["Prefer", "make_renderer"]
