"""The section `agent.program`: an agent program that calls the policy, in place of the agent loop."""

from enum import StrEnum
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from envgym.config.settings import Settings
from envgym.errors import sentence

POLICY_MODEL: Final = "policy"
"""Name of the policy as a model."""


class RewardSource(StrEnum):
    """Where the reward of a program's episode comes from."""

    ENV = "env"
    """The environment: the program's answer is its action, and calls of its tools are too."""
    RESULT = "result"
    """The result of the program."""
    POSTED = "posted"
    """A reward that the program posts while it runs."""


class AuxiliarySettings(Settings):
    """An endpoint whose model answers calls of a program, and is not trained: a judge, a simulated user."""

    base_url: str = Field(pattern="^https?://.")
    """Up to and with the version, such as `http://localhost:8000/v1`."""
    model: str | None = None
    """What the endpoint calls its model; null: as the program does."""
    api_key_env: str | None = None
    """Environment variable that holds the key; null: no key is sent."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for one answer."""


class ProgramSettings(Settings):
    """An agent program that plays the episodes; its calls of the model are answered by the policy."""

    run: str | tuple[str, ...] = Field(min_length=1)
    """The program: `file.py:function`, `module:function`, or a command as a list of words."""
    dialects: tuple[Literal["chat", "responses", "messages"], ...] = Field(
        default=("chat", "responses", "messages"), min_length=1
    )
    """Wire formats in which the program may call the model: `chat` (OpenAI chat completions), `responses` (OpenAI
    Responses) and `messages` (Anthropic)."""
    turns: int = Field(default=64, ge=1)
    """Most calls of one episode that the policy answers. A later call gets a short text without tool calls."""
    seconds: float = Field(default=600.0, gt=0)
    """Time limit of the program, in seconds."""
    reward: RewardSource = RewardSource.ENV
    """Source of the reward: `env`, `result` (what the program returns) or `posted`. Without a reward the episode is
    invalid."""
    env_tools: tuple[Literal["mcp", "call"], ...] = ("mcp", "call")
    """Ways in which the program may call the tools of the environment: `mcp` (an MCP server at `task.mcp_url`) and
    `call` (the function `task.call`). None: it is not offered these tools."""
    on_crash: Literal["invalid"] | float = Field(default="invalid", allow_inf_nan=False)
    """Reward of an episode whose program crashed; `invalid`: the episode does not train. A policy can learn to crash
    its program where that pays more than going on."""
    unsupported: Literal["ignore", "refuse"] = "ignore"
    """What happens to a call with an option that has no effect, such as `response_format`: it is answered and counted,
    or refused."""
    thinking_match: Literal["ignore", "compare"] = "ignore"
    """Whether thinking that the program sends back must equal the sampled thinking for a conversation to go on."""
    auxiliary: dict[str, AuxiliarySettings] = Field(default_factory=dict)
    """Other models of the program, by the name in its requests. Their calls are passed on to an endpoint, counted as
    cost, and never trained. Calls of every other name are answered by the policy."""

    @model_validator(mode="after")
    def _keep_the_policy(self) -> Self:
        for name in {"", POLICY_MODEL} & self.auxiliary.keys():
            do = f"rename it: {POLICY_MODEL} is the model that is trained"
            must = f"not be empty or {POLICY_MODEL}"
            raise ValueError(sentence("name of an auxiliary model", must, name, where="agent.program.auxiliary", do=do))
        return self
