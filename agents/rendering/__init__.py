"""Rendering: messages to tokens, observations to the tokens to append, sampled tokens to actions."""

from envgym.agents.rendering.factory import Prefer as Prefer
from envgym.agents.rendering.factory import make_renderer as make_renderer
