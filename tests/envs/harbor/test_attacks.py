"""Attacks on the tests of a task: each gets 0 if the work is not done, and 1 if it is done all the same.

The agent has a user of its own (`shared`), or is root and the tests run in a new container (`fresh`).
"""

import tomllib
from pathlib import Path

import pytest

from envgym.core.turns import Invalid, Scored
from tests.envs.harbor.conftest import Begin
from tests.support.containers import bash, hand_in
from tests.support.task_folders import TOML, write_task

pytestmark = pytest.mark.docker
COMMANDS = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text(encoding="utf-8"))
ATTACKS, AS_ROOT = COMMANDS["any"], COMMANDS["root"]
ALSO_AS_ROOT = ("own tests", "logs as a link", "a daemon", "preload", "python start files", "killing everything")

CHECK = """
import subprocess
import sys

words = ["/usr/bin/setpriv", "--reuid=agent", "--regid=agent", "--clear-groups", "--", "/usr/bin/python3", "sum.py"]
try:
    done = subprocess.run(words, input="20 22", capture_output=True, text=True, timeout=6, cwd="/app")
except (OSError, subprocess.TimeoutExpired):
    sys.exit(1)
sys.exit(done.stdout != "42\\n")
"""
TEST = """#!/bin/bash
if /usr/bin/python3 -I /tests/check.py; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
DOCKERFILE = """FROM envgym-sandbox
USER root
RUN useradd --create-home --shell /bin/bash agent && mkdir /app && chown agent /app
WORKDIR /app
"""
SOLVE = "echo 'print(sum(map(int, input().split())))' > /app/sum.py"
"""Solves the task."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("attacks")
    toml = TOML + "memory_mb = 256\nstorage_mb = 300\n"
    files = {"tests/check.py": CHECK}
    write_task(
        root,
        "user",
        toml=toml.replace("[agent]", "[agent]\nuser = 'agent'"),
        dockerfile=DOCKERFILE,
        test=TEST,
        files=files,
    )
    fresh = toml + "[metadata.envgym]\nverification = 'fresh'\n"
    write_task(root, "root", toml=fresh, dockerfile=DOCKERFILE, test=TEST, files=files)
    return root


LIMITS = {"command_s": 10.0, "processes": 64}


def attacked(begin: Begin, folder: Path, command: str) -> float:
    """Return the reward after an attack; it must be valid."""
    env = begin(folder, limits=LIMITS)
    bash(env, command)
    reward = hand_in(env)
    assert isinstance(reward, Scored), reward
    return reward.value


@pytest.mark.parametrize("name", ATTACKS)
def test_an_agent_with_a_user_of_its_own_gets_nothing_by_an_attack(begin: Begin, folder: Path, name: str) -> None:
    assert attacked(begin, folder / "user", ATTACKS[name]) == 0.0


@pytest.mark.parametrize("name", [*ALSO_AS_ROOT, *AS_ROOT])
def test_an_agent_that_is_root_gets_nothing_by_an_attack_on_fresh_tests(begin: Begin, folder: Path, name: str) -> None:
    assert attacked(begin, folder / "root", (ATTACKS | AS_ROOT)[name]) == 0.0


HARMLESS = ["reward files", "own tests", "a daemon", "path", "functions", "preload", "profiles"]


@pytest.mark.parametrize("name", HARMLESS)
def test_work_that_is_done_is_paid_whatever_else_was_done(begin: Begin, folder: Path, name: str) -> None:
    for kind in ("user", "root"):
        assert attacked(begin, folder / kind, f"{SOLVE}\n{ATTACKS[name]}") == 1.0


def test_what_root_loads_into_every_program_is_emptied_in_shared_verification(begin: Begin, folder: Path) -> None:
    env = begin(folder / "root", verification="shared", limits=LIMITS)
    bash(env, ATTACKS["preload"])
    assert hand_in(env) == Scored(value=0.0)


def test_a_container_has_no_network_unless_task_and_setting_allow_it(begin: Begin, folder: Path) -> None:
    for settings in ({}, {"network": False}):
        env = begin(folder / "user", **settings)
        code = "import socket; socket.create_connection(('1.1.1.1', 53), 3)"
        assert "Network is unreachable" in bash(env, f'python3 -c "{code}"')
        assert bash(env, "ls /sys/class/net") == "lo"


def test_a_machine_that_dies_makes_the_reward_invalid_and_no_result(begin: Begin, folder: Path) -> None:
    env = begin(folder / "user")
    env.state.machine.close()
    assert isinstance(hand_in(env), Invalid)
