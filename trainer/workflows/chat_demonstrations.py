"""Demonstrations from chat data: a file or data set of conversations, played through the agent loop.

A conversation is an env whose oracle speaks the recorded words and whose replies are the recorded messages. So
templates, masks, context rewrites and limits are those of training. Assistant messages that must not train are context.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from envgym.agents.loop.agent import Agent
from envgym.agents.loop.prefix import not_sampled
from envgym.agents.rollout.driver import run_oracle_episode
from envgym.agents.rollout.episode import EpisodeJob
from envgym.authoring.sources import ListTasks
from envgym.authoring.tables import RowOrFault, read_tables
from envgym.chats.fields import REMEDY
from envgym.chats.rows import ChatColumns, ChatForm, Conversation, RowFilter, TrainOn, read_row
from envgym.config.settings import Settings
from envgym.core.json_types import JsonObject
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.segments import Origin
from envgym.core.tasks import Split, Task
from envgym.core.trajectory import CHAT_ENV, Trajectory, trajectories
from envgym.core.turns import ZERO, Ending, Scored
from envgym.env import Env
from envgym.errors import InvalidInput, SettingsError, sentence
from envgym.parsing import text_format
from envgym.records import StepRecord, StepResult, step_result
from envgym.seeds import derive_seed
from envgym.tools import Tool
from envgym.trainer.workflows.demonstrations import DemonstrationRequest, Demonstrations

_log = logging.getLogger(__name__)
_WRITABLE = "be one that the agent can write"
_NUM_SHOWN = 3
"""Most rows that are named of one kind of fault."""


class ConversationEnv(Env[int]):
    """Replies with the recorded messages of a conversation; its state is the number of turns played."""

    tasks = ListTasks([])

    def __init__(self, conversation: Conversation) -> None:
        """Split a conversation into actions and observations."""
        super().__init__()
        self.conversation = conversation
        messages = conversation.messages
        if messages[0].role is Role.SYSTEM:
            self.system_prompt, messages = messages[0].content, messages[1:]
        places = [index for index, message in enumerate(messages) if message.role is Role.ASSISTANT]
        ends = [*places[1:], len(messages)]
        self._first = Observation.of(messages[: places[0]])
        self._actions = [messages[place] for place in places]
        self._replies = [Observation.of(messages[place + 1 : end]) for place, end in zip(places, ends, strict=True)]

    def begin(self, task: Task) -> str:
        """Return the messages before the first one of the assistant."""
        self.state = 0
        return self._first

    def toolset(self) -> dict[str, Tool]:
        """Return the recorded tools, which are listed and never run."""
        return {spec.name: Tool(spec=spec, call=_never_called) for spec in self.conversation.tools}

    def step(self, action: str) -> StepResult:
        """Reply with the recorded messages, whatever the action is; the last turn pays the conversation's reward."""
        turn, self.state = self.state, self.state + 1
        is_last = self.state == len(self._actions)
        reward, value = ZERO, self.conversation.reward
        if is_last and value is not None:
            reward = Scored(value=value, components={"reward": value})
        read = action if isinstance(action, Action) else Action(action)
        return step_result(
            StepRecord(
                turn=turn,
                action=read,
                observation=self._replies[turn],
                reward=reward,
                ending=Ending.TERMINATED if is_last else None,
                tool_calls=len(read.tool_calls),
                tool_errors=0,
            )
        )

    def oracle(self) -> Action:
        """Return the recorded action of the turn."""
        return _recorded_action(self._actions[self.state])


def _recorded_action(message: Message) -> Action:
    """Return an assistant message as an action, with its text in the Hermes form if that form can hold it."""
    if message.thinking is None and not message.tool_calls:
        return Action(message.content)
    calls = tuple(replace(call, id=None) for call in message.tool_calls)
    action = Action("", content=message.content, thinking=message.thinking, tool_calls=calls)
    text = ""
    with suppress(InvalidInput):  # the agent's own format may still hold it
        text = text_format("hermes").write(action)
    return Action(text, content=action.content, thinking=action.thinking, tool_calls=calls)


def _never_called(owner: object, arguments: JsonObject) -> str:
    raise AssertionError("a recorded conversation runs no tool")


