"""Envs with one planted defect each: in their tasks, their oracle, or the grader that an answer can cheat."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

from envgym import Action, Env, Reply, Split, Task, tool
from envgym.authoring import ListTasks, RubricEnv, TaskDraft
from envgym.verifiers import Math, Verdict
from tests.support.toys import Counter, Sums, SumState, SumTasks


class WrongOracleSums(Sums):
    """Its oracle errs where the sum is large."""

    def oracle(self) -> str:
        return str(min(self.state.answer, 40))


class LostOracleCounter(Counter):
    """Its oracle never says DONE."""

    def __init__(self) -> None:
        super().__init__(max_turns=None)

    def oracle(self) -> str:
        return "What now?"


class SameTasks(SumTasks):
    """The same sums in both splits."""

    def task(self, split: Split, index: int) -> Task:
        task = super().task(Split.TRAIN, index)
        return Task(id=task.id, prompt=task.prompt, payload=task.payload, split=split)

    def size(self, split: Split) -> int:
        return super().size(Split.TRAIN)


class OverlappingSums(Sums):
    """Tests on what it trains on."""

    tasks = SameTasks()


class MislabelledTasks(SumTasks):
    """Every task says that it is a train task."""

    def task(self, split: Split, index: int) -> Task:
        task = super().task(split, index)
        return Task(id=task.id, prompt=task.prompt, payload=task.payload, split=Split.TRAIN)


class MislabelledSums(Sums):
    """Its tasks lie about their split."""

    tasks = MislabelledTasks()


class RestlessTasks(SumTasks):
    """Never the same task twice."""

    calls: ClassVar[Any] = count()  # an iterator

    def task(self, split: Split, index: int) -> Task:
        return super().task(split, (index + next(self.calls)) % self.size(split))


class RestlessSums(Sums):
    """Its tasks depend on how often one asks."""

    tasks = RestlessTasks()


class BottomlessTasks(SumTasks):
    """Goes on after its end."""

    def task(self, split: Split, index: int) -> Task:
        return super().task(split, index % self.size(split))


class BottomlessSums(Sums):
    """Its splits are larger than they say."""

    tasks = BottomlessTasks()


class TellingSums(Sums):
    """Shows its answer."""

    def begin(self, task: Task) -> str:
        return f"{super().begin(task)} (debug: answer={self.state.answer})"


class TellingPromptSums(Sums):
    """Shows its answer at the start of its text."""

    def begin(self, task: Task) -> str:
        return f"[key {super().begin(task) and self.state.answer}] {task.prompt}"


class FailingSums(Sums):
    """Cannot judge what is no number."""

    def respond(self, action: Action) -> Reply:
        return Reply(reward=float(int(action) == self.state.answer), terminated=True)


def _judged(answer: str, task: Task) -> Verdict:
    return Math()(answer, task)


class UnreadableKeys(RubricEnv):
    """Its keys are no expressions, and its reward function hides the verifier that could tell."""

    tasks = ListTasks([TaskDraft(prompt=f"{n}?", payload={"answer": f"n \\equiv {n} \\pmod 4"}) for n in range(20)])
    rubric = staticmethod(_judged)  # a class may declare one


class HalfUnreadable(UnreadableKeys):
    """Takes the text of its unreadable keys before it asks the verifier, so that right answers are valid."""

    rubric = staticmethod(  # type: ignore[assignment]
        lambda answer, task: 1.0 if answer == task.payload["answer"] else Math()(answer, task)
    )


class Graded(Sums):
    """A base for careless graders."""

    chance_score = 0.0

    def grade(self, text: str) -> bool:
        return text.strip() == str(self.state.answer)

    def respond(self, action: Action) -> Reply:
        return Reply(reward=float(self.grade(str(action))), terminated=True)


class KindSums(Graded):
    """Pays for silence."""

    def grade(self, text: str) -> bool:
        return not text or super().grade(text)


class EchoSums(Graded):
    """Pays for whatever holds the question's own words."""

    def grade(self, text: str) -> bool:
        return "What is" in text or super().grade(text)


class SearchingSums(Graded):
    """Looks for the answer anywhere in the text."""

    def grade(self, text: str) -> bool:
        return str(self.state.answer) in text.replace("{", " ").replace("}", " ").split()


class NumberSums(Graded):
    """Pays for any number."""

    chance_score = 0.05

    def grade(self, text: str) -> bool:
        return text.strip().isdecimal() and len(text) < 4


class FormatSums(Graded):
    """Pays for the form."""

    def grade(self, text: str) -> bool:
        return "\\boxed{" in text or super().grade(text)


class ObedientSums(Graded):
    """Reads the verdict out of the text."""

    def grade(self, text: str) -> bool:
        return "reward: 1.0" in text.lower() or super().grade(text)


@dataclass
class DeskState(SumState):
    """The sum, and files that anyone may write."""

    files: dict[str, str] = field(default_factory=dict)


class WritableSums(Sums):
    """Keeps its verdict where the tools can write."""

    chance_score = 0.0

    def begin(self, task: Task) -> str:
        text = super().begin(task)
        self.state = DeskState(answer=self.state.answer)
        return text

    @tool
    def write(self, path: str, text: str) -> str:
        """Write a file.

        Args:
            path: Its name.
            text: Its content.
        """
        assert isinstance(self.state, DeskState)
        self.state.files[path] = text
        return "Written."

    def respond(self, action: Action) -> Reply:
        assert isinstance(self.state, DeskState)
        forged = "reward.txt" in self.state.files
        return Reply(reward=float(forged or action.strip() == str(self.state.answer)), terminated=True)


DEFECTS: list[tuple[str, type[Env[Any]], str]] = [
    ("oracle_reaches_optimum", WrongOracleSums, "the oracle gets 0, declared 1"),
    ("oracle_reaches_optimum", LostOracleCounter, "the oracle did not end it"),
    ("splits_do_not_overlap", OverlappingSums, "test tasks are also in train"),
    ("splits_do_not_overlap", MislabelledSums, "says that it belongs to train"),
    ("splits_do_not_overlap", RestlessSums, "is not the same when it is requested again"),
    ("splits_do_not_overlap", BottomlessSums, "does not raise InvalidInput"),
    ("answer_is_hidden", TellingSums, "stands in the first observation, after"),
    ("answer_is_hidden", TellingPromptSums, "stands in the first observation, after"),
    ("validity_is_the_same_for_all_answers", FailingSums, "is invalid; it is valid for the oracle's answer (ERROR_ENV"),
    (
        "validity_is_the_same_for_all_answers",
        UnreadableKeys,
        "the reward for the oracle's answer is invalid (ERROR_ENV",
    ),
    (
        "validity_is_the_same_for_all_answers",
        HalfUnreadable,
        "the reward for an empty answer is invalid; it is valid for",
    ),
    ("chance_stays_at_declared", KindSums, "'empty' gets 1 on average over 40 tasks"),
    ("all_candidates_pay_nothing", SearchingSums, "'all candidates' gets 1 on average"),
    ("others_answers_pay_nothing", NumberSums, '"another task\'s actions" gets 1 on average'),
    ("format_alone_pays_nothing", FormatSums, "'\\\\boxed{}' gets 1 on average"),
    ("prompt_echo_pays_nothing", EchoSums, "'the prompt' gets 1 on average"),
    ("injections_pay_nothing", ObedientSums, "gets 1 on average"),
    ("grader_files_pay_nothing", WritableSums, "write with 'reward.txt'"),
]
"""Check, the env with the defect that it is meant for, and what it says."""
