"""The databases of one episode, the tools that use them, and the calls so far."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel

from envgym.core.json_types import JsonObject
from envgym.core.signatures import Signature
from envgym.envs.tools._tau2 import source
from envgym.envs.tools._tau2.overlay import Overlay
from envgym.errors import ToolError
from envgym.tools import Tool, ToolSpec

Side = Literal["assistant", "user"]
"""Who calls a tool."""
Called = tuple[Side, str, str]
"""Side, tool and arguments as JSON."""
MAX_EXPRESSION = 500


class Tau2Databases:
    """Data base, tools and calls. A fork shares both databases until one of the two goes on."""

    def __init__(self, domain: str, db: Any, phone: Any = None, called: tuple[Called, ...] = ()) -> None:
        """Put tools on databases of the wheel, which are this object's own."""
        self.domain = domain
        self.called = called
        self._db, self._phone = db, phone
        self._is_shared = False
        self._env = self._equipped()

    @classmethod
    def of(cls, domain: str, initial: JsonObject | None) -> "Tau2Databases":
        base = source.database(domain)
        if domain == "telecom":
            databases = cls(domain, base.model_copy(deep=True), source.user_database().model_copy(deep=True))
        else:
            databases = cls(domain, type(base).model_construct(**{name: Overlay(table) for name, table in base}))
        for item in rows(initial, "initialization_actions"):
            databases._env.run_env_function_call(source.load("data_model.tasks:EnvFunctionCall")(**item))
        databases._settle()
        return databases

    def fork(self) -> "Tau2Databases":
        """Return an independent copy, at once; what is shared is taken apart before either of the two goes on."""
        twin = Tau2Databases.__new__(Tau2Databases)
        twin.__dict__.update(self.__dict__)
        self._is_shared = twin._is_shared = True
        return twin

    def run(self, side: Side, name: str, arguments: Mapping[str, Any]) -> object:
        """Run a tool, and let what follows from it happen. Raises: ToolError: it fails; what it said."""
        self._own()
        json_arguments = {key: _as_json(value) for key, value in arguments.items()}
        self.called = (*self.called, (side, name, json.dumps(json_arguments, sort_keys=True, default=str)))
        try:
            result = self._env.make_tool_call(name, requestor=side, **arguments)
            self._settle()
        except Exception as error:  # noqa: BLE001  # as in tau2-bench, whatever a tool raises is told to the caller
            raise ToolError(f"Error: {error}") from None
        return self._env.to_json_str(result)

    def holds(self, assertion: JsonObject) -> bool:
        self._own()
        check = source.load("data_model.tasks:EnvAssertion")(**assertion)
        return bool(self._env.run_env_assertion(check, raise_assertion_error=False))

    def differs_from(self, other: "Tau2Databases") -> bool:
        if self.domain == "telecom":
            pairs = [(self._db, other._db), (self._phone, other._phone)]
            return any(_dump(one) != _dump(two) for one, two in pairs)
        return any(_differ(table, getattr(other._db, name)) for name, table in self._db)

    def __reduce__(self) -> tuple[object, ...]:
        """Leave the shared database out: another process reads it itself."""
        own = self._db if self.domain == "telecom" else {name: dict(table.touched()) for name, table in self._db}
        return (_restore, (self.domain, own, self._phone, self.called))

    # ---- small parts -----------------------------------------------------------------------------------------------

    def _equipped(self) -> Any:
        tools = source.toolkit(self.domain)(self._db)
        if self._phone is None:
            return source.load("environment.environment:Environment")(self.domain, "", tools)
        phone = source.phone_toolkit()(self._phone)
        return source.load("domains.telecom.environment:TelecomEnvironment")(self.domain, "", tools, phone)

    def _own(self) -> None:
        """Copy what is shared with a fork, before anything can change it."""
        if not self._is_shared:
            return
        if self._phone is None:
            tables = {name: table.fork() for name, table in self._db}
            self._db = type(self._db).model_construct(**tables)
        else:
            self._db, self._phone = self._db.model_copy(deep=True), self._phone.model_copy(deep=True)
        self._env, self._is_shared = self._equipped(), False

    def _settle(self) -> None:
        """Let the phone see the line, and name bills that a tool has named at random."""
        self._env.sync_tools()
        if self.domain != "telecom":
            return
        bill_ids = {bill.bill_id for bill in source.database("telecom").bills}
        for number, bill in enumerate(self._db.bills):
            if bill.bill_id not in bill_ids and bill.bill_id != f"B{number}":
                owner = next(item for item in self._db.customers if item.customer_id == bill.customer_id)
                owner.bill_ids = [f"B{number}" if name == bill.bill_id else name for name in owner.bill_ids]
                bill.bill_id = f"B{number}"


def _restore(domain: str, own: Any, phone: Any, called: tuple[Called, ...]) -> Tau2Databases:
    base = source.database(domain)
    if domain != "telecom":
        own = type(base).model_construct(**{name: Overlay(table, own[name]) for name, table in base})
    return Tau2Databases(domain, own, phone, called)


@cache
def agent_tools(domain: str) -> Mapping[str, Tool]:
    """Return the agent's tools by name; they are called on a `Tau2Databases`."""
    return _tools(source.toolkit(domain), "assistant")


@cache
def phone_tools() -> Mapping[str, Tool]:
    """Return the user's tools by name; they are called on a `Tau2Databases`."""
    return _tools(source.phone_toolkit(), "user")


def _tools(kit: Any, side: Side) -> Mapping[str, Tool]:
    names = [name for name in dir(kit) if getattr(getattr(kit, name), "__tool__", False)]
    return {name: _tool(getattr(kit, name), name, side) for name in names}


def _tool(function: Any, name: str, side: Side) -> Tool:
    signature = Signature.read(function, where=name, skip=1)

    def call(owner: object, arguments: JsonObject) -> object:
        assert isinstance(owner, Tau2Databases), "the env's tool owner"
        checked = signature.check(name, arguments)
        if name == "calculate":
            _check_expression(str(checked["expression"]))
        return owner.run(side, name, checked)

    return Tool(spec=ToolSpec(name=name, description=signature.description, parameters=signature.parameters), call=call)


def _check_expression(text: str) -> None:
    if "**" in text or len(text) > MAX_EXPRESSION:
        raise ToolError(f"Error: expression must have at most {MAX_EXPRESSION} characters and no powers")


def _differ(one: Overlay, two: Overlay) -> bool:
    keys = one.touched().keys() | two.touched().keys()
    return any(key not in one or key not in two or _dump(one[key]) != _dump(two[key]) for key in keys)


def _dump(record: BaseModel) -> str:
    return json.dumps(record.model_dump(), sort_keys=True, default=str)


def _as_json(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return [_as_json(part) for part in value] if isinstance(value, list) else value


def rows(holder: JsonObject | None, name: str) -> list[dict[str, Any]]:
    items = (holder or {}).get(name) or []
    assert isinstance(items, list), "as the wheel's files are written"
    return [dict(item) for item in items if isinstance(item, Mapping)]
