"""Environments of Gymnasium, as their authors write them; importing this module registers them."""

import math
from typing import Any

import gymnasium
from gymnasium import spaces

_HERE = f"{__name__}:"


class Echo(gymnasium.Env[Any, Any]):
    """Repeats what is said, until a word ends it; other words break it."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012  # as Gymnasium's authors write it

    def __init__(self, render_mode: str | None = None, greeting: str = "Say it") -> None:
        self.render_mode, self.greeting = render_mode, greeting
        self.observation_space: Any = spaces.Text(200)
        self.action_space: Any = spaces.Text(20)
        self.turns = 0
        self.is_closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.turns = 0
        return f"{self.greeting} {self.np_random.integers(1000)}.", {"answer": "secret"}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.turns += 1
        rewards = {"nan": math.nan, "none": None, "half": 0.5, "text": "1"}
        if action == "break":
            raise ZeroDivisionError("broken")
        shown = 7 if action == "number" else f"turn {self.turns}: {action}"
        return shown, rewards.get(action, 1.0), action == "end", action == "cut", {"answer": "secret"}

    def render(self) -> Any:
        return f"\x1b[41m{self.turns}\x1b[0m turns"

    def close(self) -> None:
        self.is_closed = True


class Parts(Echo):
    """Shows its text as a part of a mapping."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observation_space = spaces.Dict({"view": spaces.Text(200), "lives": spaces.Discrete(4)})

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        text, info = super().reset(**options)
        return {"view": text, "lives": 3}, info


class Doors(Echo):
    """Three doors, counted from 1, of which the second pays."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.action_space = spaces.Discrete(3, start=1)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return f"door {action}", float(action == 2), True, False, {}


class Uncopied(Echo):
    """Cannot be copied."""

    def __deepcopy__(self, memo: Any) -> "Uncopied":
        raise TypeError("it holds a socket")


def _register() -> None:
    for cls, limit in ((Echo, None), (Parts, None), (Doors, 3), (Uncopied, None)):
        gymnasium.register(id=f"Test{cls.__name__}-v0", entry_point=f"{_HERE}{cls.__name__}", max_episode_steps=limit)
    gymnasium.register(id="TestShortEcho-v0", entry_point=f"{_HERE}Echo", max_episode_steps=2)


_register()
