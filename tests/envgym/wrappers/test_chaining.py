"""A wrong end is followed by another attempt, of which the best pays; tasks follow one another in one episode."""

import pytest

from envgym.core.tasks import Split
from envgym.core.turns import Ending, Invalid
from envgym.env import Env, NoOracle
from envgym.errors import InvalidInput
from envgym.records import StepRecord, StepResult
from envgym.wrappers import DependentHorizon, Faults, Horizon, TryAgain
from envgym.wrappers.chaining import depend
from envgym.wrappers.faults import FaultRates
from tests.support.toys import Counter, Sums

CALL = '<tool_call>{"name": "add", "arguments": {"amount": 5}}</tool_call>'


def record_of(result: StepResult) -> StepRecord:
    record: StepRecord = result.info["envgym"]
    return record


def started(
    *, attempts: int = 3, discount: float = 0.5, repeat_penalty: float = 0.0, show_task: bool = True
) -> TryAgain:
    env = TryAgain(Sums(), attempts, discount=discount, repeat_penalty=repeat_penalty, show_task=show_task)
    env.reset(seed=1)
    return env


def test_a_wrong_answer_is_followed_by_the_same_task_and_a_right_one_is_worth_less() -> None:
    env = started()
    task, asked = env.task, str(env.render())
    first = env.step("no")
    assert first.observation == f"Wrong.\nThat is not right. Try again. Attempts left: 2.\n{asked}"
    assert (first.reward, first.terminated, env.task) == (0.0, False, task)
    second = env.step(env.oracle())
    assert (second.observation, second.reward, second.terminated) == ("Right.", 0.5, True)
    assert [record_of(result).turn for result in (first, second)] == [0, 1]


def test_a_right_answer_ends_the_episode_at_once_with_all_it_earns() -> None:
    env = started()
    assert env.step(env.oracle())[1:3] == (1.0, True)


def test_the_last_wrong_answer_ends_the_episode() -> None:
    env = started(attempts=2, show_task=False)
    assert env.step("no").observation == "Wrong.\nThat is not right. Try again. Attempts left: 1."
    last = env.step("no")
    assert (last.observation, last.reward, record_of(last).ending) == ("Wrong.", 0.0, Ending.TERMINATED)


def test_saying_the_same_again_is_told_and_costs_its_share() -> None:
    env = started(attempts=4, discount=1.0, repeat_penalty=0.25)
    env.step("no")
    assert "You said that before. Try again. Attempts left: 2." in env.step("no").observation
    env.step("nope")
    assert env.step(env.oracle()).reward == 0.75  # one repetition of three


def test_attempts_of_several_turns_begin_anew_and_turns_count_on() -> None:
    env = TryAgain(Counter(max_turns=None), 2)
    env.reset(seed=0)
    env.step(CALL)
    again = env.step("DONE")
    assert again.observation.endswith("at a time.")
    turns = 2
    while not (result := env.step(env.oracle())).terminated:
        turns += 1
    assert (result.reward, record_of(result).turn) == (0.5, turns)


def test_the_best_attempt_is_paid_and_no_more() -> None:
    class Partly(Sums):
        """Pays what is said."""

        def respond(self, action):  # type: ignore[no-untyped-def]  # as in Sums
            reply = super().respond(action)
            return type(reply)(observation="", reward=float(action.content), terminated=True)

    env = TryAgain(Partly(), 4, discount=0.5)
    env.reset(seed=0)
    # 0.3, then 0.5 x 0.8 = 0.4, then 0.25 x 0.9 < 0.4, then 0.125: the episode earns 0.4.
    assert [env.step(text).reward for text in ("0.3", "0.8", "0.9", "1")] == pytest.approx([0.3, 0.1, 0.0, 0.0])


def test_truncated_and_invalid_attempts_are_the_last() -> None:
    env = TryAgain(Counter(max_turns=1), 3)
    env.reset(seed=0)
    assert record_of(env.step("x")).ending is Ending.TRUNCATED_TURNS
    broken = TryAgain(Faults(Counter(), FaultRates(infra_failure=1.0), seed=0), 3)
    broken.reset(seed=0)
    record = record_of(broken.step("x"))
    assert (record.ending, isinstance(record.reward, Invalid)) == (Ending.ERROR_TOOL_INFRA, True)


def test_a_fork_has_its_own_attempts() -> None:
    env = started(attempts=2)
    twin = env.fork()
    env.step("no")
    assert twin.step(twin.oracle()).reward == 1.0
    assert env.step(env.oracle()).reward == 0.5


def test_every_episode_begins_with_all_attempts() -> None:
    env = started(attempts=2)
    env.step("no")
    env.reset(seed=2)
    assert env.step(env.oracle()).reward == 1.0


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="attempts must be at least 1, got 0"):
        TryAgain(Sums(), 0)
    with pytest.raises(InvalidInput, match=r"discount must lie in \[0, 1\], got 2"):
        TryAgain(Sums(), discount=2)


def test_the_next_task_follows_the_end_of_one_and_each_pays_its_part() -> None:
    env = Horizon(Sums(), 4)
    env.reset(seed=1)
    first = env.task
    results = [env.step(env.oracle() if turn != 1 else "no") for turn in range(4)]
    assert results[0].observation.startswith("Right.\nTask 2 of 4:\nWhat is ")
    assert [result.reward for result in results] == [0.25, 0.0, 0.25, 0.25]
    assert [result.terminated for result in results] == [False, False, False, True]
    assert [record_of(result).turn for result in results] == [0, 1, 2, 3]
    assert env.task == first


