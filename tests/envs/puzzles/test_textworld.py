"""`puzzles/textworld-v0` with the real simulator: the package's games, seeds and scores, forks, lost machines."""

import gc
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context

import pytest

import envgym
from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.tasks import Split
from envgym.core.turns import Ending, Invalid, Scored
from envgym.envs.puzzles import _java_games, textworld
from envgym.envs.puzzles import _textworld_simulator as simulator
from envgym.envs.puzzles._java_games import PROGRAM, GameReplayDiffers
from envgym.envs.puzzles._textworld_simulator import (
    TextWorldGame,
    TextWorldMachine,
    TextWorldPool,
    content_hash,
    gold_actions,
)
from envgym.envs.puzzles.textworld import (
    FIRST_SEED,
    GAMES,
    NUM_SEEDS,
    PARAMETERS,
    TextWorld,
    TextWorldTasks,
    variation_of,
)
from envgym.errors import InvalidInput, UnknownName
from tests.envs.episodes import conformance

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        find_spec("textworld_express") is None or shutil.which(PROGRAM) is None,
        reason="no textworld-express or no Java (pip install 'envgym[textworld]'; Debian: apt install "
        "default-jre-headless)",
    ),
]


TestTextWorld = conformance("puzzles/textworld-v0", num_tasks=9)


@pytest.fixture
def own_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextWorldPool]:
    """Let envs use a machine that no other test does."""
    own = TextWorldPool(1)
    monkeypatch.setattr(textworld, "shared_games", lambda: own)
    monkeypatch.setattr(simulator, "shared_games", lambda: own)
    yield own
    own.close()


@pytest.fixture(scope="module")
def machine() -> Iterator[TextWorldMachine]:
    """Start a machine beside those of the envs."""
    started = TextWorldMachine()
    yield started
    started.close()


def begun(games: str = "coin", **options: object) -> TextWorld:
    env = envgym.make("puzzles/textworld-v0", games=games, **options).unwrapped
    assert isinstance(env, TextWorld)
    env.reset(seed=0, options={"split": "train", "index": 0})
    return env


# ---- games, seeds and rewards -------------------------------------------------------------------------------------


def test_games_seeds_and_parameters_are_the_packages(machine: TextWorldMachine) -> None:
    java = machine.packages.textworldexpress.runtime.PythonInterface()
    assert {variation_of(game, "train", 0).game for game in GAMES} == set(java.getGameNames())
    for fold, seeds in (("train", java.getSeedsTrain()), ("dev", java.getSeedsDev()), ("test", java.getSeedsTest())):
        assert list(seeds) == list(range(FIRST_SEED[fold], FIRST_SEED[fold] + NUM_SEEDS))
    for game, limits in PARAMETERS.items():
        variation = variation_of(game, "train", 3)
        assert not java.load(variation.game, "memorization=1" if "memorization" in limits else "")
        java.generateNewGameJSON(3, "train", False)
        properties = json.loads(java.getGenerationPropertiesJSON())
        defaults = {name: default for name, (_, _, default) in limits.items() if name != "memorization"}
        assert properties.items() >= defaults.items()


def test_splits_are_the_packages_sets_and_begin_with_each_game() -> None:
    env = TextWorld()
    assert [env.tasks.size(split) for split in (Split.TRAIN, Split.TEST)] == [9000, 9000]
    assert [env.tasks.task(Split.TEST, index).metadata["game"] for index in range(9)] == list(GAMES)
    assert env.tasks.task(Split.TEST, 10).payload["seed"] == 20_001
    assert TextWorld(test_split="dev").tasks.task(Split.TEST, 0).payload["seed"] == 10_000


@pytest.mark.parametrize("game", GAMES)
def test_games_of_train_are_not_in_the_other_sets(game: str) -> None:
    hashes = {
        fold: {content_hash(variation_of(game, fold, first + number)) for number in range(150)}
        for fold, first in FIRST_SEED.items()
    }
    assert not hashes["train"] & (hashes["test"] | hashes["dev"])
    assert len(hashes["test"]) > 140