class ChatDemonstrations(Settings):
    """The conversations of a chat file or data set; `evaluation.success_at` does not apply to them."""

    path: str | None = None
    """File (`.jsonl`, `.json`, `.csv`, `.parquet`), or folder of a saved data set."""
    hub: str | None = None
    """Name of a data set of the Hugging Face Hub, in place of `path`."""
    config: str | None = None
    """Configuration of the data set, where it has several."""
    revision: str | None = None
    """Commit or tag of a Hub data set; name one, so that the conversations stay the same."""
    split: str | None = None
    """Split of the data set; null: its only split, or `train`."""
    form: ChatForm = ChatForm.AUTO
    """How a row holds a conversation: `openai`, `sharegpt`, `prompt_completion`, `alpaca`; `auto` reads it from the
    columns of each row."""
    columns: ChatColumns = ChatColumns()
    """Names of the columns that differ from the usual names, such as `{messages: dialog, reward: score}`."""
    train_on: TrainOn = "all"
    """Which assistant messages train: `all` of a conversation, or its `last`. Messages with `weight: 0` or
    `train: false` never train."""
    keep: str | None = None
    """Comparison of a number column, such as `score >= 0.5`; other rows are left out. null: every row is read."""
    limit: int | None = Field(default=None, ge=1)
    """Most conversations to read, from the first row on; null: all."""
    on_bad_row: Literal["fail", "skip"] = "fail"
    """What a row does that cannot be learned from: `fail` refuses the run with the row and the reason, `skip` leaves
    the row out and logs how many rows were left out."""

    _rows: list[tuple[int, Conversation]] | None = PrivateAttr(default=None)
    """Number and conversation of each row, once they have been read."""
    _num_read: int = PrivateAttr(default=0)

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.path is None) == (self.hub is None):
            got = "neither" if self.path is None else "both"
            do = "pass path=FILE, or hub=NAME"
            raise ValueError(sentence("chat data", "have one of path and hub", got, where="chat", do=do))
        if self.path is not None and not Path(self.path).exists():
            do = "check the path, or name a Hub data set with hub"
            raise ValueError(sentence("path", "be an existing file or folder", self.path, where="chat", do=do))
        if self.path is not None and self.revision is not None:
            do = "leave it out, or name the data set with hub"
            raise ValueError(sentence("revision", "be used with hub", self.revision, where="chat", do=do))
        if self.path is not None and self.config is not None and Path(self.path).is_file():
            do = "leave it out: a file has one configuration"
            raise ValueError(sentence("config", "be used with a data set", self.config, where="chat", do=do))
        if self.keep is not None:
            RowFilter(self.keep)
        return self

    @property
    def name(self) -> str:
        """The file or data set, as errors name it."""
        return Path(self.path).name if self.path is not None else str(self.hub)

    def check_agent(self, agent: Agent) -> None:
        """Read the rows, before a run is written. Raises: InvalidInput: they cannot be used, or not by this agent."""
        for number, conversation in self.conversations():
            if self.on_bad_row == "fail":
                self._check_written(conversation, agent, self._where(number))

    def _check_written(self, conversation: Conversation, agent: Agent, where: str) -> None:
        """Refuse thinking and calls that the agent's format cannot write; it can write every text."""
        for message in conversation.messages:
            if message.thinking is None and not message.tool_calls:
                continue
            try:
                agent.renderer.encode_action(_recorded_action(message))
            except InvalidInput as error:
                part, _, _ = str(error).partition(" must ")
                got = f"a message whose {part.removesuffix(' of the action')} it cannot write"
                do = "choose another agent.text_format, correct the row, or set on_bad_row: skip"
                raise InvalidInput.of("conversation", _WRITABLE, got, where=where, do=do) from None

    def conversations(self) -> list[tuple[int, Conversation]]:
        """Return number and conversation of each row. Raises: InvalidInput: a row cannot be used, or there is none."""
        if self._rows is None:
            faults, self._num_read = _Faults(self), 0
            rows = list(self._read(faults))
            faults.log(self._num_read, len(rows))
            self._rows = rows
        return self._rows

    async def __call__(self, request: DemonstrationRequest) -> Demonstrations:
        """Play the conversations; those that do not fit the agent's context are counted, and do not train."""
        rows, faults = self.conversations(), _Faults(self)
        if request.is_sample:
            rows = rows[: request.num_episodes]
        imitated: list[Trajectory] = []
        num_truncated = 0
        env_id = f"{CHAT_ENV}{Path(self.name).stem if self.path is not None else self.name}"
        for done, (number, conversation) in enumerate(rows, start=1):
            tree = await run_oracle_episode(_job(conversation, number, env_id, request.seed), request.agent)
            (episode,) = trajectories(tree)
            if episode.ending is Ending.TRUNCATED_TOKENS:
                num_truncated += 1
            elif episode.ending.is_error:
                got = str(tree.nodes[episode.leaf].error)
                error = SettingsError.of("conversation", _WRITABLE, got, where=self._where(number), do=REMEDY)
                faults.add(number, error)
            else:
                imitated.append(_with_context(episode, conversation))
            request.on_progress("conversations", done, len(rows))
            await asyncio.sleep(0)  # an interrupt cancels here
        faults.log(len(rows), len(imitated) + num_truncated)
        self._rows = None  # the episodes hold what trains
        return Demonstrations(len(rows), imitated, num_truncated)

    def _read(self, faults: "_Faults") -> Iterator[tuple[int, Conversation]]:
        row_filter, num_left = None if self.keep is None else RowFilter(self.keep), self.limit
        for number, row in enumerate(self._table()):
            if num_left == 0:
                return
            where = self._where(number)
            self._num_read += 1
            try:
                if isinstance(row, InvalidInput):
                    raise row
                if row_filter is not None and not row_filter.passes(row, where=where):
                    continue
                conversation = read_row(row, where=where, form=self.form, columns=self.columns, train_on=self.train_on)
            except InvalidInput as error:
                faults.add(number, error)
                continue
            num_left = None if num_left is None else num_left - 1
            yield number, conversation

    def _table(self) -> Iterable[RowOrFault]:
        source = self.path if self.path is not None else str(self.hub)
        tables = dict(read_tables(source, self.config, self.revision))
        split = self.split or (next(iter(tables)) if len(tables) == 1 else "train")
        if split not in tables:
            must, do = f"be one of {', '.join(tables) or 'none'}", "set another split"
            must, do = ("be null for a file", "leave it out") if "" in tables else (must, do)
            raise InvalidInput.of("split of the chat data", must, split, where=self.name, do=do)
        return tables[split]

    def _where(self, number: int) -> str:
        return f"row {number} of {self.name}"


