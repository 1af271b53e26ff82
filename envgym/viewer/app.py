"""The JSON routes of the viewer, and its static files."""

from collections.abc import Mapping, Sequence
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from envgym.error_log import log_error
from envgym.errors import EnvgymError, UnknownName, sentence
from envgym.report.bundle import script_of, style_text
from envgym.viewer.clip import PartField, clip_episode, clip_turn, part_of
from envgym.viewer.compare import compare_runs, task_at_steps
from envgym.viewer.play import add_play_routes
from envgym.viewer.query import EpisodeQuery, GroupQuery, episode_row, find_episodes, find_groups
from envgym.viewer.replies import WellFormedJson
from envgym.viewer.viewed_run import ViewedRun

_SHARED_SCRIPTS: Final = (
    "dom", "format", "scale", "store", "palette", "frame", "lines", "tokens", "episode", "treemodel", "node",
)  # fmt: skip
"""Scripts of the report that the app uses as they are; `data` of the app stands in for the report's own."""
_TYPES: Final = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}


def create_app(runs: Sequence[ViewedRun], *, problems: Sequence[str] = ()) -> FastAPI:
    """Return the app over some runs.

    Args:
        runs: what it shows, by their place in this sequence.
        problems: why others that were asked for are not among them, a sentence each.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, default_response_class=WellFormedJson)
    app.state.runs, app.state.problems = list(runs), list(problems)
    app.include_router(_runs)
    app.include_router(_episodes)
    add_play_routes(app)
    app.include_router(_files)
    app.add_exception_handler(EnvgymError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_query)
    app.add_exception_handler(HTTPException, _refuse_route)
    app.add_exception_handler(Exception, _fail)
    return app


# ---- errors: one sentence each -----------------------------------------------------------------------------------


def _refuse(request: Request, error: Exception) -> Response:
    status = HTTPStatus.NOT_FOUND if isinstance(error, UnknownName) else HTTPStatus.UNPROCESSABLE_ENTITY
    return WellFormedJson({"detail": str(error)}, status_code=status)


def _refuse_query(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "that is what it handles"
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][1:]) or "request"
    told = str(first["msg"]).removeprefix("Value error, ")
    detail = sentence(
        name, f"be valid: {told}", first.get("input", ""), where=request.url.path, do="correct the address"
    )
    return WellFormedJson({"detail": detail}, status_code=HTTPStatus.UNPROCESSABLE_ENTITY)


def _refuse_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "that is what it handles"
    do = "begin at the first page"
    detail = sentence("address", "be one of the viewer", request.url.path, where=f"HTTP {error.status_code}", do=do)
    return WellFormedJson({"detail": detail}, status_code=error.status_code)


def _fail(request: Request, error: Exception) -> Response:
    log_error(error, f"the viewer could not answer {request.url.path}")
    got, do = f"{type(error).__name__}: {error}", "report it with the log of `envgym view`"
    detail = sentence("page", "be made", got, where=request.url.path, do=do)
    return WellFormedJson({"detail": detail}, status_code=HTTPStatus.INTERNAL_SERVER_ERROR)


# ---- runs --------------------------------------------------------------------------------------------------------

_runs = APIRouter(prefix="/api")


def run_of(request: Request, run: int) -> ViewedRun:
    """Return a run by its number. Raises: UnknownName: there is none."""
    runs: list[ViewedRun] = request.app.state.runs
    if not 0 <= run < len(runs):
        where, do = request.url.path, "begin at the first page"
        raise UnknownName.of("run", f"be one of 0..{len(runs) - 1}", run, where=where, do=do)
    return runs[run]


Run = Annotated[ViewedRun, Depends(run_of)]


@_runs.get("/runs")
def get_runs(request: Request) -> Response:
    """Summaries of all runs."""
    summaries = [run.summary() for run in request.app.state.runs]
    return WellFormedJson({"runs": summaries, "problems": request.app.state.problems})


@_runs.get("/runs/{run}/metrics")
def get_metrics(run: Run, after: int = -1) -> Response:
    """Metrics of the steps after one."""
    rows = run.metrics()
    first = next((i for i, row in enumerate(rows) if row["step"] > after), len(rows))
    return WellFormedJson({"rows": rows[first:], "num_rows": len(rows)})


@_runs.get("/runs/{run}/evaluations")
def get_evaluations(run: Run) -> Response:
    """All evaluations."""
    return WellFormedJson(run.evaluations())


@_runs.get("/compare")
def get_comparison(request: Request, runs: Annotated[str, Query(pattern=r"^\d+(,\d+){0,15}$")]) -> Response:
    """Settings that differ, and the last metrics, of some runs."""
    chosen = [run_of(request, int(number)) for number in runs.split(",")]
    return WellFormedJson(compare_runs(chosen))


# ---- episodes ----------------------------------------------------------------------------------------------------

_episodes = APIRouter(prefix="/api/runs/{run}")


@_episodes.get("/episodes")
def get_episodes(run: Run, query: Annotated[EpisodeQuery, Query()]) -> Response:
    """One page of the table of episodes."""
    columns = run.columns
    found = find_episodes(columns, query)
    page = found[query.offset : query.offset + query.limit].tolist()
    return WellFormedJson({
        "total": len(found), "num_episodes": len(columns), "num_with_details": run.index.num_with_details,
        "episodes": [episode_row(columns, at) for at in page],
    })  # fmt: skip


@_episodes.get("/groups")
def get_groups(run: Run, query: Annotated[GroupQuery, Query()]) -> Response:
    """One page of the table of groups."""
    total, rows = find_groups(run.columns, query)
    return WellFormedJson({"total": total, "groups": rows})


@_episodes.get("/episode")
def get_episode(run: Run, source: str, step: int, tree: str, leaf: int) -> Response:
    """One episode; long parts are cut."""
    at = run.find(source, step, tree, leaf)
    columns = run.index.columns
    return WellFormedJson({
        **clip_episode(run.episode(source, step, tree, leaf)), "leaf": leaf, "group": episode_row(columns, at)["group"],
    })  # fmt: skip


@_episodes.get("/episode/part")
def get_part(
    run: Run, source: str, step: int, tree: str, leaf: int, turn: int, field: PartField, segment: int = 0,
    start: Annotated[int, Query(ge=0)] = 0,
) -> Response:  # fmt: skip
    """The next piece of a part that was cut."""
    episode = run.episode(source, step, tree, leaf)
    return WellFormedJson(part_of(episode, turn=turn, segment=segment, field=field, start=start))


@_episodes.get("/tree")
def get_tree(run: Run, source: str, step: int, tree: str) -> Response:
    """One tree; the tokens of its nodes come with `/node`."""
    data = run.tree(source, step, tree)
    nodes = [{**node, "content": _outline(node["content"])} for node in data["nodes"]]
    return WellFormedJson({**data, "nodes": nodes})


def _outline(content: Mapping[str, Any]) -> dict[str, Any]:
    reply = content["observation"] or "".join(
        "".join(segment["token_strings"][:100]) for segment in content["segments"] if segment["origin"] == "TOOL"
    )
    return {**content, "segments": [], "action": "", "observation": reply[:240]}


@_episodes.get("/node")
def get_node(run: Run, source: str, step: int, tree: str, node: int) -> Response:
    """The content of one node of a tree; long parts are cut."""
    return WellFormedJson(clip_turn(_node(run, source, step, tree, node)))


def _node(run: ViewedRun, source: str, step: int, tree: str, node: int) -> Mapping[str, Any]:
    nodes = run.tree(source, step, tree)["nodes"]
    if not 0 <= node < len(nodes):
        raise UnknownName.of("node", f"be one of 0..{len(nodes) - 1}", node, where=tree, do="choose one of the tree")
    content: Mapping[str, Any] = nodes[node]["content"]
    return content


@_episodes.get("/task")
def get_task(run: Run, source: str, task: str) -> Response:
    """The episodes of one task at every step at which they were saved."""
    return WellFormedJson(task_at_steps(run.columns, source, task))


# ---- files -------------------------------------------------------------------------------------------------------

_files = APIRouter()


@_files.get("/")
def get_page() -> Response:
    """The page; what it shows stands after the `#`."""
    return HTMLResponse(_read("index.html"))


@_files.get("/assets/shared.js")
def get_shared_scripts() -> Response:
    """The scripts of the report that the app uses, after the app's own data module."""
    return Response(_shared_script(), media_type="text/javascript")


@_files.get("/assets/shared.css")
def get_shared_style() -> Response:
    """The style sheet of the report."""
    return Response(style_text(), media_type="text/css")


@_files.get("/assets/{name}")
def get_file(name: str) -> Response:
    """A static file of the app."""
    if name not in _names():
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return Response(_read(f"assets/{name}"), media_type=_TYPES[name.rpartition(".")[2]])


@cache
def _names() -> frozenset[str]:
    return frozenset(item.name for item in files("envgym.viewer").joinpath("static", "assets").iterdir())


def _read(name: str) -> str:
    return files("envgym.viewer").joinpath("static", *name.split("/")).read_text(encoding="utf-8")


@cache
def _shared_script() -> str:
    first, *others = _SHARED_SCRIPTS
    return script_of(first) + _read("data.js") + "".join(map(script_of, others))
