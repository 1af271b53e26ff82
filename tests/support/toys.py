"""Small complete environments for tests: one with a tool, several turns and chance, one that breaks, and sums."""

from dataclasses import dataclass

from envgym import Action, Env, Reply, Split, Task, tool
from envgym.core.tasks import TaskSource, split_of
from envgym.errors import EnvFailure, InvalidInput, ToolError, sentence


@dataclass(slots=True)
class CounterState:
    target: int
    limit: int
    count: int = 0


class CounterTasks:
    """The targets 1..`num_targets`, each in the split of its content."""

    def __init__(self, num_targets: int = 400) -> None:
        payloads = [{"target": target} for target in range(1, num_targets + 1)]
        self._targets = {
            split: [payload["target"] for payload in payloads if split_of(payload) is split] for split in Split
        }

    def size(self, split: Split) -> int:
        return len(self._targets[split])

    def task(self, split: Split, index: int) -> Task:
        if not 0 <= index < self.size(split):
            rule = f"lie in [0, {self.size(split)})"
            raise InvalidInput(sentence("index", rule, index, where="CounterTasks", do="choose a smaller one"))
        target = self._targets[split][index]
        return Task(id=f"{split}/{index}", prompt=f"Count to {target}.", payload={"target": target}, split=split)


class Counter(Env[CounterState]):
    """Count to a number with the tool `add`, at most `limit` at a time, then say DONE."""

    system_prompt = "Use the tool to count, then say DONE."
    tasks: TaskSource = CounterTasks()

    def __init__(self, *, max_turns: int | None = 8, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    def begin(self, task: Task) -> str:
        """Draw how much may be added at once."""
        target = task.payload["target"]
        assert isinstance(target, int), "made by CounterTasks"
        self.state = CounterState(target=target, limit=int(self.np_random.integers(100, 200)))
        return f"{task.prompt} Add at most {self.state.limit} at a time."

    @tool
    def add(self, amount: int) -> str:
        """Add to the counter.

        Args:
            amount: How much to add.
        """
        if not 0 < amount <= self.state.limit:
            raise ToolError(f"amount must lie in 1..{self.state.limit}, got {amount}.")
        self.state.count += amount
        return f"The counter stands at {self.state.count}; {self.np_random.choice(['rain', 'sun', 'wind'])} outside."

    def respond(self, action: Action) -> Reply:
        if action.content.strip() != "DONE":
            return Reply(observation="Use the tool, or say DONE.")
        return Reply(reward=float(self.state.count == self.state.target), terminated=True)

    def oracle(self) -> str:
        """Add what is missing, as much as allowed."""
        missing = self.state.target - self.state.count
        if missing <= 0:
            return "DONE"
        amount = min(missing, self.state.limit)
        return f'<tool_call>{{"name": "add", "arguments": {{"amount": {amount}}}}}</tool_call>'


class Down(Counter):
    """Its tool needs a service that is down."""

    @tool
    def add(self, amount: int) -> str:
        """Add."""
        raise EnvFailure("the service is down")


class OftenBroken(Counter):
    """Its service is down for the tasks of even numbers."""

    @tool
    def add(self, amount: int) -> str:
        """Add to the counter.

        Args:
            amount: How much to add.
        """
        if int(self.task.id.split("/")[1]) % 2 == 0:
            raise EnvFailure("the service is down")
        return super().add(amount)


class SumTasks:
    """The sums a + b with a, b in 0..`below` - 1, each in the split of its content."""

    def __init__(self, below: int = 30) -> None:
        payloads: list[dict[str, int]] = [{"a": a, "b": b} for a in range(below) for b in range(below)]
        self._payloads = {split: [item for item in payloads if split_of(item) is split] for split in Split}

    def size(self, split: Split) -> int:
        return len(self._payloads[split])

    def task(self, split: Split, index: int) -> Task:
        """Return a sum as a task; neighbours in index differ widely in content."""
        if not 0 <= index < self.size(split):
            rule = f"lie in [0, {self.size(split)})"
            raise InvalidInput(sentence("index", rule, index, where="SumTasks", do="choose a smaller one"))
        payload = self._payloads[split][(index * 97) % self.size(split)]
        prompt = f"What is {payload['a']} + {payload['b']}?"
        return Task(id=f"{split}/{index}", prompt=prompt, payload=payload, split=split)


@dataclass(slots=True)
class SumState:
    answer: int


class Sums(Env[SumState]):
    """Add two numbers; one turn."""

    tasks: TaskSource = SumTasks()
    chance_score = 0.1

    def begin(self, task: Task) -> str:
        first, second = task.payload["a"], task.payload["b"]
        assert isinstance(first, int), "made by SumTasks"
        assert isinstance(second, int), "made by SumTasks"
        self.state = SumState(answer=first + second)
        return task.prompt

    def respond(self, action: Action) -> Reply:
        is_right = action.content.strip() == str(self.state.answer)
        return Reply(observation="Right." if is_right else "Wrong.", reward=float(is_right), terminated=True)

    def oracle(self) -> str:
        return str(self.state.answer)
