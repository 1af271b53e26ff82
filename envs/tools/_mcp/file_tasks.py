"""Tasks on the server `files`."""

from collections.abc import Mapping, Sequence

from envgym.envs.tools._mcp.plans import McpTaskPlan
from envgym.envs.tools._mcp.sampling import WORDS, ServerSampler, TaskKind, request, suitable
from envgym.envs.tools._mcp.servers.protocol import Tables
from envgym.envs.tools._office.plans import PlannedCall, plan_call

NUM_FILES = 14
_START = plan_call("start_editing")


def _files(draws: ServerSampler) -> list[dict[str, str]]:
    owners = draws.people(4)
    files = []
    for topic in draws.some(WORDS["topics"], NUM_FILES):
        file = {"topic": topic, "owner": draws.one(owners), "state": draws.one(WORDS["states"])}
        file |= {"path": f"{draws.one(WORDS['folders'])}/{topic}.txt", "amount": str(draws.between(20, 900))}
        files.append(file)
    draws.tables = {"files": {file["path"]: {"path": file["path"], "text": _text(file)} for file in files}}
    return files


def _text(file: Mapping[str, str]) -> str:
    lines = ("Title", file["topic"].capitalize()), ("Owner", file["owner"]), ("Status", file["state"])
    return "\n".join([*(f"{key}: {value}" for key, value in lines), f"Amount: {file['amount']}"])


def _moved(goal: Tables, path: str, target: str) -> None:
    goal["files"][target] = {**goal["files"].pop(path), "path": target}


def move_file(draws: ServerSampler) -> McpTaskPlan:
    """Move a file that is named into another folder."""
    file = draws.one(_files(draws))
    folder, name = file["path"].rsplit("/", 1)
    other, goal = draws.one([item for item in WORDS["folders"] if item != folder]), draws.goal()
    _moved(goal, file["path"], f"{other}/{name}")
    return McpTaskPlan(
        texts=request("move_file", name=name, folder=folder, other=other),
        goal=goal,
        calls=(
            plan_call("list_folder", folder=folder),
            _START,
            plan_call("move_file", path=file["path"], target=f"{other}/{name}"),
        ),
    )


def append_line(draws: ServerSampler) -> McpTaskPlan:
    """Add a line to a file that is named."""
    file, line = draws.one(_files(draws)), draws.one(WORDS["lines"])
    path, goal = file["path"], draws.goal()
    goal["files"][path]["text"] += f"\n{line}"
    return McpTaskPlan(
        texts=request("append_line", line=line, path=path),
        goal=goal,
        calls=(plan_call("read_file", path=path), _START, plan_call("append_line", path=path, line=line)),
    )


def delete_of_owner(draws: ServerSampler) -> McpTaskPlan:
    """Delete the only file of an owner."""
    files = _files(draws)
    file = draws.one(files)
    suitable([item["owner"] for item in files].count(file["owner"]) == 1)
    goal = draws.goal()
    del goal["files"][file["path"]]
    return McpTaskPlan(
        texts=request("delete_of_owner", file=file),
        goal=goal,
        calls=(
            plan_call("search_files", text=f"Owner: {file['owner']}"),
            _START,
            plan_call("delete_file", path=file["path"]),
        ),
    )


def copy_amount(draws: ServerSampler) -> McpTaskPlan:
    """Write the amount of one file into a new one."""
    file = draws.one(_files(draws))
    title, path, goal = file["topic"].capitalize(), f"{draws.one(WORDS['folders'])}/amount.txt", draws.goal()
    goal["files"][path] = {"path": path, "text": file["amount"]}
    return McpTaskPlan(
        texts=request("copy_amount", path=path, title=title),
        goal=goal,
        calls=(
            plan_call("search_files", text=f"Title: {title}"),
            plan_call("read_file", path=file["path"]),
            _START,
            plan_call("write_file", path=path, text=file["amount"]),
        ),
    )


def archive_closed(draws: ServerSampler) -> McpTaskPlan:
    """Move the files of a folder that are closed."""
    files, folder, goal = _files(draws), draws.one(WORDS["folders"]), draws.goal()
    inside = sorted(item["path"] for item in files if item["path"].startswith(f"{folder}/"))
    closed = sorted(item["path"] for item in files if item["state"] == "closed" and item["path"] in inside)
    suitable(2 <= len(closed) < len(inside))
    targets = {path: f"/archive/{path.rsplit('/', 1)[1]}" for path in closed}
    for path, target in targets.items():
        _moved(goal, path, target)
    return McpTaskPlan(
        texts=request("archive_closed", folder=folder),
        goal=goal,
        calls=(
            plan_call("list_folder", folder=folder),
            plan_call("search_files", text="Status: closed"),
            _START,
            *(plan_call("move_file", path=path, target=target) for path, target in targets.items()),
        ),
    )


def total_of_owner(draws: ServerSampler) -> McpTaskPlan:
    """Add the amounts of an owner up, and delete the drafts among the files."""
    files = _files(draws)
    owner = draws.one(files)["owner"]
    own = sorted((item for item in files if item["owner"] == owner), key=lambda item: item["path"])
    drafts = [item["path"] for item in own if item["state"] == "draft"]
    suitable(2 <= len(own) <= 5 and drafts)
    total, path, goal = str(sum(int(item["amount"]) for item in own)), "/reports/total.txt", draws.goal()
    goal["files"][path] = {"path": path, "text": total}
    for draft in drafts:
        del goal["files"][draft]
    return McpTaskPlan(
        texts=request("total_of_owner", owner=owner, path=path),
        goal=goal,
        calls=(
            plan_call("search_files", text=f"Owner: {owner}"),
            *_read_all([item["path"] for item in own]),
            _START,
            plan_call("write_file", path=path, text=total),
            *(plan_call("delete_file", path=draft) for draft in drafts),
        ),
    )


def _read_all(paths: Sequence[str]) -> list[PlannedCall]:
    return [plan_call("read_file", path=path) for path in paths]


TASK_KINDS: Mapping[int, Sequence[TaskKind]] = {
    1: (move_file, append_line),
    2: (delete_of_owner, copy_amount),
    3: (archive_closed, total_of_owner),
}
