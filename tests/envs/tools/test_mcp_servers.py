"""The MCP servers of `tools/mcp-v0` without their processes: messages, arguments, rules and refusals."""

import copy
import inspect
import json
import tomllib
from pathlib import Path

import pytest

from envgym.envs.tools._mcp.plans import ENDINGS, SERVERS, simulated
from envgym.envs.tools._mcp.servers import protocol
from envgym.envs.tools._mcp.servers.calendar import CalendarServer
from envgym.envs.tools._mcp.servers.files import FileServer
from envgym.envs.tools._mcp.servers.knowledge import KnowledgeServer
from envgym.envs.tools._mcp.servers.protocol import (
    Json,
    McpEndpoint,
    McpServer,
    Refusal,
    find_problem,
    input_schema,
    tools_of,
)
from envgym.envs.tools._mcp.servers.shop import StoreServer
from envgym.envs.tools._mcp.tasks import draw_task
from envgym.seeds import generator
from tests.support.mcp import random_call


def ask(endpoint: McpEndpoint, method: str, **params: object) -> list[Json]:
    """Send a request; return all messages that follow."""
    line = json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
    return list(endpoint.answer(line.encode()))


def files() -> FileServer:
    return FileServer({"files": {"/a/b.txt": {"path": "/a/b.txt", "text": "one"}}})


# ---- messages -----------------------------------------------------------------------------------------------------


def test_handshake_names_revision_server_and_capabilities() -> None:
    (answer,) = ask(McpEndpoint(FileServer), "initialize", protocolVersion="2025-11-25")
    result = answer["result"]
    assert (answer["id"], result["protocolVersion"], result["serverInfo"]["name"]) == (7, "2025-11-25", "files")
    assert result["capabilities"] == {"tools": {"listChanged": True}, "experimental": {"envgym/state": {}}}


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"7", b'{"jsonrpc": "2.0"}', b"\xff\n"])
def test_what_is_no_request_is_a_parse_error(line: bytes) -> None:
    (answer,) = McpEndpoint(FileServer).answer(line)
    assert (answer["id"], answer["error"]["code"]) == (None, -32700)


def test_unknown_methods_and_tools_are_errors_of_the_protocol() -> None:
    assert ask(McpEndpoint(FileServer), "resources/list")[0]["error"]["code"] == -32601
    assert ask(McpEndpoint(FileServer), "tools/call", name="fly")[0]["error"]["code"] == -32602


def test_notifications_are_not_answered() -> None:
    assert list(McpEndpoint(FileServer).answer(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')) == []


def test_change_of_tools_is_notified_before_the_response() -> None:
    endpoint = McpEndpoint(FileServer)
    before = ask(endpoint, "tools/list")[0]["result"]["tools"]
    notified, answered = ask(endpoint, "tools/call", name="start_editing", arguments={})
    assert notified == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    assert (answered["id"], answered["result"]["isError"]) == (7, False)
    after = ask(endpoint, "tools/list")[0]["result"]["tools"]
    assert {tool["name"] for tool in after} - {tool["name"] for tool in before} == {
        "write_file",
        "append_line",
        "move_file",
        "delete_file",
        "stop_editing",
    }
    assert len(ask(endpoint, "tools/call", name="search_files", arguments={"text": "x"})) == 1


def test_loaded_state_is_the_saved_one() -> None:
    endpoint, state = McpEndpoint(FileServer), {"tables": files().tables, "session": {"editing": True}}
    ask(endpoint, protocol.LOAD_STATE, state=state)
    assert ask(endpoint, protocol.SAVE_STATE)[-1]["result"] == {"state": state}


# ---- tools --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVERS)
def test_described_tools_are_the_methods(name: str) -> None:
    own = {"new_session", "groups", *vars(McpServer)}
    kind = SERVERS[name]
    methods = {
        key for key, member in vars(kind).items() if inspect.isfunction(member) and not key.startswith("_")
    } - own
    assert methods == set(tools_of(name))
    for tool in tools_of(name).values():
        assert [*input_schema(tool)["properties"]] == [*inspect.signature(getattr(kind, tool["name"])).parameters][1:]
    assert ENDINGS[name] in methods


@pytest.mark.parametrize("name", SERVERS)
def test_descriptions_say_what_each_argument_is(name: str) -> None:
    path = Path(protocol.__file__).with_name(f"{name}.toml")
    catalogue = tomllib.loads(path.read_text(encoding="utf-8"))
    assert set(catalogue) == {"instructions", "tools"}
    for tool in catalogue["tools"]:
        assert tool["description"].endswith(".")
        assert all(
            item["description"] and item["type"] in protocol._TYPES for item in tool.get("arguments", {}).values()
        )


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ({}, "the argument 'text' is missing"),
        ({"text": 3}, "the argument 'text' must be of type string, got 3"),
        ({"text": "x", "tex": "x"}, "there is no argument 'tex'"),
        ({"text": "x" * 4001}, "the argument 'text' must have at most 4000 characters"),
    ],
)
def test_wrong_arguments_are_refused_with_the_reason(arguments: Json, problem: str) -> None:
    with pytest.raises(Refusal, match=problem):
        files().call("search_files", arguments)