def _job(conversation: Conversation, number: int, env_id: str, run_seed: int) -> EpisodeJob:
    prompt = next(message.content for message in conversation.messages if message.role is Role.USER)
    id = conversation.id or f"row/{number}"
    return EpisodeJob(
        make_env=partial(ConversationEnv, conversation),
        task=Task(id=id, prompt=prompt, payload={"source": env_id, "row": number}, split=Split.TRAIN),
        seed=derive_seed(run_seed, "chat", number),
        tree_id=f"{env_id}/{number:06d}",
        env_id=env_id,
    )


def _with_context(episode: Trajectory, conversation: Conversation) -> Trajectory:
    """Return an episode in which the turns that must not train are context, as hints are."""
    pairs = zip(conversation.messages, conversation.trained, strict=True)
    trained = [trains for message, trains in pairs if message.role is Role.ASSISTANT]
    if all(trained):
        return episode
    nodes = list(episode.tree.nodes)
    for places, trains in zip(episode.turn_nodes, trained, strict=True):
        for place in () if trains else places:
            edge = nodes[place].edge
            edge = replace(edge, segments=not_sampled(edge.segments, Origin.INJECTED))
            nodes[place] = replace(nodes[place], edge=edge)
    return replace(episode, tree=replace(episode.tree, nodes=tuple(nodes)))


class _Faults:
    def __init__(self, source: ChatDemonstrations) -> None:
        self._source = source
        self._numbers: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, number: int, error: InvalidInput) -> None:
        """Count a row. Raises: InvalidInput: the error, unless such rows are skipped."""
        if self._source.on_bad_row == "fail":
            raise error
        rule, _, _ = str(error).partition(", got ")
        self._numbers[rule].append(number)

    def log(self, num_rows: int, num_left: int) -> None:
        """Log how many rows were skipped, by rule. Raises: SettingsError: no row is left."""
        rules = sorted(self._numbers.items(), key=lambda item: -len(item[1]))
        reasons = "; ".join(f"{rule} ({len(numbers)}: {_listed(numbers)})" for rule, numbers in rules)
        num_skipped = sum(map(len, self._numbers.values()))
        if not num_left:
            got = f"none of {num_rows} rows" + (f" ({reasons})" if reasons else "")
            do = "check keep" if self._source.keep is not None else "name another file"
            do = "correct what the reasons name" if reasons else do
            raise SettingsError.of("chat data", "hold conversations to learn", got, where=self._source.name, do=do)
        if num_skipped:
            _log.warning("%d of %d rows of %s are skipped: %s", num_skipped, num_rows, self._source.name, reasons)


def _listed(numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, numbers[:_NUM_SHOWN]))
    return f"row {text}" if len(numbers) == 1 else f"rows {text}{' ...' if len(numbers) > _NUM_SHOWN else ''}"
