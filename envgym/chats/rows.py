"""Rows of chat data sets -> conversations, in the forms in which such data sets are published.

    openai             `messages` of {role, content, tool_calls, ...}, with `tools` beside them
    sharegpt           `conversations` of {from, value}, with `system` and `tools` beside them
    prompt_completion  `prompt` and `completion`: two texts, or two lists of messages
    alpaca             `instruction`, `input` and `output`, with `system` and `history` beside them

A field that is null or empty counts as missing. A row that breaks a rule is refused in one sentence.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from envgym.chats.fields import is_absent, read_list, read_text, refusal
from envgym.chats.openai import MEDIA, read_openai, read_tools
from envgym.chats.sharegpt import read_sharegpt
from envgym.config.settings import Settings
from envgym.core.messages import Message, Role
from envgym.errors import InvalidInput, UnknownName, suggestion
from envgym.tools import ToolSpec

Cells = Mapping[str, Any]  # a decoded row: whatever the file holds
TrainOn = Literal["all", "last"]
_MESSAGES = ("messages", "conversations", "conversation")
"""Usual columns of a list of messages."""


class ChatForm(StrEnum):
    """How the rows of a chat data set hold a conversation."""

    AUTO = "auto"
    """Read from the columns of each row."""
    OPENAI = "openai"
    SHAREGPT = "sharegpt"
    PROMPT_COMPLETION = "prompt_completion"
    ALPACA = "alpaca"


_ENTRIES: Mapping[ChatForm, str] = {ChatForm.OPENAI: "role and content", ChatForm.SHAREGPT: "from and value"}
"""Fields of the messages of a form."""


class ChatColumns(Settings):
    """Names of the columns of a chat data set."""

    messages: str | None = None
    """Column of the messages; null: `messages`, `conversations` or `conversation`."""
    tools: str | None = "tools"
    """Column of the tools; null: none."""
    system: str | None = "system"
    """Column of a system message that precedes the conversation; null: none."""
    prompt: str = "prompt"
    """Column of the prompt."""
    completion: str = "completion"
    """Column of the completion."""
    instruction: str = "instruction"
    """Column of the instruction (Alpaca)."""
    input: str | None = "input"
    """Column of the input that follows the instruction (Alpaca); null: none."""
    output: str = "output"
    """Column of the answer (Alpaca)."""
    history: str | None = "history"
    """Column of earlier pairs of instruction and answer (Alpaca); null: none."""
    reward: str | None = None
    """Column of the conversation's reward, a number; null: conversations have no reward."""
    id: str | None = None
    """Column of the conversation's id; null: the number of the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A recorded conversation."""

    messages: tuple[Message, ...]
    trained: tuple[bool, ...]
    """For each message, whether a policy learns to write it; only assistant messages are learned."""
    tools: tuple[ToolSpec, ...] = ()
    reward: float | None = None
    """None: the row has no reward, which is not a reward of 0."""
    id: str | None = None


class _Entry(NamedTuple):
    """A message, and whether the row lets a policy learn it."""

    message: Message
    trains: bool = True


def read_row(
    row: Cells,
    *,
    where: str,
    form: ChatForm = ChatForm.AUTO,
    columns: ChatColumns | None = None,
    train_on: TrainOn = "all",
) -> Conversation:
    """Read a row.

    Args:
        row: cells by column.
        where: names the row in errors.
        form: of the row.
        columns: names of the columns; None: the usual names.
        train_on: which assistant messages a policy learns, unless the row excludes one (`weight: 0`, `train: false`).

    Raises: InvalidInput: the row holds no conversation that a policy can learn from, in one sentence.
    """
    reader = _RowReader(row, columns or ChatColumns(), where)
    tools = reader.tools()
    entries = reader.entries(form, {spec.name: spec for spec in tools})
    messages = tuple(entry.message for entry in entries)
    _check_order(messages, where)
    trained = _trained(entries, train_on, where)
    _check_calls(messages, trained, tools, where)
    return Conversation(
        messages=messages,
        trained=trained,
        tools=tools,
        reward=reader.number(reader.columns.reward),
        id=reader.id(),
    )