def test_parameters_with_few_games_leave_those_of_the_test_split_out_of_train() -> None:
    tasks = TextWorld(games=("coin", "sorting"), parameters={"numLocations": 5}).tasks
    assert isinstance(tasks, TextWorldTasks)
    left_out = set(range(NUM_SEEDS)) - {row.seed for kind, row in tasks._variations(Split.TRAIN) if kind == "coin"}
    assert len(left_out) == 43
    held_out = textworld._hashes("coin", "test", tasks.parameters)
    assert all(content_hash(variation_of("coin", "train", seed, tasks.parameters)) in held_out for seed in left_out)
    assert tasks.size(Split.TRAIN) == 2 * NUM_SEEDS - 43
    with pytest.raises(InvalidInput, match="games that are not in the test split"):
        TextWorld(games="coin", parameters={"numLocations": 2}).tasks.size(Split.TRAIN)


@pytest.mark.parametrize("game", GAMES)
def test_solution_of_the_package_is_paid_in_full(game: str) -> None:
    env = envgym.make("puzzles/textworld-v0", games=game)
    for index in range(5):
        task = env.unwrapped.tasks.task(Split.TEST, index)
        episode = play(env, oracle_of(env), seed=0, task=task, max_turns=100)
        assert episode.reward == pytest.approx(1.0)
        assert episode.ending is Ending.TERMINATED
        actions = gold_actions(env.unwrapped.state.variation)
        assert episode.actions == actions


@pytest.mark.parametrize("game", GAMES)
def test_texts_and_scores_are_those_of_the_packages_interface(game: str, machine: TextWorldMachine) -> None:
    env = begun(game)
    variation = env.state.variation
    java = machine.packages.textworldexpress.runtime.PythonInterface()
    java.load(variation.game, variation.parameters)
    first = java.generateNewGameJSON(variation.seed, variation.fold, False)
    assert env._last == f"{java.getTaskDescription().strip()}\n\n{json.loads(first)['observation'].strip()}"
    total = 0.0
    for action in ("dance", *gold_actions(variation)):
        reply = json.loads(java.stepJSON(action))
        total += env.step(action).reward
        assert env.state.steps[-1].observation == reply["observation"]
        assert total == pytest.approx(reply["score"])
    assert reply["tasksuccess"]
    assert env._is_over


def test_lost_game_pays_nothing_in_all() -> None:
    env = begun("sorting")
    gold = gold_actions(env.state.variation)
    total = sum(env.step(action).reward for action in gold[:2])
    assert total == pytest.approx(0.25)
    env.step(gold[6])
    result = env.step(gold[7])
    reward = result.info["envgym"].reward
    assert isinstance(reward, Scored)
    assert (result.terminated, reward.components["failed"]) == (True, 1.0)
    assert total + reward.value == pytest.approx(0.0)
    assert result.observation.endswith("The game is lost.")


def test_reward_solved_pays_only_the_end() -> None:
    env = begun("mapreader", reward="solved")
    paid = []
    while not env._is_over:
        paid.append(env.step(env.oracle()).reward)
    assert paid == [0.0] * (len(paid) - 1) + [1.0]


def test_listed_actions_can_be_done() -> None:
    env = begun(admissible=True)
    listed = env._last.rpartition("\nYou can: ")[2].rstrip(".").split(", ")
    assert "look around" in listed
    for action in listed[:5]:
        assert "Unknown action" not in env.step(action).observation


@pytest.mark.parametrize("text", ["", "   \n", "x" * 201, "move north " * 50])
def test_what_is_no_action_is_not_played(text: str) -> None:
    env = begun()
    assert env.step(text).observation == textworld._HINT
    assert env.state.steps == ()


def test_last_line_is_the_action() -> None:
    env = begun()
    env.step("I look.\n\n> look around\n")
    assert env.state.steps[-1].action == "look around"


def test_unknown_values_are_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean coin"):
        TextWorld(games="coins")
    with pytest.raises(UnknownName, match="numLocations"):
        TextWorld(games="coin", parameters={"numLocation": 3})
    with pytest.raises(InvalidInput, match="numLocations must be a whole number from 1 to 11, got 12"):
        TextWorld(games="coin", parameters={"numLocations": 12})
    crowded = TextWorld(games="twc", parameters={"numLocations": 1, "numItemsToPutAway": 10})
    with pytest.raises(InvalidInput, match="4 or fewer"):
        crowded.tasks.task(Split.TEST, 0)


def test_what_is_not_installed_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: None)
    with pytest.raises(InvalidInput, match=r"Java must be installed.*apt install default-jre-headless"):
        TextWorld()
    monkeypatch.setattr(_java_games, "find_spec", lambda package: None)
    with pytest.raises(InvalidInput, match=r"textworld_express must be installed.*pip install 'envgym\[textworld\]'"):
        TextWorld()


# ---- exactness ----------------------------------------------------------------------------------------------------


