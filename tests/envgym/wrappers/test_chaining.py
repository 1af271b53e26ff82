"""A wrong end is followed by another attempt, of which the best pays; tasks follow one another in one episode."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import envgym
from envgym import Action, Ending, Env, Invalid, Reply, Split, StepResult, Task
from envgym.core.tasks import TaskSource
from envgym.env import NoOracle
from envgym.errors import InvalidInput
from envgym.parsing import tool_call_action
from envgym.records import StepRecord
from envgym.wrappers import DependentHorizon, Faults, Horizon, TryAgain
from envgym.wrappers.chaining import REPEATED, depend, last_message, read_integer
from envgym.wrappers.faults import FaultRates
from tests.support.toys import Counter, Sums


class Few(Sums):
    class Six:
        def size(self, split: Split) -> int:
            return 6

        def task(self, split: Split, index: int) -> Task:
            return Task(
                id=f"{split}/{index}", prompt=f"What is {index} + 1?", payload={"a": index, "b": 1}, split=split
            )

    tasks: TaskSource = Six()


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
        def respond(self, action):  # type: ignore[no-untyped-def]  # as in Sums
            reply = super().respond(action)
            return type(reply)(observation="", reward=float(action.content), terminated=True)

    env = TryAgain(Partly(), 4, discount=0.5)
    env.reset(seed=0)
    # 0.3, then 0.5 x 0.8 = 0.4, then 0.25 x 0.9 < 0.4, then 0.125: the episode earns 0.4.
    assert [env.step(text).reward for text in ("0.3", "0.8", "0.9", "1")] == pytest.approx([0.3, 0.1, 0.0, 0.0])


class Ups(Sums):
    """Pays 0.9 for `up`, -0.9 for `down`, and ends with the second word."""

    reward_range = (-1.0, 1.0)

    def begin(self, task: Task) -> str:
        self.words = 0
        return super().begin(task)

    def respond(self, action: Action) -> Reply:
        self.words += 1
        return Reply(reward={"up": 0.9, "down": -0.9}.get(action.content, 0.0), terminated=self.words == 2)


def test_an_attempt_is_worth_what_it_earned_in_the_end_and_not_its_highest_point() -> None:
    env = TryAgain(Ups(), 3, discount=1.0)
    env.reset(seed=0)
    # Attempts earn 0, then 0.9 - 0.9 = 0, then 0.9: the best is 0.9.
    words = ["x", "x", "up", "down", "up", "x"]
    rewards = [env.step(word).reward for word in words]
    assert rewards == pytest.approx([0.0, 0.0, 0.9, -0.9, 0.9, 0.0])


@given(st.lists(st.sampled_from(["up", "down", "x"]), min_size=8, max_size=8), st.sampled_from([0.25, 1.0]))
def test_the_episode_earns_its_best_attempt(words: list[str], discount: float) -> None:
    env = TryAgain(Ups(), 4, discount=discount)
    env.reset(seed=0)
    total, num_turns = 0.0, 0
    for word in words:
        result = env.step(word)
        total, num_turns = total + float(result.reward), num_turns + 1
        if result.terminated:
            break
    pays = {"up": 0.9, "down": -0.9, "x": 0.0}
    sums = [pays[first] + pays[second] for first, second in zip(words[::2], words[1::2], strict=True)]
    earned = [discount**number * value for number, value in enumerate(sums[: num_turns // 2])]
    assert total == pytest.approx(max(earned))


def test_attempts_that_end_with_different_calls_are_no_repetitions() -> None:
    env = TryAgain(envgym.make("puzzles/guess_number-v0", max_turns=None), 3, discount=1.0, repeat_penalty=0.5)
    env.reset(seed=3)
    oracle = env.oracle()
    wrong = [text for text in map(str, range(1, 200)) if text not in oracle]
    shown = ""
    while "Attempts left: 1." not in shown:
        assert REPEATED not in shown
        shown = env.step(tool_call_action("guess", number=int(wrong.pop()))).observation
    total = 0.0
    while not (result := env.step(env.oracle())).terminated:
        total += float(result.reward)
    assert total + float(result.reward) == pytest.approx(1.0)


def test_attempts_of_the_same_last_words_and_different_turns_are_no_repetitions() -> None:
    env = TryAgain(Counter(max_turns=None), 4, discount=1.0, repeat_penalty=0.5)
    env.reset(seed=0)
    env.step("DONE")
    env.step(CALL)
    assert "not right" in env.step("DONE").observation
    env.step(CALL)
    assert "You said that before" in env.step("DONE").observation


@pytest.mark.parametrize("repeated", [TryAgain, Horizon])
def test_truncated_and_invalid_attempts_and_tasks_are_the_last(repeated: type[TryAgain] | type[Horizon]) -> None:
    env = repeated(Counter(max_turns=1), 3)
    env.reset(seed=0)
    assert record_of(env.step("x")).ending is Ending.TRUNCATED_TURNS
    broken = repeated(Faults(Counter(), FaultRates(infra_failure=1.0), seed=0), 3)
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


def test_no_task_stands_twice_in_a_chain() -> None:
    for index in range(6):
        env = Horizon(Few(), 6)
        env.reset(seed=1, options={"split": "train", "index": index})
        keys = [env.task.key]
        for _ in range(5):
            env.step("no")
            keys.append(env.unwrapped.task.key)
        assert len(set(keys)) == 6


def test_a_chain_longer_than_its_source_is_refused() -> None:
    with pytest.raises(InvalidInput, match="split train must hold 7 different tasks that fit a chain, got 6"):
        Horizon(Few(), 7).reset(seed=1)


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


@pytest.mark.parametrize("settings", [{}, {"calculator": False}])
def test_chain_depends_on_the_answer_and_not_on_the_first_call_of_the_oracle(settings: dict[str, bool]) -> None:
    for index in range(12):
        env = DependentHorizon(envgym.make("math/arithmetic-v0", **settings), 3)
        env.reset(seed=index, options={"split": "train", "index": index})
        answers: list[int] = []
        while len(answers) < 3:
            answer = int(str(env.unwrapped.task.payload["answer"]))
            answers.append(answer)
            while True:
                result = env.step(env.oracle())
                if result.terminated or "Task " in result.observation:
                    break
            if not result.terminated:
                difference = re.search(r"= \[answer\d\] ([-+]) (\d+)\.", result.observation)
                original = depend(env.unwrapped.task.prompt, answer, number=len(answers) + 1)
                assert difference is not None
                assert original.splitlines()[0] in result.observation
        assert result.terminated


def test_chain_of_answers_that_are_no_integers_is_refused_and_such_tasks_do_not_follow() -> None:
    env = DependentHorizon(envgym.make("math/problems-v0"), 3)
    texts = []
    for index in range(16):
        env.unwrapped.reset(options={"split": "train", "index": index})
        answer = last_message(env.unwrapped)
        texts.append(answer)
        if read_integer(answer) is None:
            with pytest.raises(InvalidInput, match="answer of the first task of a chain must be an integer, got"):
                env.reset(seed=1, options={"split": "train", "index": index})
        else:
            env.reset(seed=1, options={"split": "train", "index": index})
            env.step("no")
            assert read_integer(last_message(env.env)) is not None
    assert 0 < sum(read_integer(text) is None for text in texts) < 16


@pytest.mark.parametrize(
    "answer, integer",
    [
        ("535", 535), ("-3", -3), (" 7. ", 7), ("\\boxed{12}", 12), ("So $\\boxed{-4}$.", -4),
        ("<answer>5</answer>", 5),
        ("#### 9", 9), ("1,234", 1234), ("\\boxed{1,234,567}", 1234567),
        ("0.5", None), ("\\frac{1}{2}", None), ("1/2", None), ("\\boxed{3, 4}", None), ("3 cm", None), ("x = 5", None),
        ("12,34", None), ("", None),
    ],
)  # fmt: skip
def test_an_answer_is_an_integer_as_a_whole_or_none(answer: str, integer: int | None) -> None:
    assert read_integer(answer) == integer
