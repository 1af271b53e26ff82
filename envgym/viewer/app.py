"""The routes of the viewer: JSON of runs, episodes that a reader plays, and static files."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from hmac import compare_digest
from http import HTTPStatus
from importlib.resources import files
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

from pydantic import ConfigDict, Field, ValidationError, validate_call

from envgym.errors import EnvgymError, UnknownName, sentence
from envgym.report.bundle import script_of, style_text
from envgym.runtime.error_log import log_error
from envgym.runtime.http.server import HttpReply, HttpRequest
from envgym.viewer.access import login_reply, query_token
from envgym.viewer.clip import Json, PartField, clip_episode, clip_turn, part_of
from envgym.viewer.compare import compare_runs, task_at_steps
from envgym.viewer.play import ActionRequest, EnvRequest, OpenRequest, PlayTable, env_card
from envgym.viewer.query import EpisodeQuery, GroupQuery, episode_rows, find_episodes, find_groups
from envgym.viewer.replies import error_reply, file_reply, json_reply
from envgym.viewer.viewed_run import ViewedRun

_SHARED_SCRIPTS: Final = (
    "dom", "format", "scale", "store", "palette", "frame", "lines", "tokens", "episode", "treemodel", "node",
)  # fmt: skip
"""Scripts of the report that the app uses as they are; `data` of the app stands in for the report's own."""
_SUBTYPES: Final = {"js": "javascript", "css": "css", "svg": "svg+xml"}
_Number = Annotated[int, Field(ge=0, lt=2**63)]
_REQUESTS = {model.__name__ for model in (ActionRequest, EnvRequest, EpisodeQuery, GroupQuery, OpenRequest)}
"""Names of what a request is read as; if anything else is not valid, the request is not at fault."""
_Route = TypeVar("_Route", bound=Callable[..., Any])


def _of_query(route: _Route) -> _Route:
    """Read the arguments of a route from the texts of a query, by their types."""
    _REQUESTS.add(route.__qualname__)
    return validate_call(config=ConfigDict(arbitrary_types_allowed=True))(route)