def test_games_and_solutions_are_the_same_in_another_machine_and_beside_other_games() -> None:
    variations = [variation_of(game, "test", 20_000 + number) for game in GAMES for number in range(3)]
    traces = []
    for order in (variations, variations[::-1]):
        machine = TextWorldMachine()
        games = {variation: TextWorldGame(machine, variation, with_gold=True) for variation in order}
        gold = {variation: games[variation].gold() for variation in order}
        steps = {variation: list[object]() for variation in order}
        for turn in range(30):
            for variation in order:
                done = games[variation].step(gold[variation][turn % len(gold[variation])])
                steps[variation].append((done, games[variation].admissible()))
        traces.append((gold, steps))
        machine.close()
    assert traces[0] == traces[1]


@pytest.mark.parametrize("game", GAMES)
def test_two_games_of_one_seed_share_nothing(game: str, machine: TextWorldMachine) -> None:
    variation = variation_of(game, "train", 4)
    gold = TextWorldGame(machine, variation, with_gold=True).gold()
    first, second = (TextWorldGame(machine, variation) for _ in range(2))
    steps = [first.step(action) for action in gold]
    assert steps[-1].is_solved
    assert [second.step(action) for action in gold] == steps


def test_walks_that_come_back_are_no_part_of_the_solution(own_pool: TextWorldPool) -> None:
    variation = variation_of("cookingworld", "train", 0)
    whole = TextWorldGame(own_pool.machine(), variation, with_gold=True).gold()
    short = gold_actions(variation)
    assert (len(whole), len(short)) == (46, 33)
    done = [action for action in whole if not action.startswith(("move", "look"))]
    assert [action for action in short if not action.startswith("move")] == done


def test_fork_plays_again_what_was_played(own_pool: TextWorldPool) -> None:
    env = begun()
    for _ in range(5):
        env.step(env.oracle())
    fork = env.fork()
    assert fork.step("look around").observation == env.step("look around").observation
    env.step("inventory")
    own_pool._games.clear()
    assert fork.step("inventory").info["envgym"].ending is None
    assert env.state.steps[-1] == fork.state.steps[-1]


def test_games_that_are_kept_are_bounded(own_pool: TextWorldPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextWorldPool, "max_games", 3)
    envs = [begun("twc") for _ in range(5)]
    for number, env in enumerate(envs):
        env.step("look around")
        env.step(f"dance {number}")
    assert (len(own_pool._games), own_pool._machines[0].num_games) == (3, 3)
    assert envs[0].step("look around").info["envgym"].ending is None


def test_step_that_differs_when_it_is_played_again_is_a_failure(own_pool: TextWorldPool) -> None:
    env = begun()
    env.step("look around")
    steps = (replace(env.state.steps[0], observation="elsewhere"),)
    own_pool._games.clear()
    with pytest.raises(GameReplayDiffers, match="a step that is played again must be"):
        own_pool.step(env.state.variation, steps, "look around")


# ---- lost machines ------------------------------------------------------------------------------------------------


def test_machine_that_ends_makes_the_reward_invalid(own_pool: TextWorldPool) -> None:
    env = begun()
    own_pool._machines[0].process.kill()
    result = env.step("look around")
    reward = result.info["envgym"].reward
    assert isinstance(reward, Invalid)
    assert (result.truncated, reward.cause) == (True, Ending.ERROR_ENV)
    env.reset(seed=0, options={"split": "train", "index": 0})
    assert env.step("look around").reward == 0.0


def test_forked_child_leaves_the_machine_to_its_parent(own_pool: TextWorldPool) -> None:
    env, twin = begun(), begun()
    for _ in range(3):
        env.step(env.oracle())
        twin.step(twin.oracle())
    context, machine = get_context("fork"), own_pool._machines[0]
    said = context.Queue()
    solution = gold_actions(env.state.variation)

    def play() -> None:
        gc.collect()  # of the parent's games, which a child has no use for
        said.put((machine.is_lost, len(own_pool._machines), env.step(solution[3]).observation))

    child = context.Process(target=play)
    child.start()
    in_child = said.get(timeout=300)
    child.join()
    assert in_child == (True, 0, twin.step(solution[3]).observation)
    assert (child.exitcode, machine.is_lost, own_pool._machines) == (0, False, [machine])
    assert env.step(solution[3]).observation == in_child[2]
    again = begun("cookingworld")
    assert again.step(again.oracle()).info["envgym"].ending is None
