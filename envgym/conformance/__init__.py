"""The conformance suite of `envgym check`: what every environment must keep, as functions and as a test class."""

from envgym.conformance.mixin import EnvConformance as EnvConformance
from envgym.conformance.report import Check as Check
from envgym.conformance.report import CheckStatus as CheckStatus
from envgym.conformance.report import as_text as as_text
from envgym.conformance.report import is_passed as is_passed
from envgym.conformance.suite import CHECKS as CHECKS
from envgym.conformance.suite import check_env_conformance as check_env_conformance
