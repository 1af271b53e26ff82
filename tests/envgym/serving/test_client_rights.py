"""The operator of a server decides what its clients choose; by default they choose nothing."""

import re
from contextlib import closing
from http import HTTPStatus
from pathlib import Path

import pytest

import envgym
from envgym.cli.main import main
from envgym.core.serialize import task_to_json
from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput, UnknownName
from envgym.serving import wire
from envgym.serving.server import EnvServer
from envgym.serving.templates import ClientRights, Templates
from tests.support.env_server import COUNTER, SESSION, ask, make, message_of, opening, running_server

ARITHMETIC = "math/arithmetic-v0"
STDIO = "code/stdio-v0"


@pytest.mark.parametrize(
    "settings",
    [
        {"sandbox": "local", "unsafe": True},
        {"unsafe": True},
        {"source": "/etc/passwd"},
        {"source": "passwd"},
        {"cpu_s": 1e9},
        {"max_turns": 1},
        {"render_mode": "ansi"},
        {"parties": {"user": "os:system"}},
    ],
)
def test_a_client_chooses_no_setting_by_default(settings: dict[str, object]) -> None:
    templates = Templates([STDIO], {})
    with pytest.raises(InvalidInput, match=r"setting \w+ of code/stdio-v0 must be left to the server"):
        templates.get(STDIO, settings)
    assert templates.known(STDIO, settings) is None


@pytest.mark.parametrize("value", [None, 1, [], "x", [["level", 3]]])
def test_settings_that_are_no_mapping_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"settings of math/arithmetic-v0 must be a mapping"):
        Templates([ARITHMETIC], {}).get(ARITHMETIC, value)


@pytest.mark.parametrize("path", [wire.DESCRIBE, wire.TASKS, wire.OPEN])
def test_no_route_makes_an_env_that_the_operator_did_not_allow(path: str) -> None:
    with running_server(ARITHMETIC) as server:
        data = {**opening(server, ARITHMETIC), **wire.versions(), "settings": {"level": 3}}
        status, reply = ask(server, path, {**data, "split": "train", "start": 0, "count": 1})
    assert status == HTTPStatus.BAD_REQUEST
    assert "setting level of math/arithmetic-v0 must be left to the server, which gives its own" in message_of(reply)


def test_the_operators_value_may_be_repeated_by_a_client() -> None:
    with running_server(ARITHMETIC, settings={"level": 3, "digits": 2}) as server:
        for settings in ({}, {"level": 3}, {"level": 3, "digits": 2}):
            with closing(make(server, ARITHMETIC, **settings)) as env:
                assert env.reset(seed=0).info["envgym"].task.id == own_task(level=3, digits=2).id
        with pytest.raises(InvalidInput, match=r"setting level of math/arithmetic-v0 must be left to the server"):
            make(server, ARITHMETIC, level=2)


def own_task(**settings: object) -> Task:
    with closing(envgym.make(ARITHMETIC, **settings)) as env:
        task: Task = env.reset(seed=0).info["envgym"].task
        return task


def test_an_allowed_setting_takes_what_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secrets").write_text("x", encoding="utf-8")
    templates = Templates([ARITHMETIC], {}, ClientRights(["level", "kinds"]))
    for settings in ({"level": 3}, {"level": 3, "kinds": "word"}, {"kinds": ["word", "expression"]}):
        assert templates.get(ARITHMETIC, settings).env_id == ARITHMETIC
    for value in ("secrets", "../secrets", "/etc/passwd", "~/x", "a:b", "http://a", "", "x" * 65, {"a": 1}, [["/"]]):
        with pytest.raises(InvalidInput, match=r"setting kinds of math/arithmetic-v0 must be numbers, true, false, or"):
            templates.get(ARITHMETIC, {"kinds": value})


@pytest.mark.parametrize(
    "name", ["unsafe", "sandbox", "source", "data", "databases", "corpus", "parties", "retriever_url"]
)
def test_a_setting_that_reaches_outside_cannot_be_left_to_clients(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"settings of clients must name no files, places on the network or sandbox"):
        Templates([ARITHMETIC], {}, ClientRights([name]))