@pytest.mark.parametrize(
    "value, holds", [(5, True), (4, False), (720, True), (721, False), (True, False), (5.0, False)]
)
def test_numbers_lie_in_their_bounds(value: object, holds: bool) -> None:
    schema = input_schema(tools_of("calendar")["add_event"])
    event = {"title": "x", "day": "2026-09-07", "start": "09:00", "minutes": value, "room": "x"}
    assert (find_problem(schema, event) == "") is holds


@pytest.mark.parametrize("name", SERVERS)
def test_refused_calls_and_reading_calls_change_nothing(name: str) -> None:
    rng = generator("refusals", name)
    num_refused = num_read = 0
    for number in range(20):
        server = simulated(name, draw_task(generator("server", number), name, 1).payload["tables"])
        for _ in range(60):
            before = copy.deepcopy((server.tables, server.session))
            tool, arguments = random_call(server, rng)
            try:
                server.call(tool, arguments)
                is_refused = False
            except Refusal:
                is_refused = True
            is_read = not is_refused and tools_of(name)[tool].get("reads", False)
            num_refused, num_read = num_refused + is_refused, num_read + is_read
            if is_refused or is_read:
                assert (server.tables, server.session) == before
    assert num_refused > 50
    assert num_read > 20


def test_paths_name_a_file_in_a_folder() -> None:
    server = files()
    server.start_editing()
    for path in ("b.txt", "/b.txt", "/a//b.txt", "/a/../b.txt", "/a/"):
        with pytest.raises(Refusal, match="A path is like"):
            server.write_file(path, "x")
    assert server.list_folder("/") == ["/a/"]
    assert server.list_folder("/a/") == ["/a/b.txt"]


def test_events_of_a_calendar_do_not_overlap() -> None:
    event = {"owner": "Ann", "title": "x", "day": "2026-09-07", "room": "r", "start": 540, "minutes": 60}
    server = CalendarServer({"calendars": {"Ann": {}, "Bo": {}}, "events": {"E200": event}})
    server.open_calendar("Ann")
    for start, is_free in (("08:30", True), ("08:31", False), ("09:59", False), ("10:00", True)):
        twin = simulated("calendar", server.tables, server.session)
        assert isinstance(twin, CalendarServer)
        if is_free:
            assert twin.add_event("y", "2026-09-07", start, 30, "r")["event_id"] == "E201"
        else:
            with pytest.raises(Refusal, match="overlap with E200"):
                twin.add_event("y", "2026-09-07", start, 30, "r")
    assert server.move_event("E200", "2026-09-07", "09:30")["time"] == "09:30-10:30"
    server.open_calendar("Bo")
    with pytest.raises(Refusal, match="no event 'E200' in the calendar of Bo"):
        server.cancel_event("E200")


def test_orders_take_from_the_stock_and_cancelled_ones_return_it() -> None:
    lamp = {"name": "lamp", "category": "lighting", "price": 30, "stock": 5}
    server = StoreServer({"products": {"P1": lamp}, "customers": {"a@b": {"name": "A", "address": "x"}}, "orders": {}})
    assert server.groups() == {"guest"}
    server.sign_in("a@b")
    with pytest.raises(Refusal, match="Only 5 of P1"):
        server.add_to_cart("P1", 6)
    assert server.groups() == {"customer"}
    assert server.add_to_cart("P1", 2)["total"] == 60
    assert server.groups() == {"customer", "cart"}
    order = server.place_order()
    assert (order["total"], order["items"], server.tables["products"]["P1"]["stock"]) == (60, {"lamp": 2}, 3)
    assert server.groups() == {"customer"}
    server.cancel_order(order["order_id"])
    assert server.tables["products"]["P1"]["stock"] == 5
    with pytest.raises(Refusal, match="it is cancelled"):
        server.cancel_order(order["order_id"])


def test_pages_change_when_a_draft_is_published() -> None:
    page = {"title": "A", "section": "s", "lines": ["one", "two"]}
    server = KnowledgeServer({"pages": {"A": page, "B": {"title": "B", "section": "t", "lines": []}}})
    server.start_draft("A")
    server.replace_line(2, "three")
    server.set_section("t")
    assert server.read_page("A") == {"title": "A", "section": "s", "lines": ["one", "two"]}
    server.publish()
    assert server.read_page("A") == {"title": "A", "section": "t", "lines": ["one", "three"]}
    assert server.groups() == {"pages"}
