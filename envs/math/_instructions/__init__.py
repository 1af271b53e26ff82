"""Constraints on a text: how they are drawn, told, checked and met; nothing here knows the environment."""
