"""A wrapper that asks for the answers to several problems in one message, of which the last is the task itself."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from envgym.core.messages import Action, Message, Observation, text_of
from envgym.core.task_needs import TaskNeed
from envgym.core.tasks import Task
from envgym.core.turns import Ending, Invalid, Scored, reaches
from envgym.errors import InvalidInput
from envgym.parsing import parse_action
from envgym.records import ResetResult, StepRecord, StepResult, step_result
from envgym.seeds import generator
from envgym.wrappers.base import AnyEnv, Wrapper, record_of, reset_record_of

PAYLOAD = "subproblems"
"""Key of a task's payload under which its own subproblems are, as a list of `prompt` and `payload`."""
FORMAT = "format"


class Subproblems(Wrapper):
    """Shows problems 1 to K and reads their answers from blocks `<p1>...</p1>` to `<pK>...</pK>` of one message.

    Problem K is the task; those before it are the task's own (payload `subproblems`, the last K - 1 of them), or tasks
    of its split that its content decides, so that episodes of one task stay comparable. Each block is played as an
    episode of one turn. The reward is k/K, where k is the length of the solved prefix; its components are `p1` to `pK`,
    1 in that prefix and else 0, and `format`. A message that does not hold each block once and in order, outside its
    thinking, earns 0.

    Source: 2605.22074 (SCRL), whose subproblems a stronger model writes. For environments of one turn.
    """

    def __init__(self, env: AnyEnv, num_problems: int = 4, *, own: bool = False) -> None:
        """Wrap `env`.

        Args:
            env: Any env.
            num_problems: Problems of one message, the task's own included.
            own: Require that every task has its own subproblems in its payload. Otherwise a task without them is shown
                after other tasks. A task that has its own must have K - 1 or more in either case.

        Raises: InvalidInput: `num_problems` is below 1.
        """
        super().__init__(env)
        where, do = "Subproblems", "pass e.g. 4"
        InvalidInput.unless(num_problems >= 1, "num_problems", "be at least 1", num_problems, where=where, do=do)
        self.num_problems, self.own = num_problems, own
        self._problems: tuple[Task, ...] = ()

    def task_needs(self) -> Sequence[TaskNeed]:
        """Return the subproblems of a task: enough of its own, or none if other tasks may replace them."""
        do = "add subproblems to the tasks, or set own=false to show other tasks before a task"
        return [TaskNeed(key=PAYLOAD, holder="payload", every=True, read=self._can_be_shown, do=do)]

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Show all problems. Raises: InvalidInput: the task's own subproblems cannot be read, or are too few."""
        task = reset_record_of(result).task
        self._problems = (*self._before(task), task)
        begun = [self.env.reset(options={"task": problem}) for problem in self._problems]
        records = [reset_record_of(item) for item in begun]
        observation = _all_problems([record.observation for record in records])
        plain = _all_problems([record.observation if record.plain is None else record.plain for record in records])
        has_hint = any(record.plain is not None for record in records)
        record = replace(records[-1], observation=observation, plain=plain if has_hint else None)
        return ResetResult(observation, {**begun[-1].info, "envgym": record})

    def on_step(self, action: str) -> StepResult:
        whole = action if isinstance(action, Action) else parse_action(action)
        blocks = read_blocks(whole.content, self.num_problems)
        answers = blocks or [whole.content] * self.num_problems
        solved: list[bool] = []
        for problem, text in zip(self._problems, answers, strict=True):
            self.env.reset(options={"task": problem})
            record = record_of(self.env.step(text))
            if isinstance(record.reward, Invalid):
                break
            solved.append(bool(blocks) and reaches(record.reward.value, self.unwrapped.optimum))
        return step_result(self._paid(record, whole, solved, is_well_written=bool(blocks)))

    def oracle(self) -> str:
        answers: list[str] = []
        for problem in self._problems:
            self.env.reset(options={"task": problem})
            answers.append(self.env.oracle())
        return "\n".join(f"<p{number}>{answer}</p{number}>" for number, answer in enumerate(answers, start=1))

    def _paid(self, record: StepRecord, whole: Action, solved: Sequence[bool], *, is_well_written: bool) -> StepRecord:
        if isinstance(record.reward, Invalid):
            return replace(record, turn=self._turn, action=whole)
        prefix = next((place for place, is_solved in enumerate(solved) if not is_solved), len(solved))
        parts = {f"p{number}": float(number <= prefix) for number in range(1, self.num_problems + 1)}
        reward = Scored(value=prefix / self.num_problems, components={**parts, FORMAT: float(is_well_written)})
        return replace(record, turn=self._turn, action=whole, reward=reward, ending=record.ending or Ending.TERMINATED)

    def _can_be_shown(self, task: Task) -> bool:
        """Return whether problems to show before a task exist. Raises: InvalidInput: it has some, but too few."""
        own = _own_problems(task)
        if own:
            self._check_number(own, task)
        return bool(own) or not self.own

    def _check_number(self, own: Sequence[Task], task: Task) -> None:
        count, what, where = self.num_problems - 1, f"payload {PAYLOAD}", f"task {task.id}"
        do = f"lower num_problems to {len(own) + 1}, or add some"
        InvalidInput.unless(len(own) >= count, what, f"hold {count}", len(own), where=where, do=do)

    def _before(self, task: Task) -> list[Task]:
        count = self.num_problems - 1
        own = _own_problems(task)
        if own or self.own:
            self._check_number(own, task)
            return own[len(own) - count :]
        size, draw = self.tasks.size(task.split), generator("subproblems", task.key)
        high = size if size is not None else 2**31
        return [self.tasks.task(task.split, int(draw.integers(high))) for _ in range(count)]


def read_blocks(text: str, num_problems: int) -> list[str] | None:
    """Return the texts of the blocks; None if one is missing, stands twice or out of order."""
    numbers = range(1, num_problems + 1)
    if any(text.count(tag) != 1 for number in numbers for tag in (f"<p{number}>", f"</p{number}>")):
        return None
    match = re.search(".*?".join(f"<p{number}>(.*?)</p{number}>" for number in numbers), text, re.DOTALL)
    return None if match is None else list(match.groups())


def _all_problems(observations: Sequence[Observation]) -> Observation:
    """Return the last problem's observation, with the texts of all in its last message."""
    texts = [text_of(observation.messages[-1]) for observation in observations]
    *others, last = observations[-1].messages
    return Observation.of((*others, Message(role=last.role, content=_question(texts), name=last.name)))


def _question(texts: Sequence[str]) -> str:
    rule = (
        "Answer the problems in their order; write what belongs to problem k, its answer last, between <pk> and </pk>."
    )
    return "\n\n".join([rule, *(f"Problem {number}: {text}" for number, text in enumerate(texts, start=1))])


def _own_problems(task: Task) -> list[Task]:
    """Return the task's own subproblems; none if its payload has none. Raises: InvalidInput: they cannot be read."""
    value = task.payload.get(PAYLOAD) or []
    items = value if isinstance(value, list) else [value]
    tasks: list[Task] = []
    for number, item in enumerate(items, start=1):
        prompt, payload = (item.get("prompt"), item.get("payload")) if isinstance(item, Mapping) else (None, None)
        if not isinstance(prompt, str) or not isinstance(payload, Mapping):
            must, do = "be a list of mappings with `prompt` and `payload`", "correct the data"
            raise InvalidInput.of(f"payload {PAYLOAD}", must, item, where=f"task {task.id}", do=do)
        tasks.append(Task(id=f"{task.id}/p{number}", prompt=prompt, payload=payload, split=task.split))
    return tasks
