"""`puzzles/science-v0` with the real simulator: its variations and scores, exact games, forks, lost machines."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

import pytest

import envgym
from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.tasks import Split
from envgym.core.turns import Ending, Invalid, Scored
from envgym.envs.puzzles import _science_simulator as simulator
from envgym.envs.puzzles import science
from envgym.envs.puzzles._java_games import PROGRAM, GameReplayDiffers
from envgym.envs.puzzles._science_simulator import (
    ScienceGame,
    ScienceMachine,
    SciencePool,
    ScienceVariation,
    gold_actions,
)
from envgym.envs.puzzles.science import KINDS, VARIATIONS, Science
from envgym.errors import InvalidInput, UnknownName
from tests.envs.episodes import conformance

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        find_spec("scienceworld") is None or shutil.which(PROGRAM) is None,
        reason="no scienceworld or no Java (pip install 'envgym[science]'; Debian: apt install default-jre-headless)",
    ),
]
QUICK = ("find-plant", "power-component", "lifespan-longest-lived", "use-thermometer")
WANDERING = ScienceVariation("find-animal", 150)


TestScience = conformance(
    "puzzles/science-v0", num_tasks=2, kinds=("find-plant", "lifespan-longest-lived"), max_turns=20
)


@pytest.fixture
def own_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[SciencePool]:
    """Let envs use a machine that no other test does."""
    own = SciencePool(1)
    monkeypatch.setattr(science, "shared_games", lambda: own)
    monkeypatch.setattr(simulator, "shared_games", lambda: own)
    yield own
    own.close()


def begun(kinds: str = "power-component", **options: object) -> Science:
    env = envgym.make("puzzles/science-v0", kinds=kinds, **options).unwrapped
    assert isinstance(env, Science)
    env.reset(seed=0, options={"split": "train", "index": 0})
    return env


def played(machine: ScienceMachine, variation: ScienceVariation, other: ScienceGame | None = None) -> list[object]:
    """Return the steps of the solution, while another game in the machine moves."""
    game, steps = ScienceGame(machine, variation), list[object]()
    for action in ("look around", *gold_actions(variation)[:40]):
        steps.append(game.step(action))
        if other is not None:
            other.step("look around")
    return steps


# ---- tasks and rewards --------------------------------------------------------------------------------------------


def test_variations_and_splits_are_the_simulators() -> None:
    machine = ScienceMachine()
    java, _ = machine.start()
    assert set(java.getTaskNames()) == set(KINDS)
    for kind, (train, dev, test) in VARIATIONS.items():
        java.load(kind, 0, "", False)
        assert list(java.getVariationsTrain()) == list(range(train))
        assert list(java.getVariationsDev()) == list(range(train, train + dev))
        assert list(java.getVariationsTest()) == list(range(train + dev, train + dev + test))
    machine.close()


def test_splits_have_the_sizes_of_the_package_and_begin_with_each_type() -> None:
    env = Science()
    assert [env.tasks.size(split) for split in (Split.TRAIN, Split.TEST)] == [3592, 1819]
    assert Science(test_split="dev").tasks.size(Split.TEST) == 1796
    assert [kind for kind, _ in science._variations(KINDS, 0)[:30]] == list(KINDS)
    numbers = [set(science._variations(KINDS, part)) for part in range(3)]
    assert not numbers[0] & numbers[1]
    assert not (numbers[0] | numbers[1]) & numbers[2]


@pytest.mark.parametrize("kind", ["melt", "chemistry-mix", "find-living-thing", "identify-life-stages-1", *QUICK])
def test_solution_of_the_simulator_is_paid_in_full(kind: str) -> None:
    env = envgym.make("puzzles/science-v0", kinds=kind)
    episode = play(env, oracle_of(env), seed=0, task=env.unwrapped.tasks.task(Split.TEST, 1), max_turns=200)
    assert episode.reward == pytest.approx(1.0)
    assert episode.ending is Ending.TERMINATED


def test_rewards_add_up_to_the_simulators_score() -> None:
    env, total = begun("boil"), 0.0
    for _ in range(15):
        total += env.step(env.oracle()).reward
        assert total == pytest.approx(max(env.state.steps[-1].score, 0) / 100)
    assert 0 < total < 1


def test_task_that_has_failed_pays_nothing_in_all() -> None:
    env = begun("find-plant")
    total = sum(env.step(env.oracle()).reward for _ in range(3))
    result = env.step("focus on agent")
    reward = result.info["envgym"].reward
    assert isinstance(reward, Scored)
    assert (result.terminated, reward.components["failed"]) == (True, 1.0)
    assert total + reward.value == pytest.approx(0.0)
    assert result.observation.endswith("The task has failed.")


def test_reward_solved_pays_only_the_end() -> None:
    env = begun(reward="solved")
    paid = []
    while not env._is_over:
        paid.append(env.step(env.oracle()).reward)
    assert paid == [0.0] * (len(paid) - 1) + [1.0]


def test_listed_actions_can_be_done() -> None:
    env = begun(admissible=True)
    listed = env._last.rpartition("\nYou can: ")[2].rstrip(".").split(", ")
    assert "open door to kitchen" in listed
    assert "No known action" not in env.step(listed[0]).observation


@pytest.mark.parametrize("text", ["", "   \n", "x" * 201, "go to kitchen " * 50])
def test_what_is_no_action_is_not_played(text: str) -> None:
    env = begun()
    assert env.step(text).observation == science._HINT
    assert len(env.state.steps) == 1


def test_last_line_is_the_action() -> None:
    env = begun()
    env.step("I go inside.\n\n> open door to kitchen\n")
    assert env.state.steps[-1].action == "open door to kitchen"


def test_unknown_values_are_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean boil"):
        Science(kinds="boils")
    with pytest.raises(InvalidInput, match="noElectricalAction must be left out"):
        Science(kinds="power-component", simplifications="noElectricalAction")


# ---- exactness ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variation",
    [
        WANDERING,
        ScienceVariation("chemistry-mix-paint-secondary-color", 18),
        ScienceVariation("identify-life-stages-2", 5),
        ScienceVariation("inclined-plane-determine-angle", 84),
        ScienceVariation("power-component", 10),
    ],
)
def test_game_is_the_same_in_another_machine_and_beside_another_game(variation: ScienceVariation) -> None:
    machines = [ScienceMachine() for _ in range(2)]
    alone = played(machines[0], variation)
    assert played(machines[1], variation) == alone
    assert played(machines[1], variation, ScienceGame(machines[1], WANDERING)) == alone
    for machine in machines:
        machine.close()


def test_fork_plays_again_what_was_played(own_pool: SciencePool) -> None:
    env = begun()
    for _ in range(5):
        env.step(env.oracle())
    fork = env.fork()
    assert fork.step("look around").observation == env.step("look around").observation
    assert len(own_pool._games) == 1, "both are at the same place, and one game is kept for it"


def test_games_that_are_kept_are_bounded_and_shared_out(own_pool: SciencePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SciencePool, "max_games", 3)
    envs = [begun("find-plant") for _ in range(5)]
    for number, env in enumerate(envs):
        env.step("look around")
        env.step(f"wait{number % 2 or ''}")
        env.step(f"look at {number}")
    assert (len(own_pool._games), own_pool._machines[0].num_games) == (3, 3)
    env = envs[0]  # its game is gone, and is played again
    assert env.step("look around").info["envgym"].ending is None
    env.step("focus on agent")
    assert own_pool._machines[0].num_games == 2, "the game of an episode that is over is not kept"


def test_step_that_differs_when_it_is_played_again_is_a_failure(own_pool: SciencePool) -> None:
    env = begun()
    env.step("look around")
    first, second = env.state.steps
    steps = (replace(first, observation="elsewhere"), second)
    own_pool._games.clear()
    with pytest.raises(GameReplayDiffers, match="a step that is played again must be"):
        own_pool.step(env.state.variation, steps, "look around")


# ---- lost machines ------------------------------------------------------------------------------------------------


def test_machine_that_ends_makes_the_reward_invalid(own_pool: SciencePool) -> None:
    env = begun()
    own_pool._machines[0].process.kill()
    result = env.step("look around")
    reward = result.info["envgym"].reward
    assert isinstance(reward, Invalid)
    assert (result.truncated, reward.cause) == (True, Ending.ERROR_ENV)
    env.reset(seed=0, options={"split": "train", "index": 0})
    assert env.step("look around").reward >= 0.0


def test_machine_answers_only_who_has_its_token() -> None:
    from py4j.java_gateway import GatewayParameters, JavaGateway
    from py4j.protocol import Py4JError

    machine = ScienceMachine()
    port = machine._gateway.gateway_parameters.port
    stranger = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    with pytest.raises(Py4JError):
        stranger.jvm.java.lang.System.getProperty("user.dir")
    stranger.close()
    machine.close()
