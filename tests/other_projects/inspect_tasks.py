"""Tasks of inspect-ai with local rows: three as benchmarks are written, and others that an environment must refuse."""

# mypy: disable-error-code="untyped-decorator"

import asyncio
from threading import Event
from typing import Any

from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ContentImage, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Scorer, Target, choice, match, mean, model_graded_qa, pattern, scorer
from inspect_ai.solver import (
    Generate,
    Solver,
    TaskState,
    generate,
    multiple_choice,
    prompt_template,
    self_critique,
    solver,
    system_message,
    use_tools,
)
from inspect_ai.tool import Tool, bash, tool
from inspect_ai.util import store

USAGE = ModelUsage(input_tokens=10, output_tokens=10, total_tokens=20)
RELEASED = Event()
"""Set: a scorer that blocks its loop continues."""
CLEANED: list[str] = []
"""Samples of `shop` that have ended."""
ROWS = 67
"""Samples of each benchmark: 201 in all."""


def spoken(message: ChatMessageAssistant) -> ModelOutput:
    """Return the output of a model that is a message."""
    output = ModelOutput.from_message(message)
    output.usage = USAGE  # without, tokens are counted with a vocabulary from the network
    return output


# ---- as benchmarks are written ---------------------------------------------------------------------------------------


@task
def word_problems(shots: int = 2) -> Task:
    """Numbers, found at the end of the answer."""
    rows = [{"question": f"Ann has {n} pens and buys {n % 7 + 1} more. How many?", "n": n} for n in range(ROWS)]
    examples = "\n\n".join(f"{row['question']}\nANSWER: {_sum(row)}" for row in rows[:shots])
    return Task(
        dataset=MemoryDataset(
            [Sample(input=str(row["question"]), target=str(_sum(row)), metadata={"n": row["n"]}) for row in rows]
        ),
        solver=[
            system_message(examples),
            prompt_template("Solve.\n\n{prompt}\n\nEnd with ANSWER: and it."),
            generate(),
        ],
        scorer=match(numeric=True),
    )


def _sum(row: dict[str, Any]) -> int:
    return int(row["n"] + row["n"] % 7 + 1)


@task
def capitals() -> Task:
    """Choices by letter."""
    names = [f"Town {n}" for n in range(ROWS + 3)]
    return Task(
        dataset=[
            Sample(input=f"Where is river {n}?", choices=names[n : n + 4], target="ABCD"[n % 4], id=f"river-{n}")
            for n in range(ROWS)
        ],
        solver=multiple_choice(),
        scorer=choice(),
    )


@task
def yes_or_no() -> Task:
    """One word, by a pattern."""
    return Task(
        dataset=[
            Sample(input=f"Is {n} even? Reply with Yes or No.", target="No" if n % 2 else "Yes", id=n)
            for n in range(ROWS)
        ],
        solver=[generate()],
        scorer=pattern(r"^\W*(Yes|No)\W*$"),
    )


# ---- tools -----------------------------------------------------------------------------------------------------------


@tool
def price() -> Tool:
    async def execute(item: str, count: int = 1) -> str:
        """Look up a price.

        Args:
            item: What to buy.
            count: How many.
        """
        if item == "crash":
            raise RuntimeError("the table is lost")
        if item == "exit":
            raise SystemExit(3)
        store().set("asked", [*store().get("asked", []), item])
        return str({"pen": 3, "cup": 5}[item] * count)

    return execute


@scorer(metrics=[mean()])
def num_asked() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=len(state.store.get("asked", [])))

    return score


async def forget(state: TaskState) -> None:
    """Clean up, and fail when it is done."""
    CLEANED.append(str(state.sample_id))
    raise OSError("there is nothing to clean")


@task
def shop() -> Task:
    return Task(
        dataset=[Sample(input="What do four cups cost?", target="20")],
        solver=[use_tools(price()), generate()],
        scorer=[match(), num_asked()],
        cleanup=forget,
    )