# ---- cells -----------------------------------------------------------------------------------------------------------


class _RowReader:
    """Reads the cells of one row."""

    def __init__(self, row: Cells, columns: ChatColumns, where: str) -> None:
        self.row, self.columns, self.where = row, columns, where

    def cell(self, field: str) -> Any:  # whatever the row holds
        """Return the cell of a field of `ChatColumns`; None: it is missing. Raises: UnknownName: no such column."""
        column = getattr(self.columns, field)
        if column is None:
            return None
        if field in self.columns.model_fields_set:
            check_column(self.row, column, self.where)
        value = self.row.get(column)
        return None if is_absent(value) else value

    def text(self, field: str) -> str | None:
        """Return the text of a cell; None: it is missing."""
        value = self.cell(field)
        return None if value is None else read_text(value, f"column {getattr(self.columns, field)}", self.where)

    def required(self, field: str) -> Any:  # whatever the row holds
        """Return a cell. Raises: InvalidInput: it is missing."""
        value = self.cell(field)
        if value is None:
            raise refusal(f"column {getattr(self.columns, field)}", "hold a value", "nothing", self.where)
        return value

    def number(self, column: str | None) -> float | None:
        """Return the number of a column; None: it is missing. Raises: InvalidInput: it is no finite number."""
        if column is None:
            return None
        check_column(self.row, column, self.where)
        value = self.row[column]
        if is_absent(value):
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise refusal(f"column {column}", "be a finite number", value, self.where)
        return number

    def id(self) -> str | None:
        """Return the id of the conversation; None: the row has none."""
        value = self.cell("id")
        return None if value is None else str(value)

    def tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools of the conversation."""
        value = self.cell("tools")
        return () if value is None else read_tools(value, where=self.where)

    # ---- forms -------------------------------------------------------------------------------------------------------

    def entries(self, form: ChatForm, tools: Mapping[str, ToolSpec]) -> list[_Entry]:
        """Return the messages of the row."""
        if media := next((key for key in MEDIA if not is_absent(self.row.get(key))), None):
            raise refusal("row", "hold text only", f"a column {media}", self.where)
        form = self._form() if form is ChatForm.AUTO else form
        if form is ChatForm.ALPACA:
            entries = self._alpaca()
        elif form is ChatForm.PROMPT_COMPLETION:
            entries = self._prompt_completion(tools)
        else:
            entries = self._list(self._messages(form), tools, form)
        system = self.text("system")
        if system is None:
            return entries
        if entries and entries[0].message.role is Role.SYSTEM:
            must, got = "be empty in a row whose messages begin with a system message", system
            raise refusal(f"column {self.columns.system}", must, got, self.where)
        return [_Entry(Message(role=Role.SYSTEM, content=system)), *entries]

    def _form(self) -> ChatForm:
        if self._listed() is not None:
            return _form_of(read_list(self._listed(), "messages", self.where))
        if self.cell("prompt") is not None and self.cell("completion") is not None:
            return ChatForm.PROMPT_COMPLETION
        if self.cell("instruction") is not None and self.cell("output") is not None:
            return ChatForm.ALPACA
        must = "hold messages, prompt and completion, or instruction and output"
        do = "name the columns with columns: {...}"
        if not is_absent(preferred := self.row.get("chosen")):
            do = f"learn the chosen answers with columns: {_columns_of_chosen(preferred, self.cell('prompt'))}"
        raise InvalidInput.of("row", must, f"columns {', '.join(self.row)}", where=self.where, do=do)

    def _listed(self, form: ChatForm = ChatForm.AUTO) -> Any:  # whatever the row holds
        if self.columns.messages is not None:
            return self.cell("messages")
        names = (*_MESSAGES[1:], _MESSAGES[0]) if form is ChatForm.SHAREGPT else _MESSAGES
        return next((value for name in names if not is_absent(value := self.row.get(name))), None)

    def _messages(self, form: ChatForm) -> Any:  # whatever the row holds
        value = self._listed(form)
        if value is None:
            column = self.columns.messages or " or ".join(_MESSAGES)
            raise refusal(f"column {column}", "hold messages", "nothing", self.where)
        return value

    def _list(self, value: object, tools: Mapping[str, ToolSpec], form: ChatForm = ChatForm.AUTO) -> list[_Entry]:
        """Read a list of messages, or a single one."""
        listed = [value] if isinstance(value, Mapping) else read_list(value, "messages", self.where)
        if form in _ENTRIES and (other := _form_of(listed)) is not form and not _has_role(listed, form):
            do = f"set form: {other}, or correct the row"
            raise InvalidInput.of("messages", f"have entries of {_ENTRIES[form]}", listed, where=self.where, do=do)
        is_sharegpt = (_form_of(listed) if form is ChatForm.AUTO else form) is ChatForm.SHAREGPT
        entries: list[_Entry] = []
        for index, data in enumerate(listed):
            where = f"message {index} of {self.where}"
            if is_sharegpt:
                messages = read_sharegpt(data, where=where)
            else:
                messages = (read_openai(data, where=where, tools=tools),)
            trains = _may_train(data, where)
            entries += (_Entry(message, trains) for message in messages)
        return entries

    def _prompt_completion(self, tools: Mapping[str, ToolSpec]) -> list[_Entry]:
        prompt, completion = self.required("prompt"), self.required("completion")
        if isinstance(prompt, str):
            entries = [_Entry(Message(role=Role.USER, content=prompt))]
        else:
            entries = [_Entry(entry.message, trains=False) for entry in self._list(prompt, tools)]
        if isinstance(completion, str):
            return [*entries, _Entry(Message(role=Role.ASSISTANT, content=completion))]
        answers = self._list(completion, tools)
        if answers and answers[0].message.role is not Role.ASSISTANT:
            what, must = f"column {self.columns.completion}", "begin with an assistant message"
            do = f"name whole conversations with columns: {{messages: {self.columns.completion}}}"
            raise InvalidInput.of(what, must, f"role {answers[0].message.role}", where=self.where, do=do)
        return entries + answers

    def _alpaca(self) -> list[_Entry]:
        history = self.cell("history")
        pairs = [] if history is None else [*read_list(history, "history", self.where)]
        parts = [self.required("instruction"), self.text("input")]
        instruction = "\n".join(read_text(part, "instruction", self.where) for part in parts if part is not None)
        entries: list[_Entry] = []
        for pair in [*pairs, (instruction, self.required("output"))]:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise refusal("history", "hold pairs of an instruction and an answer", pair, self.where)
            question, answer = (read_text(text, "text of an Alpaca row", self.where) for text in pair)
            entries.append(_Entry(Message(role=Role.USER, content=question)))
            entries.append(_Entry(Message(role=Role.ASSISTANT, content=answer)))
        return entries


def check_column(row: Cells, column: str, where: str) -> None:
    """Check that a row has a column. Raises: UnknownName: it has none; near names are listed."""
    if column not in row:
        do = suggestion(column, row, otherwise="name one of them")
        raise UnknownName.of("column", f"be one of {', '.join(row)}", repr(column), where=where, do=do)


def _columns_of_chosen(preferred: object, prompt: object) -> str:
    """Return the columns with which the chosen answers of a preference row are read."""
    first = preferred[0] if isinstance(preferred, list) else None
    if isinstance(first, Mapping) and first.get("role") != Role.ASSISTANT:
        return "{messages: chosen}"
    return "{completion: chosen}" if prompt is not None else "{prompt: QUESTION, completion: chosen}"


def _has_role(listed: Sequence[Any], form: ChatForm) -> bool:  # of whatever the row holds
    """Return whether the first entry of a row that is read as OpenAI's has a role, besides fields of ShareGPT."""
    return form is ChatForm.OPENAI and isinstance(listed[0], Mapping) and not is_absent(listed[0].get("role"))


