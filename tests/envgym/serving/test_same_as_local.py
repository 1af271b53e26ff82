"""Every registered environment that can be made here is the same on a server: what it shows, and what it says."""

from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

import envgym
from envgym import Action, Env, Reply, Split, Task
from envgym.conformance.env_under_test import ObservedEpisode, first_difference
from envgym.env import NoOracle
from envgym.errors import EnvgymError
from envgym.serving.fields import FACTS
from tests.support.env_server import SecretTasks, make, running_server
from tests.support.lanes import env_params


class RuledByTask(Env[None]):
    """Each episode has a system prompt, a reward range and a number of turns of its own."""

    tasks = SecretTasks()

    def begin(self, task: Task) -> str:
        number = int(task.id[-1])
        self.system_prompt = f"Rules of {task.id}."
        self.max_turns, self.chance_score, self.reward_range = number + 1, number / 4, (0.0, number + 1.0)
        self.optimum = number + 0.5
        self.state = None
        return task.prompt

    def respond(self, action: Action) -> Reply:
        return Reply(observation=self.system_prompt, reward=1.0)


RULED = f"{__name__}:RuledByTask"


@pytest.fixture(params=[*env_params(envgym.list_ids()), RULED])
def env_id(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    try:
        with closing(envgym.make(name)) as env:
            env.reset(seed=0, options={"split": splits_of(env.unwrapped)[0].value})
    except EnvgymError as error:
        pytest.skip(str(error))
    return name


def splits_of(env: Env[None]) -> list[Split]:
    return [split for split in Split if env.tasks.size(split) != 0]


def actions(env: Env[None]) -> Iterator[str]:
    yield "hello"
    with suppress(NoOracle, EnvgymError):
        yield env.oracle()


def beginning(env: Env[None], seed: int, split: Split) -> tuple[ObservedEpisode, dict[str, object]]:
    """Begin an episode, play up to two turns, and return them with what the env says of itself."""
    first = env.reset(seed=seed, options={"split": split.value}).info["envgym"]
    turns = []
    for action in actions(env):
        turns.append(env.step(action).info["envgym"])
        if turns[-1].ending is not None:
            break
    return ObservedEpisode(first=first, turns=tuple(turns)), {name: getattr(env, name) for name in FACTS}


def test_an_env_on_a_server_begins_as_the_local_one(env_id: str) -> None:
    with running_server(env_id) as server, closing(envgym.make(env_id)) as local, closing(make(server, env_id)) as far:
        for seed, split in enumerate([*splits_of(local.unwrapped), splits_of(local.unwrapped)[0]]):
            (here, facts), (there, far_facts) = beginning(local.unwrapped, seed, split), beginning(far, seed, split)
            assert first_difference(here, there) is None
            assert there.first.system_prompt == here.first.system_prompt
            assert there.first.tools == here.first.tools
            assert there.first.plain == here.first.plain
            assert far_facts == {**facts, "reward_range": tuple(facts["reward_range"])}  # type: ignore[arg-type]
            with closing(far.fork()) as twin:
                assert {name: getattr(twin, name) for name in FACTS} == far_facts
