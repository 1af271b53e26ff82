"""The rows of a data file as tasks: answers in the forms that their column has, and calls of functions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envgym.authoring import FileTasks, TaskDraft
from envgym.authoring.files import RowLeftOut
from envgym.authoring.tables import Row
from envgym.chats.fields import read_list
from envgym.chats.openai import listed_tools, read_call, read_tools
from envgym.core.json_types import JsonValue
from envgym.verifiers.extract import KEY_FORMS, NO_KEY

ANSWER, TOOLS = "answer", "tools"
"""Payload fields: the key of most verifiers, and the functions that an agent may call."""


class DataTasks(FileTasks):
    """The tasks of a data file; rows without an answer in its form are left out and counted."""

    def __init__(self, *args: Any, answer_form: str, **kwargs: Any) -> None:  # as FileTasks takes them
        """Prepare to read; `answer_form` is a name of `KEY_FORMS`."""
        super().__init__(*args, **kwargs)
        self._form = answer_form

    def _draft(self, row: Row, where: str) -> TaskDraft | None:
        draft = super()._draft(row, where)
        assert draft is not None, "columns leave no row out"
        payload = dict(draft.payload)
        if self._form != "alone":
            value = payload[ANSWER]
            payload[ANSWER] = KEY_FORMS[self._form](value) if isinstance(value, str) else None
            if payload[ANSWER] is None:
                raise RowLeftOut(NO_KEY[self._form])
        if TOOLS in payload:
            payload |= _read_functions(payload, where)
        return replace(draft, payload=payload)


def _read_functions(payload: Mapping[str, JsonValue], where: str) -> dict[str, JsonValue]:
    """Return functions and right calls in one form. Raises: InvalidInput: they cannot be read."""
    specs = read_tools(payload[TOOLS], where=where)
    fields: dict[str, JsonValue] = {TOOLS: listed_tools(specs)}
    if ANSWER in payload:
        by_name = {spec.name: spec for spec in specs}
        calls = [read_call(item, where=where, tools=by_name) for item in read_list(payload[ANSWER], ANSWER, where)]
        fields[ANSWER] = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return fields