class ViewerApp:
    """The app over some runs."""

    def __init__(self, runs: Sequence[ViewedRun], *, problems: Sequence[str], token: str | None, page_token: str):
        """Show `runs`; the other arguments are those of `ViewerServer`.

        `page_token` is what the app's own pages must send with a request that has an effect.
        """
        self._runs, self._problems, self._token, self._page_token = runs, list(problems), token, page_token
        self.plays = PlayTable()

    def answer(self, request: HttpRequest) -> HttpReply:
        """Answer a request; what is asked wrongly is one sentence."""
        path = request.path
        try:
            method, reply = self._route(request)
            if request.method == method:
                return reply()
            return _no_address(path, HTTPStatus.METHOD_NOT_ALLOWED)
        except UnknownName as error:
            return error_reply(HTTPStatus.NOT_FOUND, str(error))
        except EnvgymError as error:
            return error_reply(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except Exception as error:  # noqa: BLE001  # a page that cannot be made says so
            if isinstance(error, ValidationError) and error.title in _REQUESTS:
                return error_reply(HTTPStatus.UNPROCESSABLE_ENTITY, _validation_sentence(error, path))
            log_error(error, f"the viewer could not answer {path}")
            got, do = f"{type(error).__name__}: {error}", "report it with the log of `envgym view`"
            return error_reply(HTTPStatus.INTERNAL_SERVER_ERROR, sentence("page", "be made", got, where=path, do=do))

    def _route(self, request: HttpRequest) -> tuple[str, Callable[[], HttpReply]]:
        """Return the method of an address, and what makes its reply."""
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        query.pop("token", None)  # it let the request in
        match unquote(request.path).split("/")[1:]:
            case [""]:
                return "GET", partial(self._page, request)
            case ["assets", name] if name in _asset_names():
                return "GET", lambda: file_reply(_asset(name), _SUBTYPES[name.rpartition(".")[2]])
            case ["api", "page"]:  # which no page of another origin can read
                return "GET", lambda: json_reply({"page_token": self._page_token})
            case ["api", "runs"]:
                return "GET", self._summaries
            case ["api", "runs", run, *names] if (name := "/".join(names)) in _RUN_ROUTES:
                return "GET", lambda: json_reply(_RUN_ROUTES[name](self._run(run, request.path), **query))
            case ["api", "compare"]:
                return "GET", lambda: self._comparison(request.path, **query)
            case ["api", "env"]:
                return "POST", lambda: json_reply(env_card(request.body))
            case ["api", "play"]:
                return "POST", lambda: json_reply(self.plays.begin(request.body))
            case ["api", "play", session]:
                return "POST", lambda: json_reply(self.plays.step(session, request.body))
        return request.method, lambda: _no_address(request.path, HTTPStatus.NOT_FOUND)

    def _page(self, request: HttpRequest) -> HttpReply:
        """Return the page; what it shows stands after the `#`."""
        if self._token and compare_digest(query_token(request.query).encode(), self._token.encode()):
            return login_reply(self._token, request.headers)
        return file_reply(_read("index.html"), "html")

    def _run(self, number: str, path: str) -> ViewedRun:
        if not (number.isascii() and number.isdecimal() and len(number) < 5 and int(number) < len(self._runs)):
            must, do = f"be one of 0..{len(self._runs) - 1}", "begin at the first page"
            raise UnknownName.of("run", must, number, where=path, do=do)
        return self._runs[int(number)]

    def _summaries(self) -> HttpReply:
        return json_reply({"runs": [run.summary() for run in self._runs], "problems": self._problems})

    @_of_query
    def _comparison(self, path: str, /, runs: Annotated[str, Field(pattern=r"^\d+(,\d+){0,15}$")]) -> HttpReply:
        return json_reply(compare_runs([self._run(number, path) for number in runs.split(",")]))


# ---- errors: one sentence each -----------------------------------------------------------------------------------


def _no_address(path: str, status: HTTPStatus) -> HttpReply:
    do = "begin at the first page"
    detail = sentence("address", "be one of the viewer", path, where=f"HTTP {status.value}", do=do)
    return error_reply(status, detail)


def _validation_sentence(error: ValidationError, path: str) -> str:
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"])) or "request"
    got = "nothing" if first["type"].startswith("missing") else first["input"]
    return sentence(name, f"be valid: {first['msg']}", got, where=path, do="correct the address")


# ---- one run -----------------------------------------------------------------------------------------------------


@_of_query
def _metrics(run: ViewedRun, /, after: int = -1) -> Json:
    rows = run.metrics()
    first = next((i for i, row in enumerate(rows) if row["step"] > after), len(rows))
    return {"rows": rows[first:], "num_rows": len(rows)}


def _episodes(run: ViewedRun, /, **fields: str) -> Json:
    query, columns = EpisodeQuery.model_validate(fields), run.columns
    positions = find_episodes(columns, query)
    page = positions[query.offset : query.offset + query.limit].tolist()
    return {
        "total": len(positions), "num_episodes": len(columns), "num_with_details": run.index.num_with_details,
        "episodes": episode_rows(columns, page),
    }  # fmt: skip


def _groups(run: ViewedRun, /, **fields: str) -> Json:
    total, rows = find_groups(run.columns, GroupQuery.model_validate(fields))
    return {"total": total, "groups": rows}


@_of_query
def _episode(run: ViewedRun, /, source: str, step: _Number, tree: str, leaf: _Number) -> Json:
    at = run.find(source, step, tree, leaf)
    group = run.index.columns.table["group"][at].as_py()
    return {**clip_episode(run.episode(source, step, tree, leaf)), "leaf": leaf, "group": group}


@_of_query
def _part(
    run: ViewedRun, /, source: str, step: _Number, tree: str, leaf: _Number, turn: _Number, field: PartField,
    segment: _Number = 0, start: _Number = 0,
) -> Json:  # fmt: skip
    return part_of(run.episode(source, step, tree, leaf), turn=turn, segment=segment, field=field, start=start)


@_of_query
def _tree(run: ViewedRun, /, source: str, step: _Number, tree: str) -> Json:
    """Return a tree; the tokens of its nodes come with `node`."""
    data = run.tree(source, step, tree)
    return {**data, "nodes": [{**node, "content": _outline(node["content"])} for node in data["nodes"]]}


def _outline(content: Mapping[str, Any]) -> Json:
    reply = content["observation"] or "".join(
        "".join(segment["token_strings"][:100]) for segment in content["segments"] if segment["origin"] == "TOOL"
    )
    return {**content, "segments": [], "action": "", "observation": reply[:240]}


@_of_query
def _node(run: ViewedRun, /, source: str, step: _Number, tree: str, node: int) -> Json:
    nodes = run.tree(source, step, tree)["nodes"]
    if not 0 <= node < len(nodes):
        raise UnknownName.of("node", f"be one of 0..{len(nodes) - 1}", node, where=tree, do="choose one of the tree")
    return clip_turn(nodes[node]["content"])


@_of_query
def _task(run: ViewedRun, /, source: str, task: str) -> Json:
    return task_at_steps(run.columns, source, task)


_RUN_ROUTES: Final[Mapping[str, Callable[..., Json]]] = {
    "metrics": _metrics, "evaluations": _of_query(ViewedRun.evaluations), "episodes": _episodes, "groups": _groups,
    "episode": _episode, "episode/part": _part, "tree": _tree, "node": _node, "task": _task,
}  # fmt: skip
"""Address below that of a run -> what makes its JSON, by the fields of the query."""


# ---- files -------------------------------------------------------------------------------------------------------


@cache
def _asset_names() -> frozenset[str]:
    own = files("envgym.viewer").joinpath("static", "assets").iterdir()
    return frozenset({"shared.js", "shared.css", *(item.name for item in own)})


def _asset(name: str) -> str:
    if name == "shared.js":
        return _shared_script()
    return style_text() if name == "shared.css" else _read(f"assets/{name}")


def _read(name: str) -> str:
    return files("envgym.viewer").joinpath("static", *name.split("/")).read_text(encoding="utf-8")


@cache
def _shared_script() -> str:
    first, *others = _SHARED_SCRIPTS
    return script_of(first) + _read("data.js") + "".join(map(script_of, others))
