"""Environments of envgym as a taskset and a harness of verifiers, which finds them under the name of this package."""

from envgym.connect.verifiers import EnvgymHarness, EnvgymTaskset

__all__ = ["EnvgymHarness", "EnvgymTaskset"]
