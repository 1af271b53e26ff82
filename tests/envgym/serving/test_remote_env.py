"""An env on a server is the env itself, but for what tells answers."""

import pickle
from collections.abc import Iterator
from contextlib import closing

import pytest

import envgym
from envgym.conformance import CheckStatus
from envgym.conformance.env_under_test import EnvUnderTest, ObservedEpisode, first_difference, oracle_of, play
from envgym.conformance.suite import CHECKS, run_check
from envgym.core.serialize import task_from_json, task_to_json
from envgym.core.tasks import HiddenPayload, Split, Task
from envgym.core.turns import Ending, Invalid
from envgym.env import Env, NoOracle
from envgym.errors import EnvFailure, ForkUnsupported, InvalidInput, ResetNeeded, UnknownName
from envgym.records import StepRecord
from envgym.serving.remote_env import RemoteId, remote_id
from envgym.serving.server import EnvServer
from envgym.serving.templates import ClientRights
from envgym.serving.wire import without_payload
from tests.support.env_server import COUNTER, SLOW_COUNTER, running_server

IDS = ("math/arithmetic-v0", "puzzles/guess_number-v0", COUNTER, SLOW_COUNTER)


@pytest.fixture(scope="module")
def server() -> Iterator[EnvServer]:
    with running_server(*IDS, rights=ClientRights(own_tasks=True)) as server:
        yield server


def make(server: EnvServer, env_id: str, **settings: object) -> Env[None]:
    return envgym.make(f"{server.http.url}/{env_id}", **settings)


@pytest.mark.parametrize("env_id", IDS)
def test_an_episode_is_that_of_the_local_env(server: EnvServer, env_id: str) -> None:
    with closing(envgym.make(env_id)) as local, closing(make(server, env_id)) as remote:
        for seed in range(3):
            here = play(local, oracle_of(local), seed=seed)
            there = play(remote, oracle_of(remote), seed=seed)
            assert first_difference(here, there) is None
            assert [turn.turn for turn in there.turns] == [turn.turn for turn in here.turns]
            assert there.first.tools == here.first.tools
            assert there.first.system_prompt == here.first.system_prompt
            assert there.first.task.id == here.first.task.id
        again = ObservedEpisode(first=local.reset().info["envgym"], turns=())
        assert first_difference(again, ObservedEpisode(first=remote.reset().info["envgym"], turns=())) is None


@pytest.mark.parametrize("env_id", IDS)
def test_the_env_declares_what_the_local_one_does(server: EnvServer, env_id: str) -> None:
    with closing(envgym.make(env_id)) as local, closing(make(server, env_id)) as remote:
        for name in (
            "name",
            "system_prompt",
            "fork_capability",
            "chance_score",
            "optimum",
            "reward_range",
            "max_turns",
        ):
            assert getattr(remote, name) == getattr(local, name)
        assert {name: tool.spec for name, tool in remote.toolset().items()} == {
            name: tool.spec for name, tool in local.toolset().items()
        }
        for split in Split:
            assert remote.tasks.size(split) == local.tasks.size(split)
            for index in (0, 1, 2):
                ours, theirs = local.tasks.task(split, index), remote.tasks.task(split, index)
                assert (ours.id, ours.key, ours.prompt, ours.split) == (
                    theirs.id,
                    theirs.key,
                    theirs.prompt,
                    theirs.split,
                )
                assert dict(theirs.payload) == dict(theirs.metadata) == {}


def test_a_task_starts_the_episode_of_its_payload_wherever_it_came_from(server: EnvServer) -> None:
    with closing(make(server, COUNTER)) as env:
        drawn = env.reset(seed=3).info["envgym"].task
        taken = env.tasks.task(drawn.split, int(drawn.id[-1]))
        own = Task(id="own", prompt="Say 7.", payload={"answer": "seven"}, split=Split.TRAIN)
        saved = task_from_json(task_to_json(taken))
        for task, answer in ((drawn, drawn.id), (taken, drawn.id), (saved, drawn.id), (own, "seven")):
            record = env.reset(seed=0, options={"task": task}).info["envgym"]
            assert record.task == task
            assert env.oracle().replace("-", "/").endswith(answer)
        assert saved == taken == drawn


