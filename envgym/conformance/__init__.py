"""The conformance suite of `envgym check`: what every environment must keep, as functions and as a test class."""

from envgym.conformance.env_under_test import Check, CheckStatus, as_text, is_passed
from envgym.conformance.suite import CHECKS, EnvConformance, check_env_conformance

__all__ = ["CHECKS", "Check", "CheckStatus", "EnvConformance", "as_text", "check_env_conformance", "is_passed"]
