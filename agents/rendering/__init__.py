"""Rendering: messages to tokens, observations to the tokens to append, sampled tokens to actions."""
