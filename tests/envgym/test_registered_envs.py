"""Every registered environment through Gymnasium's own ways of making and running one."""

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import envgym
from envgym.errors import InvalidInput
from tests.support.lanes import env_params


@pytest.fixture(params=env_params(envgym.list_ids()))
def env_id(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    try:
        envgym.make(name).close()
    except InvalidInput as error:
        pytest.skip(str(error))
    return name


def test_gymnasium_makes_it_and_its_checkers_say_nothing(env_id: str) -> None:
    env = gymnasium.make(f"envgym:{env_id}", disable_env_checker=False)
    first, _ = env.reset(seed=3)
    assert first == envgym.make(env_id).reset(seed=3).observation
    env.step("hello")
    check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("is_shared", [True, False])
def test_vector_envs_of_both_kinds_agree(env_id: str, is_shared: bool) -> None:
    makers = [lambda: envgym.make(env_id)] * 2
    sync, parallel = SyncVectorEnv(makers), AsyncVectorEnv(makers, shared_memory=is_shared)
    try:
        assert sync.reset(seed=[5, 6])[0] == parallel.reset(seed=[5, 6])[0]
        for actions in (("hello", "42"), ("7", ""), ("a", "b")):
            expected, got = sync.step(actions), parallel.step(actions)
            assert expected[0] == got[0]
            for before, now in zip(expected[1:4], got[1:4], strict=True):
                assert before.tolist() == now.tolist()
    finally:
        parallel.close()
        sync.close()
