"""What was measured about the generators of reasoning-gym 0.1.25 with their default settings."""

from collections.abc import Mapping

WITHOUT_SOLUTION = frozenset({"boxnet", "rush_hour"})
"""Neither answer nor example: only the scorer knows."""
CHANCE_ELSEWHERE = 0.05
CHANCE: Mapping[str, float] = {}
CHANCE_PARTIAL: Mapping[str, float] = {}