@pytest.mark.parametrize(
    "words, sentence",
    [
        (("--client-setting", "dgits"), r"got 'dgits' \(--client-setting\); did you mean digits\?"),
        (
            ("--client-setting", "level", "--client-setting", "Level"),
            r"got 'Level' \(--client-setting\); did you mean l",
        ),
        (("--client-setting", "data"), r"must name no files, places on the network or sandbox, got data \("),
        (("--accept", ARITHMETIC + '={"dgits": 3}'), rf"got 'dgits' \(--accept {ARITHMETIC}\); did you mean digits\?"),
    ],
)
def test_a_setting_that_no_served_environment_takes_is_refused_at_start(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", ARITHMETIC, *words, "--port", "0"]) == 2
    assert re.search(sentence, capsys.readouterr().err)


def test_a_setting_of_one_of_several_environments_can_be_left_to_clients() -> None:
    templates = Templates([ARITHMETIC, COUNTER], {}, ClientRights(["digits"]))
    assert templates.get(ARITHMETIC, {"digits": 2}).env_id == ARITHMETIC
    with pytest.raises(UnknownName, match="keyword argument must be a known name, got 'digits'"):
        templates.get(COUNTER, {"digits": 2})


def test_accepted_settings_are_accepted_as_a_whole() -> None:
    variants = {ARITHMETIC: [{"level": 3, "digits": 2}]}
    templates = Templates([ARITHMETIC], {}, ClientRights(variants=variants))
    assert templates.get(ARITHMETIC, {"digits": 2, "level": 3}).env_id == ARITHMETIC
    for settings in ({"level": 3}, {"level": 3, "digits": 3}, {"level": 3, "digits": 2, "calculator": False}):
        with pytest.raises(InvalidInput, match=r"must be left to the server"):
            templates.get(ARITHMETIC, settings)
    with pytest.raises(UnknownName, match=r"environment of this server must be a known name"):
        Templates([ARITHMETIC], {}, ClientRights(variants={"math/z3-v0": [{}]}))


@pytest.mark.parametrize("text", ["x", "x=1", "x={", 'x={"level":', "={}x", "x=[1]"])
def test_a_malformed_variant_is_one_sentence(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", ARITHMETIC, "--accept", text, "--port", "0"]) == 2
    assert "--accept must be an id, = and a JSON object, got" in capsys.readouterr().err


@pytest.mark.parametrize(
    "env_id", ["os:system", "posix:system", "/tmp/x.py:Env", "http://127.0.0.1:1/a", "x:math/a-v0"]
)
def test_an_env_that_is_not_served_is_not_imported(env_id: str) -> None:
    with running_server(COUNTER) as server:
        status, reply = ask(server, wire.OPEN, {**opening(server), "env": env_id})
    assert status == HTTPStatus.NOT_FOUND
    assert "environment of this server must be a known name" in message_of(reply)


def test_a_task_of_the_clients_own_needs_the_operators_word(server: EnvServer) -> None:
    own = Task(id="own", prompt="Say 7.", payload={"answer": "seven"}, split=Split.TRAIN)
    data = {**opening(server), "options": {"task": task_to_json(own)}}
    status, reply = ask(server, wire.OPEN, data)
    assert status == HTTPStatus.BAD_REQUEST
    assert "task own must be one of this server's, got one of the client's" in message_of(reply)
    with running_server(COUNTER, rights=ClientRights(own_tasks=True)) as other:
        assert ask(other, wire.OPEN, {**data, "digest": opening(other)["digest"]})[0] == HTTPStatus.OK


def test_a_session_is_not_given_to_whoever_opens_its_id(server: EnvServer) -> None:
    assert ask(server, wire.OPEN, opening(server))[0] == HTTPStatus.OK
    assert ask(server, wire.OPEN, opening(server))[0] == HTTPStatus.OK  # the same request, sent again
    status, reply = ask(server, wire.OPEN, {**opening(server), "seed": 1})
    assert status == HTTPStatus.BAD_REQUEST
    assert f"session must be a new id, got {SESSION[:8]}..." in message_of(reply)
    assert ask(server, wire.STEP, {"session": SESSION, "number": 1, "action": "go"})[0] == HTTPStatus.OK
    assert ask(server, wire.OPEN, opening(server))[0] == HTTPStatus.BAD_REQUEST


def test_a_session_is_not_given_to_whoever_forks_to_its_id(server: EnvServer) -> None:
    other = SESSION[::-1]
    ask(server, wire.OPEN, opening(server))
    ask(server, wire.OPEN, {**opening(server), "session": other, "seed": 1})
    status, reply = ask(server, wire.FORK, {"session": SESSION, "to": other, "keep": True})
    assert status == HTTPStatus.BAD_REQUEST
    assert "session must be a new id" in message_of(reply)
    third = "f" * 32
    assert [ask(server, wire.FORK, {"session": SESSION, "to": third})[0] for _ in range(2)] == [200, 200]
    assert ask(server, wire.FORK, {"session": other, "to": third})[0] == HTTPStatus.BAD_REQUEST