def _form_of(listed: Sequence[Any]) -> ChatForm:  # of whatever the row holds
    first = listed[0] if listed else None
    is_sharegpt = isinstance(first, Mapping) and first.get("from", first.get("value")) is not None
    return ChatForm.SHAREGPT if is_sharegpt else ChatForm.OPENAI


def _may_train(data: object, where: str) -> bool:
    """Return whether a message may train by its `weight` (0 or 1) and `train` (true or false)."""
    if not isinstance(data, Mapping):
        return True
    for key in ("weight", "train"):
        flag = data.get(key)
        if flag is not None and flag not in (0, 1):
            raise refusal(key, "be 0 or 1" if key == "weight" else "be true or false", flag, where)
    return data.get("weight") != 0 and data.get("train") != 0


# ---- rules of a conversation -----------------------------------------------------------------------------------------


def _check_order(messages: Sequence[Message], where: str) -> None:
    """Refuse an order of messages that an agent cannot play."""
    roles = [message.role for message in messages]
    if Role.ASSISTANT not in roles:
        raise refusal("conversation", "hold an assistant message", f"roles {', '.join(roles) or 'none'}", where)
    first = next((role for role in roles if role is not Role.SYSTEM), None)
    if first is not Role.USER:
        raise refusal("first message", "be of the user", f"role {first}", where)
    for index, (before, role) in enumerate(zip([None, *roles], roles, strict=False)):
        place = f"message {index} of {where}"
        if role is Role.SYSTEM and index:
            raise refusal("system message", "be the first message", f"message {index}", place)
        if role is before is Role.ASSISTANT:
            must = "follow a message of the user or of a tool"
            raise refusal("assistant message", must, "one after another assistant message", place)


