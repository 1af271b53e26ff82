"""A small MCP server on standard input and output, in the standard library alone; its words choose what it does.

`python mcp_program.py [hang | die | many | refuse-start | silent]`
"""

import json
import sys
import time
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
NOTHING = {"type": "object", "properties": {}}
CALLS: list[str] = []


def tools() -> list[dict[str, Any]]:
    listed = [
        {"name": "add", "description": "Add two numbers.", "inputSchema": NUMBER},
        {"name": "fail", "description": "Refuse.", "inputSchema": NOTHING},
        {"name": "big", "description": "Return 5 MB.", "inputSchema": NOTHING},
        {"name": "picture", "description": "Return a picture.", "inputSchema": NOTHING},
        {"name": "data", "description": "Return structured content.", "inputSchema": NOTHING},
        {"name": "calls", "description": "Count the calls so far.", "inputSchema": NOTHING},
        {"name": "grow", "description": "Offer one more tool.", "inputSchema": NOTHING},
        {"name": "hang", "description": "Never answer.", "inputSchema": NOTHING},
        {"name": "die", "description": "End.", "inputSchema": NOTHING},
    ]
    if "grow" in CALLS:
        listed.append({"name": "late", "description": "Has come.", "inputSchema": NOTHING})
    if MODE == "many":
        listed += [{"name": f"tool_{i}", "description": "One of many.", "inputSchema": NOTHING} for i in range(200)]
    return listed


def content(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == "hang":
        time.sleep(600)
    if name == "die":
        print("the disk is full", file=sys.stderr, flush=True)
        sys.exit(3)
    if name == "fail":
        return {"content": [text("no, thanks")], "isError": True}
    if name == "picture":
        return {"content": [{"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}]}
    if name == "data":
        return {"content": [], "structuredContent": {"answer": [1, 2]}}
    if name == "big":
        return {"content": [text("x" * 5_000_000)]}
    if name == "grow":
        send({"method": "notifications/tools/list_changed"})
    results = {"add": lambda: str(arguments["a"] + arguments["b"]), "calls": lambda: str(len(CALLS))}
    return {"content": [text(results.get(name, lambda: name)())]}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        info = {"name": "program", "version": "1"}
        capabilities = {"tools": {"listChanged": True}}
        return {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}
    if method == "tools/list":
        return {"tools": tools()}
    if method == "tools/call":
        if params["name"] not in [tool["name"] for tool in tools()]:
            return None
        CALLS.append(params["name"])
        return content(params["name"], params.get("arguments") or {})
    return {} if method == "ping" else None


def main() -> None:
    if MODE == "refuse-start":
        sys.exit("no licence")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or MODE == "silent":
            continue
        result = answer(message)
        if result is None:
            send({"id": message["id"], "error": {"code": -32601, "message": f"no {message['method']}"}})
        else:
            send({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
