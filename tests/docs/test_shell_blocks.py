"""Every line of every shell block runs, made small, in the order of its page; a table says what is not run, and why."""

import io
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark import ParameterSet  # pytest does not export it

from envgym.cli.main import main
from envgym.runtime.cache import cache_directory
from tests.agents.policies.fake_server import running as fake_server
from tests.support.env_server import serve_envs
from tests.support.pages import BLOCKS, SMALL, blocks_of
from tests.support.retrievers import serve_retriever, served_url

SMALLER: Final = (
    (r"--model (smollm2|Qwen/\S+)", "--model tiny"),
    (r"^(envgym eval (?!.*--tasks|.*--resume|.*--limit|.*--rescore).*)$", r"\1 --tasks 3"),
    (r"--limit \d+", "--limit 2"),
    (r"--tasks \d+", "--tasks 3"),
    (r"--samples \d+", "--samples 2"),
    (r"--episodes \d+", "--episodes 16"),
    (r"\b(simulations|n)=\d+", r"\1=2"),
    (r"tokens_generated=\d+", "tokens_generated=64"),
    (r"demo-step-\d+", "demo-step-1"),  # the demo of the fixture has one step
    (r"step-\d{6}/", "step-000001/"),
    (r"--tree held-out/\d+/", "--tree held-out/1/"),
    # tiny's tokens are shorter, one for most characters
    (r"(smollm2_(?:stdio|miniwob).yaml)", r"\1 --set agent.max_context_tokens=4096 --set agent.max_turn_tokens=1024"),
    (r"--agent-set max_context_tokens=\d+", "--agent-set max_context_tokens=4096"),
    (r"^(envgym eval --endpoint .*--backend vllm.*)$", r"\1 --out runs/eval-served"),  # its model is tiny, too
    (r"^(envgym check .*)$", r"\1 -n 3"),
    (r"^(.*--launcher ray.*)$", r"\1 --set launch.ray.timeout_s=300"),  # a busy machine starts nodes slowly
)
"""What is changed in a line, so that it takes seconds."""
IN_ANOTHER_TEST: Final = {
    "docs/connect.md": "tests/docs/test_connect.py",
    "docs/first_task.md": "tests/docs/test_first_task.py",
    "docs/gpu_quickstart.md": "tests/docs/test_guides.py",
    "docs/use_the_model.md": "tests/docs/test_use_the_model.py",
    "examples/third_party_env/README.md": "tests/examples/test_third_party_env.py",
}
"""Pages whose lines another test runs in their order, between the other blocks of the page."""
NOT_RUN: Final = {
    r"make \w+": "makes an environment, or runs all tests; the README's tour trains what `make demo` trains",
    r"python3 -m venv|pip install": "installs packages from an index",
    r"source ": "changes the shell that it runs in",
    r"(\w+=\d+ )?(\.venv-vllm/bin/)?python -m (pytest|scripts.mutation)": "runs the tests",
    r"python scripts/(test_lanes|chaos|soak).py": "runs them, too",
    r"(\.venv-vllm/bin/)?python (-m )?benchmarks[./]": "takes hours; tests/benchmarks runs its parts",
    r"python scripts/plan_trees.py": "tests/trainer/test_method_runs.py runs it on a run with trees",
    r"torchrun ": "runs in tests/trainer/learner/ranks/test_runs.py",
    r"ray start": "tests/support/ray_cluster.py starts nodes",
    r"envgym train (one-node|four-nodes).yaml": "needs 8 GPUs and more; tests/docs/test_cluster.py reads the settings",
    r"docker compose": "tests/docs/test_docker.py runs the commands of its services",
    r"export ": "sets a variable of lines that are not run",
    r"docker build": "scripts/with_docker.py builds the images in the lane docker",
    r"docker buildx": "asks a registry",
    r"systemd-run": "needs a session of systemd; tests/envgym/sandbox/test_cgroup.py has what it is for",
    r"envgym policy-server|.*policy_servers": "runs in tests/envgym/cli/test_policy_server.py",
    r"envgym serve-retriever .*--index hybrid": "needs a model; tests/envgym/retrieval/test_dense.py",
    r"envgym serve-retriever|curl|.*retriever_url=": "runs in test_corpus_is_served_and_searched_as_the_page_says",
    r"(\w+=\S+ )?envgym view (?!.*--(export|tree|json|out))": "serves until interrupted; tests/docs/test_view.py",
    r"(\w+=\S+ )?envgym serve ": "runs in test_envs_are_served",
    r"envgym .*http://127.0.0.1:8700": "runs there too",
}
"""Why a line is not run by `test_lines_of_a_page_run`, or which test runs it."""
LANES: Final = {
    "processes": "run.name=served|runs/served",
    "ray": "--launcher ray",
    "vllm": "--backend vllm|(backend|server_engine)=vllm",
    "web": "smollm2_miniwob|web/",
}
"""Lane -> the lines that need its parts."""
REPLY: Final = {"choices": [{"message": {"role": "assistant", "content": "5"}, "finish_reason": "stop"}]}
"""Of the endpoint that the pages ask."""
PAGES: Final = sorted({block.page for block in BLOCKS if block.language == "bash"} - set(IN_ANOTHER_TEST))