def _check_calls(messages: Sequence[Message], trained: Sequence[bool], tools: Sequence[ToolSpec], where: str) -> None:
    """Refuse results without a call, and calls to learn of tools that a conversation with tools does not have."""
    names = {spec.name for spec in tools}
    calls, ids = 0, set[str | None]()
    for index, message in enumerate(messages):
        place = f"message {index} of {where}"
        if message.role is Role.TOOL:
            if not calls:
                raise refusal("tool message", "follow a tool call", "no call before it", place)
            if message.tool_call_id is not None and None not in ids and message.tool_call_id not in ids:
                raise refusal("tool_call_id", "be the id of a call before it", message.tool_call_id, place)
            continue
        calls, ids = len(message.tool_calls), {call.id for call in message.tool_calls}
        for call in message.tool_calls:
            if trained[index] and names and call.name not in names:
                raise refusal("tool call", f"name one of the tools {', '.join(sorted(names))}", call.name, place)


def _trained(entries: Sequence[_Entry], train_on: TrainOn, where: str) -> tuple[bool, ...]:
    """Return which messages a policy learns. Raises: InvalidInput: none, or one that says nothing."""
    places = [index for index, entry in enumerate(entries) if entry.message.role is Role.ASSISTANT]
    places = [index for index in places[-1 if train_on == "last" else 0 :] if entries[index].trains]
    if not places:
        got = f"weight 0 or train false on {'the last one' if train_on == 'last' else 'all of them'}"
        raise refusal("conversation", "hold an assistant message to learn", got, where)
    for index in places:
        message = entries[index].message
        if not (message.content or message.thinking or message.tool_calls):
            place = f"message {index} of {where}"
            raise refusal("assistant message", "have content, thinking or a tool call", "none", place)
    return tuple(index in places for index in range(len(entries)))


# ---- rows to leave out -----------------------------------------------------------------------------------------------

_COMPARISON = re.compile(r"\s*([^<>=!]*[^<>=!\s])\s*(>=|<=|==|!=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


class RowFilter:
    """A comparison of a column with a number, such as `score >= 0.5`. A row without a number does not pass."""

    def __init__(self, expression: str) -> None:
        """Read the comparison. Raises: InvalidInput: it is none."""
        match = _COMPARISON.fullmatch(expression)
        if match is None:
            do = "write it as `score >= 0.5`"
            raise InvalidInput.of("keep", "compare a column with a number", expression, where="chat data", do=do)
        self.column, name, number = match.groups()
        self._compare, self._number = _OPERATORS[name], float(number)

    def passes(self, row: Cells, *, where: str) -> bool:
        """Return whether a row passes. Raises: InvalidInput: it has no such column, or no number in it."""
        value = _RowReader(row, ChatColumns(), where).number(self.column)
        return value is not None and self._compare(value, self._number)