def test_all_or_nothing_pays_at_the_end_alone() -> None:
    for wrong, expected in ((None, [0.0, 0.0, 1.0]), (1, [0.0, 0.0, 0.0])):
        env = Horizon(Sums(), 3, all_or_nothing=True)
        env.reset(seed=1)
        assert [env.step("no" if turn == wrong else env.oracle()).reward for turn in range(3)] == expected


def test_tasks_after_the_same_first_are_the_same_whatever_the_seed() -> None:
    env = Horizon(Sums(), 3)
    chains = []
    for seed in (1, 2):
        env.reset(seed=seed, options={"split": "test", "index": 5})
        chains.append([str(env.step("no").observation) for _ in range(3)])
    assert chains[0] == chains[1]
    env.reset(seed=1, options={"split": "test", "index": 6})
    assert [str(env.step("no").observation) for _ in range(3)] != chains[0]


def test_all_tasks_are_of_the_split_of_the_first() -> None:
    env = Horizon(Sums(), 8)
    env.reset(seed=1, options={"split": "test"})
    for _ in range(7):
        env.step("no")
        assert env.unwrapped.task.split is Split.TEST


def test_one_task_is_the_env_itself() -> None:
    env, plain = Horizon(Sums(), 1), Sums()
    assert env.reset(seed=3) == plain.reset(seed=3)
    assert env.step("no")[:4] == plain.step("no")[:4]


def test_truncated_and_invalid_tasks_are_the_last() -> None:
    env = Horizon(Counter(max_turns=1), 3)
    env.reset(seed=0)
    assert record_of(env.step("x")).ending is Ending.TRUNCATED_TURNS
    broken = Horizon(Faults(Counter(), FaultRates(infra_failure=1.0), seed=0), 3)
    broken.reset(seed=0)
    record = record_of(broken.step("x"))
    assert (record.ending, isinstance(record.reward, Invalid)) == (Ending.ERROR_TOOL_INFRA, True)


def test_a_fork_goes_on_with_the_same_tasks() -> None:
    env = Horizon(Sums(), 3)
    env.reset(seed=1)
    env.step("no")
    twin = env.fork()
    assert env.step("no")[:4] == twin.step("no")[:4]
    assert env.step(env.oracle()).reward == pytest.approx(1 / 3)
    assert twin.step("no").reward == 0.0


def test_several_attempts_for_each_of_several_tasks() -> None:
    env = Horizon(TryAgain(Sums(), 2), 2)
    env.reset(seed=1)
    rewards = [env.step("no").reward, env.step(env.oracle()).reward, env.step(env.oracle()).reward]
    assert rewards == [0.0, 0.25, 0.5]  # half of 0.5 at the second attempt, half of 1


def test_a_whole_chain_can_be_tried_again() -> None:
    env = TryAgain(Horizon(Sums(), 2), 2, discount=0.5)
    first = str(env.reset(seed=1).observation)
    env.step("no")
    assert env.step("no").observation.endswith(first)
    # The second time both are right, each worth half of a half.
    assert [env.step(env.oracle()).reward for _ in range(2)] == [0.25, 0.25]


def test_number_of_tasks_must_be_positive() -> None:
    with pytest.raises(InvalidInput, match="num_tasks must be at least 1, got 0"):
        Horizon(Sums(), 0)


def test_published_problem_that_depends_on_the_one_before() -> None:
    text = depend("Add 7 to x.", 12, number=2)
    assert text == (
        "Using the result [answer1] from the previous calculation, [variable2] = [answer1] - 5. Add [variable2] to x."
    )
    assert depend("Is 9 odd?", 2, number=3).endswith("[variable3] = [answer2] + 7. Is [variable3] odd?")


@pytest.mark.parametrize("text", ["Add 1.5 to x.", "Add 0 to x.", "Add x to y.", "Pay 1,000."])
def test_text_without_a_positive_integer_stays(text: str) -> None:
    assert depend(text, 12, number=2) == text


def test_integer_at_the_end_of_a_sentence_counts() -> None:
    assert "Double [variable2]." in depend("Of 0.5 and 1.25: Double 7.", 7, number=2)


def test_chain_depends_on_right_answers_and_pays_as_before() -> None:
    env, plain = DependentHorizon(Sums(), 3, all_or_nothing=True), Horizon(Sums(), 3, all_or_nothing=True)
    env.reset(seed=1)
    plain.reset(seed=1)
    for turn in range(3):
        answer = env.oracle()
        assert answer == plain.oracle()
        shown, told = env.step(answer), plain.step(answer)
        assert (shown.reward, shown.terminated) == (told.reward, told.terminated) == (float(turn == 2), turn == 2)
        if turn < 2:
            question = told.observation.splitlines()[-1]
            assert shown.observation.splitlines()[-1] == depend(question, int(answer), number=turn + 2)
            assert f"[answer{turn + 1}]" in shown.observation


def test_env_without_an_oracle_cannot_make_dependent_chains() -> None:
    class Silent(Sums):
        oracle = Env.oracle

    with pytest.raises(NoOracle):
        DependentHorizon(Silent(), 2).reset(seed=1)