def lines_of(page: str) -> list[str]:
    lines = [line for block in blocks_of(page, "bash") for line in block.commands]
    return [line for line in lines if not any(re.match(pattern, line) for pattern in NOT_RUN)]


def made_small(line: str) -> list[str]:
    """Return the words of a command that takes seconds."""
    for pattern, instead in SMALLER:
        line = re.sub(pattern, instead, line)
    words = shlex.split(line)
    is_training = words[1] in ("train", "sft")
    return words + [word for setting in SMALL for word in ("--set", setting)] if is_training else words


def run(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a command of envgym that must succeed, with an answer to play with, and return what it printed."""
    assert words[0] == "envgym"
    monkeypatch.setattr("sys.stdin", io.StringIO("5\n"))
    capsys.readouterr()
    code = main(words[1:])
    out, err = capsys.readouterr()
    assert code == 0, f"{shlex.join(words)}\n{out}{err}"
    return out


def lane_of(line: str) -> str:
    """Return the test lane that has what a line needs; an empty name: that of the pages."""
    return next((lane for lane, pattern in LANES.items() if re.search(pattern, line)), "")


def cases() -> list[ParameterSet]:
    """Return the lines of each page, those of another lane apart."""
    found = []
    for page in PAGES:
        for lane in ("", *LANES):
            lines = [line for line in lines_of(page) if lane_of(line) == lane]
            marks = [getattr(pytest.mark, lane)] if lane else []
            if lane in ("ray", "vllm", "web"):
                marks.append(pytest.mark.filterwarnings("ignore"))
            if lines:
                found.append(pytest.param(lines, id=f"{page} {lane}".strip(), marks=marks))
    return found


@pytest.fixture
def endpoint(lines: Sequence[str], request: pytest.FixtureRequest) -> Iterator[str]:
    """Serve what the lines ask for, if they do: a model by vLLM, else one that always answers the same."""
    if any(lane_of(line) == "vllm" for line in lines if "--endpoint" in line):
        yield request.getfixturevalue("vllm_url")
        return
    with fake_server() as server:
        server.script = [REPLY]
        yield server.url


@pytest.mark.docs
@pytest.mark.parametrize("lines", cases())
def test_lines_of_a_page_run(
    lines: Sequence[str],
    endpoint: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if lines[0] == "envgym train first.yaml":  # the page begins without it
        shutil.rmtree("runs/first")
    for line in lines:
        line = re.sub(r"http://\w+:8000/v1", endpoint, line)
        run(made_small(line), capsys, monkeypatch)


@pytest.mark.docs
def test_corpus_is_served_and_searched_as_the_page_says(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("bm25s")
    lines = [line for block in blocks_of("docs/search_envs.md", "bash") for line in block.commands]
    served, of_env, asked, played = (
        next(line for line in lines if part in line)
        for part in ("--port 8000", "serve-retriever search/", "curl", "retriever_url")
    )
    documents = []
    for line in (of_env, served):
        words = shlex.split(line.replace("--port 8000", ""))[2:]
        with serve_retriever(*words, cache=cache_directory()) as printed:
            url = served_url(printed.readline()).removesuffix("/retrieve")
            command = shlex.split(asked.replace("http://127.0.0.1:8000", url))
            answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            (hits,) = json.loads(answer)["result"]
            documents.append([hit["document"]["id"] for hit in hits])
            run(shlex.split(played.replace("http://127.0.0.1:8000", url)), capsys, monkeypatch)
    of_factbook, of_file = documents
    assert len(of_factbook) == 3
    assert of_file == ["baikal"]


@pytest.mark.docs
def test_envs_are_served(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for block in blocks_of("docs/env_servers.md", "bash") for line in block.commands]
    of_client = [line for line in lines if "http://127.0.0.1:8700" in line]
    assert len(of_client) >= 4
    with serve_envs(*shlex.split(next(line for line in lines if line.startswith("envgym serve ")))[2:]) as url:
        for line in of_client:
            run(made_small(line.replace("http://127.0.0.1:8700", url)), capsys, monkeypatch)


@pytest.mark.parametrize("pattern", NOT_RUN)
def test_lines_that_are_not_run_are_there(pattern: str) -> None:
    assert any(re.match(pattern, line) for block in BLOCKS if block.language == "bash" for line in block.commands)