@pytest.mark.parametrize("env_id", ["math/arithmetic-v0", COUNTER])
def test_metadata_stays_on_the_server_and_is_there_for_the_env(server: EnvServer, env_id: str) -> None:
    with closing(make(server, env_id)) as remote, closing(envgym.make(env_id)) as local:
        drawn = remote.reset(seed=5).info["envgym"].task
        of_same_id = local.reset(seed=5).info["envgym"].task
        assert (drawn.id, dict(drawn.metadata)) == (of_same_id.id, {})
        assert of_same_id.metadata
        for task in (drawn, remote.tasks.task(drawn.split, 1)):
            remote.reset(seed=0, options={"task": task})
            local.reset(seed=0, options={"task": local.tasks.task(task.split, 1) if task is not drawn else of_same_id})
            assert remote.oracle() == local.oracle()


def test_a_drawn_task_gets_the_metadata_of_its_own_wording(server: EnvServer) -> None:
    template = server.templates.get(COUNTER, {})
    one, two = (
        Task(id=id, prompt=id, payload={"answer": "x"}, split=Split.TRAIN, metadata={"shown": id}) for id in ("a", "b")
    )
    template.remember(one)
    template.remember(two)
    assert [template.resolve(task_to_json(without_payload(task))) for task in (one, two)] == [one, two]


def test_a_hidden_payload_is_equal_by_its_key_alone() -> None:
    assert HiddenPayload(key="a", index=1) == HiddenPayload(key="a")
    assert HiddenPayload(key="a") != HiddenPayload(key="b")


def test_a_task_of_another_env_is_refused(server: EnvServer) -> None:
    with closing(make(server, COUNTER)) as env, closing(make(server, "math/arithmetic-v0")) as other:
        with pytest.raises(InvalidInput, match=r"must be one of this environment"):
            env.reset(seed=0, options={"task": other.tasks.task(Split.TRAIN, 0)})
        with pytest.raises(InvalidInput, match=r"task must be one of 3, got 3"):
            env.tasks.task(Split.TRAIN, 3)


def test_forks_go_their_own_ways(server: EnvServer) -> None:
    for env_id in (COUNTER, SLOW_COUNTER):
        with closing(make(server, env_id)) as env:
            env.reset(seed=0)
            env.step("go")
            with closing(env.fork()) as twin, closing(twin.fork()) as other:
                assert [twin.step("go").observation for _ in range(3)] == ["turn 2", "turn 3", "turn 4"]
                assert env.step("end").terminated
                assert other.step("go").observation == "turn 2"


def test_one_pickle_gives_several_envs(server: EnvServer) -> None:
    with closing(make(server, SLOW_COUNTER)) as env:
        env.reset(seed=0)
        env.step("go")
        data = pickle.dumps(env)
        env.step("go")
        for _ in range(2):
            with closing(pickle.loads(data)) as twin:
                assert twin.step("go").observation == "turn 2"


def test_a_failure_is_that_of_the_local_env(server: EnvServer) -> None:
    for env_id in (COUNTER, SLOW_COUNTER):
        records: list[StepRecord] = []
        for env in (envgym.make(env_id), make(server, env_id)):
            with closing(env):
                env.reset(seed=0)
                records.append(env.step("fail").info["envgym"])
        assert records[0] == records[1]
        assert records[1].ending is Ending.ERROR_TOOL_INFRA


def test_errors_have_the_types_of_the_local_env(server: EnvServer) -> None:
    with closing(make(server, "math/arithmetic-v0")) as env:
        with pytest.raises(ResetNeeded):
            env.step("")
        with pytest.raises(ResetNeeded):
            env.fork()
        with pytest.raises(InvalidInput, match=r"reset options must be task alone"):
            env.reset(seed=0, options={"colour": "red"})
    with pytest.raises(UnknownName, match=r"keyword argument must be a known name, got 'levle'"):
        make(server, "math/arithmetic-v0", levle=2)
    with pytest.raises(UnknownName, match=r"environment of this server .* did you mean math/arithmetic-v0\?"):
        make(server, "math/arithmetics-v0")
    with pytest.raises(InvalidInput, match=r"setting kinds of math/arithmetic-v0 must be left to the server"):
        make(server, "math/arithmetic-v0", kinds="os:system")
    with pytest.raises(InvalidInput, match=r"parties must be none for an env on a server"):
        make(server, COUNTER, parties={"user": object()})


