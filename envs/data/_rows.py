"""The rows of a data file as tasks: answers in the forms that their column has, and calls of functions."""

from collections.abc import Mapping
from dataclasses import replace
from string import ascii_uppercase
from typing import Any

from envgym.authoring import ColumnNames, FileTasks, TaskDraft
from envgym.authoring.files import RowLeftOut
from envgym.authoring.tables import Row, Source
from envgym.chats.fields import read_list
from envgym.chats.openai import listed_tools, read_call, read_tools
from envgym.core.json_types import JsonValue
from envgym.verifiers.extract import KEY_FORMS, NO_KEY

ANSWER, OPTIONS, TOOLS = "answer", "options", "tools"
"""Payload fields: the key of most verifiers, the texts to choose from, and the functions that an agent may call."""


class DataTasks(FileTasks):
    """The tasks of a data file; rows without an answer in its form are left out and counted."""

    def __init__(
        self, source: Source, columns: ColumnNames, *, answer_form: str, show_options: bool, **kwargs: Any
    ) -> None:  # kwargs as FileTasks takes them
        """Prepare to read; `answer_form` is a name of `KEY_FORMS`."""
        super().__init__(source, columns, **kwargs)
        self._form, self._shows_options = answer_form, show_options

    def _draft(self, row: Row, where: str) -> TaskDraft | None:
        draft = super()._draft(row, where)
        assert draft is not None, "columns leave no row out"
        payload = dict(draft.payload)
        if self._form != "alone":
            value = payload[ANSWER]
            is_text = isinstance(value, str | int) and not isinstance(value, bool)
            payload[ANSWER] = KEY_FORMS[self._form](str(value)) if is_text else None
            if payload[ANSWER] is None:
                raise RowLeftOut(NO_KEY[self._form])
        if TOOLS in payload:
            payload |= _read_functions(payload, where)
        return replace(draft, payload=payload)

    def _shown(self, draft: TaskDraft) -> TaskDraft:
        options = draft.payload.get(OPTIONS)
        if not self._shows_options or not isinstance(options, list):
            return draft
        listing = "".join(f"\n{letter}. {text}" for letter, text in zip(ascii_uppercase, options, strict=False))
        prompt = _with_text(draft.payload["prompt"], f"\n{listing}")
        return replace(draft, prompt=f"{draft.prompt}\n{listing}", payload={**draft.payload, "prompt": prompt})


def _with_text(prompt: JsonValue, text: str) -> JsonValue:
    """Return a prompt of a payload with a text at its end."""
    if not isinstance(prompt, list):
        return f"{prompt}{text}"
    *before, last = prompt
    assert isinstance(last, Mapping), "a message"
    content = last["content"]
    parts = [*content, {"type": "text", "text": text}] if isinstance(content, list) else f"{content}{text}"
    return [*before, {**last, "content": parts}]


def _read_functions(payload: Mapping[str, JsonValue], where: str) -> dict[str, JsonValue]:
    """Return functions and right calls in one form. Raises: InvalidInput: they cannot be read."""
    specs = read_tools(payload[TOOLS], where=where)
    fields: dict[str, JsonValue] = {TOOLS: listed_tools(specs)}
    if ANSWER in payload:
        by_name = {spec.name: spec for spec in specs}
        calls = [read_call(item, where=where, tools=by_name) for item in read_list(payload[ANSWER], ANSWER, where)]
        fields[ANSWER] = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return fields
