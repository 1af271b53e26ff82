"""How an episode ended."""

from enum import StrEnum


class Ending(StrEnum):
    """Why an episode stopped: the env ended it, a budget ended it, or something failed."""

    TERMINATED = "TERMINATED"
    TRUNCATED_TURNS = "TRUNCATED_TURNS"
    TRUNCATED_TOKENS = "TRUNCATED_TOKENS"
    TRUNCATED_TIME = "TRUNCATED_TIME"
    TRUNCATED_BUDGET = "TRUNCATED_BUDGET"
    """A search that answers ran out of its counted budget."""
    ERROR_ENV = "ERROR_ENV"
    ERROR_TOOL_INFRA = "ERROR_TOOL_INFRA"
    ERROR_POLICY = "ERROR_POLICY"
    ERROR_PARTY = "ERROR_PARTY"
    ERROR_ABORTED = "ERROR_ABORTED"
    """The collector gave the episode up (straggler, shutdown), or a search whose budget for the group was spent."""

    @property
    def is_truncated(self) -> bool:
        """True where a budget, not the env, ended the episode."""
        return self.name.startswith("TRUNCATED_")

    @property
    def is_error(self) -> bool:
        """True where infrastructure failed: the reward is invalid, not 0."""
        return self.name.startswith("ERROR_")