def test_the_type_of_an_error_travels() -> None:
    from envgym.serving.wire import SessionLost, error_of, error_to_json

    for kind in (InvalidInput, UnknownName, ForkUnsupported, EnvFailure, SessionLost, NoOracle):
        error = error_of(error_to_json(kind("why")))
        assert type(error) is kind
        assert str(error) == "why"
    assert type(error_of(error_to_json(ValueError("x")))) is EnvFailure


def test_settings_are_those_of_the_env() -> None:
    rights = ClientRights(["max_turns"])
    with running_server(COUNTER, rights=rights) as server, closing(make(server, COUNTER, max_turns=1)) as env:
        assert env.max_turns == 1
        env.reset(seed=0)
        assert env.step("go").info["envgym"].ending is Ending.TRUNCATED_TURNS


def test_an_action_nested_too_deep_is_answered_not_failed(server: EnvServer) -> None:
    from envgym.core.messages import Action, ToolCall

    deep: dict[str, object] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with closing(make(server, COUNTER)) as env:
        env.reset(seed=0)
        action = Action("x", tool_calls=[ToolCall(name="f", arguments=deep)])  # type: ignore[arg-type]  # nested JSON
        record = env.step(action).info["envgym"]
    assert not isinstance(record.reward, Invalid)
    assert "nested too deep" in record.observation


def test_ids_with_addresses_are_read_and_written() -> None:
    urls = ("http://a:1", "http://b:2/")
    assert remote_id(urls, "math/x-v0") == "http://a:1,b:2/math/x-v0"
    assert RemoteId.parse("http://a:1,b:2/my_env.py:Env") == RemoteId(("http://a:1", "http://b:2"), "my_env.py:Env")
    assert RemoteId.parse("math/x-v0") is None
    with pytest.raises(InvalidInput, match=r"servers must be addresses that begin with http://"):
        remote_id(("localhost:1",), "math/x-v0")
    with pytest.raises(InvalidInput, match=r"id must have no address beside servers"):
        remote_id(("http://a:1",), "http://a:1/math/x-v0")


def test_two_servers_share_the_sessions() -> None:
    with running_server(COUNTER) as one, running_server(COUNTER) as two:
        env_id = remote_id((one.http.url, two.http.url), COUNTER)
        envs = [envgym.make(env_id) for _ in range(6)]
        for env in envs:
            env.reset(seed=0)
        assert (len(one.sessions), len(two.sessions)) == (3, 3)
        for env in envs:
            env.close()
        assert (len(one.sessions), len(two.sessions)) == (0, 0)


def test_a_server_that_is_gone_is_passed_over() -> None:
    with running_server(COUNTER) as one:
        with running_server(COUNTER) as two:
            env = envgym.make(remote_id((two.http.url, one.http.url), COUNTER))
        with closing(env):
            assert env.tasks.task(Split.TEST, 2).id == "test/2"
            assert env.reset(seed=0).observation
            assert (len(one.sessions), len(two.sessions)) == (1, 0)


def test_the_conformance_suite_passes(server: EnvServer) -> None:
    quick = ("same_seed_same_episode", "survives_pickle", "fork_agrees", "order_is_enforced", "records_are_consistent")
    for env_id in ("puzzles/guess_number-v0", "math/arithmetic-v0"):
        subject = EnvUnderTest(make=lambda env_id=env_id: make(server, env_id), num_tasks=2)  # type: ignore[misc]
        assert [check for name in quick if (check := run_check(name, subject)).status is not CheckStatus.PASS] == []


@pytest.mark.processes
@pytest.mark.parametrize(
    "env_id",
    [
        "math/arithmetic-v0",
        "puzzles/guess_number-v0",
        "code/sql-v0",
        "search/factbook-v0",
        "tools/office-v0",
        "web/shop-v0",
        pytest.param("web/miniwob-v0", marks=[pytest.mark.web, pytest.mark.timeout(900)]),
    ],
)
def test_an_env_of_each_family_passes_the_whole_suite(env_id: str) -> None:
    with running_server(env_id) as server:
        subject = EnvUnderTest(make=lambda: make(server, env_id), num_tasks=2)
        checks = [run_check(name, subject) for name in CHECKS]
    assert [check for check in checks if check.status is CheckStatus.FAIL] == []