@task
def continued() -> Task:
    """A conversation that has begun."""
    earlier = [ChatMessageUser(content="Say one."), ChatMessageAssistant(content="One.")]
    return Task(dataset=[Sample(input=[*earlier, ChatMessageUser(content="Say two.")], target="Two")], scorer=match())


# ---- scores ----------------------------------------------------------------------------------------------------------


@scorer(metrics=[mean()])
def any_value() -> Scorer:
    """The answer itself is the value, in the words of Python."""

    async def score(state: TaskState, target: Target) -> Score | None:
        answer = state.output.completion
        if answer == "exit":
            raise SystemExit(3)
        if answer == "raise":
            raise RuntimeError("the scorer broke")
        if answer == "sleep":
            await asyncio.sleep(3600)
        if answer == "wait":
            RELEASED.wait()
            answer = "0"
        if answer == "none":
            return None
        return Score.unscored(reason="no_response") if answer == "unscored" else Score(value=eval(answer))

    return score


@task
def values() -> Task:
    return Task(dataset=[Sample(input="A value?", target="'C'")], scorer=any_value())


@task
def two_scorers() -> Task:
    return Task(dataset=[Sample(input="Three?", target="3")], scorer=[match(), any_value()])


@task
def graded() -> Task:
    return Task(dataset=[Sample(input="Three?", target="3")], scorer=model_graded_qa())


@scorer(metrics=[mean()])
def graded_if_wrong() -> Scorer:
    """Asks the grader only where the text differs."""

    async def score(state: TaskState, target: Target) -> Score:
        if state.output.completion == target.text:
            return Score(value="C")
        return Score(value=(await get_model().generate("Is it right?")).completion)

    return score


@task
def seldom_graded() -> Task:
    return Task(dataset=[Sample(input="Three?", target="3")], scorer=graded_if_wrong())


@task
def odd_metadata() -> Task:
    """Metadata of which each process has another text."""
    samples = [Sample(input="Three?", target="3", id=n, metadata={"of": object()}) for n in range(8)]
    return Task(dataset=samples, scorer=match())


# ---- what is refused -------------------------------------------------------------------------------------------------


@solver
def own_model() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state.output = await get_model().generate(state.messages)
        return state

    return solve


@solver
def swallows() -> Solver:
    """Calls the model twice, and ignores that this fails."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state = await generate(state)
        try:
            return await generate(state)
        except Exception:  # noqa: BLE001
            return state

    return solve


@solver
def silent() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        return state

    return solve


@solver
def broken() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        raise KeyError("question")

    return solve


SOLVERS = {
    "own_model": own_model,
    "twice": lambda: [generate(), generate()],
    "swallows": swallows,
    "silent": silent,
    "broken": broken,
    "own_loop": lambda: [use_tools(price()), generate(tool_calls="none")],
    "own_turns": lambda: [use_tools(price()), generate(tool_calls="single")],
    "critique": lambda: [generate(), self_critique()],
    "agent": react,
    "sandbox_tool": lambda: [use_tools(bash()), generate()],
}


@task
def refused(name: str) -> Task:
    return Task(dataset=[Sample(input="Three?", target="3")], solver=SOLVERS[name](), scorer=match())


@task
def odd(name: str) -> Task:
    """Tasks that cannot be played whatever their solver does."""
    sample = Sample(input="Three?", target="3")
    if name == "sandbox":
        return Task(dataset=[sample], scorer=match(), sandbox="local")
    if name == "files":
        return Task(dataset=[Sample(input="Three?", target="3", files={"a.txt": "a"})], scorer=match())
    if name == "image":
        picture = ChatMessageUser(content=[ContentImage(image="data:image/png;base64,AAAA")])
        return Task(dataset=[Sample(input=[picture], target="3")], scorer=match())
    if name == "unscored":
        return Task(dataset=[sample])
    if name == "empty":
        return Task(dataset=[], scorer=match())
    raise ValueError("there is no such task")
