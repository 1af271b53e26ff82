"""Episodes in containers: shells, users, limits, forks, verification, and what fails in one sentence."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from envgym.core.turns import Ending, Invalid, Scored
from envgym.env import NoOracle
from envgym.envs.code import _harbor_verify
from envgym.envs.code._harbor_tasks import DEFAULT_FOLDER
from envgym.errors import EnvFailure, ForkUnsupported
from envgym.parsing import tool_call_action
from tests.envs.harbor.conftest import Begin, leftovers
from tests.support.containers import bash, hand_in, solve
from tests.support.env_server import wait_until
from tests.support.task_folders import DOCKERFILE, TEST, TOML, write_task

if TYPE_CHECKING:
    from docker import APIClient

pytestmark = pytest.mark.docker
SHIPPED = sorted(path.name for path in Path(DEFAULT_FOLDER).iterdir() if path.is_dir())
ONE = Scored(value=1.0)
ZERO = Scored(value=0.0)
NUM_EPISODES = int(os.environ.get("ENVGYM_SOAK_RUNS", "30"))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_solution_of_a_task_that_ships_solves_it_and_an_empty_answer_does_not(begin: Begin, name: str) -> None:
    right, wrong = solve(begin(task=name)), hand_in(begin(task=name))
    assert isinstance(right, Scored)
    assert isinstance(wrong, Scored)
    assert (right.value, wrong.value) == (1.0, 0.0)
    assert len(right.components) == (5 if name == "merge-configs" else 0)


def test_a_part_of_the_work_gets_a_part_of_the_reward(begin: Begin) -> None:
    env = begin(task="merge-configs")
    bash(env, """echo '{"plugins": ["search", "cart", "mail"], "region": {"name": "north"}}' > merged.json""")
    parts = {"reward": 0.25, "nested": 0.0, "removed": 0.0, "plugins": 1.0, "form": 0.0}
    assert hand_in(env) == Scored(value=0.25, components=parts)


GROUP = "cd /srv/share; chgrp -R gardeners .; find . -type d -exec chmod 2770 {} +; find . -type f -exec chmod 660 {} +"
HOSTILE = {
    "deep brackets": ("merge-configs", """python3 -c "print('[' * 100000)" > merged.json"""),
    "a pipe": (
        "share-folder",
        f"{GROUP}; chmod 600 secret.txt; rm plans/a.txt; mkfifo -m 660 plans/a.txt; chgrp gardeners plans/a.txt",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_files_that_a_program_cannot_read_get_nothing(begin: Begin, case: str) -> None:
    name, command = HOSTILE[case]
    env = begin(task=name)
    bash(env, command)
    reward = hand_in(env)
    assert isinstance(reward, Scored), reward
    assert reward.value == 0.0


@pytest.mark.parametrize("command", ["rm -rf /app", "rm -f /bin/bash", "mv /bin/sh /bin/dash /tmp"])
def test_a_machine_that_cannot_run_the_tests_any_more_gets_nothing(begin: Begin, tmp_path: Path, command: str) -> None:
    env = begin(write_task(tmp_path))
    bash(env, command)
    assert hand_in(env) == ZERO


def test_a_directory_that_the_tests_cannot_enter_gets_nothing(begin: Begin, tmp_path: Path) -> None:
    env = begin(write_task(tmp_path, dockerfile=DOCKERFILE + "RUN mkdir -p /app && chown agent /app\nUSER agent\n"))
    bash(env, "chmod 000 /app")
    assert hand_in(env) == ZERO


# ---- the agent's side


def test_bash_keeps_directory_variables_functions_and_jobs(begin: Begin, tmp_path: Path) -> None:
    env = begin(write_task(tmp_path))
    assert bash(env, "pwd; x=5; export y=6; f() { echo $x$y; }; cd /tmp; sleep 50 & echo ok") == "/app\nok"
    assert bash(env, "f; pwd; jobs | wc -l; false") == "56\n/tmp\n1\n[exit code 1]"
    assert bash(env, "exit 3") == "[exit code 3]\n[the shell ended; the next command has a new one]"
    assert bash(env, "echo $x; pwd") == "\n/app"
    assert bash(env, "cat; true") == "(no output)"


def test_run_begins_anew_and_write_file_writes(begin: Begin, tmp_path: Path) -> None:
    env = begin(write_task(tmp_path), tool="run")
    assert list(env.toolset()) == ["run", "write_file"]

    def call(tool: str, **arguments: str) -> str:
        return str(env.step(tool_call_action(tool, **arguments)).observation)

    assert call("run", command="cd /tmp; x=1; pwd") == "/tmp"
    assert call("run", command="echo $x; pwd") == "\n/app"
    assert call("write_file", path="made/answer 1.txt", text="a\n$b 'c'\n") == "Wrote made/answer 1.txt."
    assert call("run", command="cat 'made/answer 1.txt'") == "a\n$b 'c'"
    assert "cannot be written" in call("write_file", path="/proc/version", text="x")
    assert solve(begin(tmp_path / "answer", tool="run")) == ONE


def test_user_workdir_and_variables_are_those_of_the_task(begin: Begin, tmp_path: Path) -> None:
    toml = TOML + "workdir = '/srv'\nenv = {TEAM = '${TEAM_OF_TEST:-blue}'}\n"
    toml = toml.replace("[agent]", "[agent]\nuser = 'agent'").replace("[verifier]", "[verifier]\nenv = {KEY = 'k'}")
    test = '#!/bin/bash\n[ "$(id -un) $PWD $TEAM $KEY" = "root /srv blue k" ] && echo 1 > /logs/verifier/reward.txt\n'
    env = begin(write_task(tmp_path, toml=toml, test=test))
    assert bash(env, "id -un; pwd; echo $TEAM; echo $KEY.; ls -d /tests /solution 2>&1 | wc -l") == (
        "agent\n/srv\nblue\n.\n2"
    )
    assert "No such file" in bash(env, "ls /tests /solution")
    assert hand_in(env) == ONE


def test_a_test_script_needs_no_permission_and_may_be_of_another_shell(begin: Begin, tmp_path: Path) -> None:
    test = "#!/usr/bin/python3\nopen('/logs/verifier/reward.txt', 'w').write('0.5')\n"
    folder = write_task(tmp_path, test=test)
    (folder / "tests" / "test.sh").chmod(0o600)
    assert hand_in(begin(folder)) == Scored(value=0.5)


def test_a_solution_of_several_files_is_put_into_the_machine(begin: Begin, tmp_path: Path) -> None:
    folder = write_task(
        tmp_path, solution="cat /solution/key.txt > /app/answer.txt\n", files={"solution/key.txt": "42"}
    )
    assert solve(begin(folder)) == ONE


def test_a_task_without_a_solution_has_no_oracle(begin: Begin, tmp_path: Path) -> None:
    with pytest.raises(NoOracle, match=r"task must have a solution, got none"):
        begin(write_task(tmp_path, solution=None)).oracle()


def test_commands_end_at_their_limits_and_the_episode_goes_on(begin: Begin, tmp_path: Path) -> None:
    limits = {"command_s": 5.0, "output": 1000}
    env = begin(write_task(tmp_path), limits=limits)
    assert bash(env, "echo begun; sleep 60").startswith("begun\n[ended by WALL_TIME]")
    flood = bash(env, "head -c 100000 /dev/zero | tr '\\0' x")
    assert "[99000 bytes left out]" in flood
    bash(env, "echo 42 > answer.txt")
    assert hand_in(env) == ONE


def test_commands_are_refused_when_the_time_of_the_task_is_used(begin: Begin, tmp_path: Path) -> None:
    env = begin(write_task(tmp_path, toml="[agent]\ntimeout_sec = 5\n"))
    bash(env, "echo 42 > answer.txt")
    assert "[ended by WALL_TIME]" in bash(env, "sleep 60")
    assert bash(env, "ls") == "Your commands took 5 seconds: there are no more. Hand the work in."
    assert hand_in(env) == ONE


def test_at_the_last_turn_the_state_is_tested_as_it_is(begin: Begin, tmp_path: Path) -> None:
    env = begin(write_task(tmp_path), max_turns=2)
    bash(env, "echo 42 > answer.txt")
    record = env.step(tool_call_action("bash", command="ls")).info["envgym"]
    assert (record.ending, record.reward, str(record.observation)) == (Ending.TRUNCATED_TURNS, ONE, "answer.txt")


def test_hostile_commands_are_answered(begin: Begin, tmp_path: Path) -> None:
    env = begin(write_task(tmp_path))
    assert bash(env, "a\0b") == "It must have at most 100000 bytes, and no NUL."
    assert bash(env, "x" * 100_001) == "It must have at most 100000 bytes, and no NUL."
    assert "unexpected EOF" in bash(env, "((((")
    assert bash(env, "echo 'é\ud800'") == "é?"


# ---- forks


def test_forks_have_the_files_and_the_state_of_the_shell_and_part(begin: Begin, tmp_path: Path) -> None:
    env = begin(write_task(tmp_path))
    bash(env, "echo 42 > answer.txt; mkdir d; cd d; x='a b'; export y=2; f() { echo \"$x\" $y; }; set -o noclobber")
    twin = env.fork()
    try:
        assert bash(twin, "f; pwd") == "a b 2\n/app/d"
        assert "cannot overwrite existing file" in bash(twin, "echo 1 > ../answer.txt")
        bash(twin, "rm ../answer.txt")
        assert bash(env, "cat ../answer.txt; f") == "42\na b 2"
        assert (hand_in(twin), hand_in(env)) == (ZERO, ONE)
        env.fork().close()  # of an episode that is over
    finally:
        twin.close()


def test_a_fork_beside_a_program_in_the_background_is_refused(begin: Begin, tmp_path: Path) -> None:
    env = begin(write_task(tmp_path))
    bash(env, "sleep 100 &")
    with pytest.raises(ForkUnsupported, match="run no process"):
        env.fork()
    bash(env, "kill %1; wait")
    env.fork().close()


# ---- verification


def test_fresh_verification_sees_the_working_directory_and_nothing_else(begin: Begin, tmp_path: Path) -> None:
    listing = "{ cat /app/answer.txt /srv/x; ls -l /app/run.sh /app/link; } 2>&1"
    test = f"#!/bin/bash\n{listing} | grep -c . > /logs/verifier/reward.txt\n"
    env = begin(write_task(tmp_path, test=test), verification="fresh", reward_range=(0.0, 9.0))
    bash(env, "echo 42 > answer.txt; echo 42 > /srv/x; ln -s answer.txt link; echo > run.sh; chmod 700 run.sh")
    assert hand_in(env) == Scored(value=4.0)
    keep = TOML + "[metadata.envgym]\nverification = 'fresh'\nkeep = ['/srv']\n"
    env = begin(write_task(tmp_path, toml=keep))
    bash(env, "echo 42 > answer.txt")
    assert hand_in(env) == ZERO


def test_the_tests_are_those_of_the_begin_of_the_episode(begin: Begin, tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    env = begin(folder)
    (folder / "tests" / "link").symlink_to("/etc")
    assert solve(env) == ONE


def test_a_kept_path_may_be_made_by_the_agent(begin: Begin, tmp_path: Path) -> None:
    toml = TOML + "[metadata.envgym]\nverification = 'fresh'\nkeep = ['/app/made']\n"
    test = "#!/bin/bash\ncat /app/made/reward > /logs/verifier/reward.txt\n"
    env = begin(write_task(tmp_path, toml=toml, test=test))
    bash(env, "mkdir made; echo 1 > made/reward")
    assert hand_in(env) == ONE


def test_packing_that_takes_too_long_makes_the_reward_invalid(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = begin(write_task(tmp_path), verification="fresh")
    bash(env, "printf '#!/bin/sh\\nexec sleep 1000' > /usr/local/sbin/tar; chmod +x /usr/local/sbin/tar")
    monkeypatch.setattr(_harbor_verify, "_OWN_S", 1.0)
    reward = hand_in(env)
    assert isinstance(reward, Invalid)
    assert "kept path /app must be packed and unpacked within 1 s each" in reward.reason


INVALID = {
    "nothing is written": ("exit 1", "wrote no reward.txt and no reward.json"),
    "an empty file": ("> /logs/verifier/reward.txt", "must have 1 to 65536 bytes"),
    "no finite number": ("echo nan > /logs/verifier/reward.txt", "must be finite, got nan"),
    "a text": ("echo well > /logs/verifier/reward.txt", "must hold a number"),
    "a directory": ("mkdir /logs/verifier/reward.txt", "wrote no reward.txt"),
    "a link": ("ln -s /app/one /logs/verifier/reward.txt; echo 1 > /app/one", "wrote no reward.txt"),
    "a large file": ("head -c 2000000 /dev/zero > /logs/verifier/reward.txt", "must have 1 to 65536 bytes"),
    "no such program": ("nothing-of-this-name", "not found"),
    "they never end": ("sleep 1000", "must end within 2 s; they were stopped"),
}


@pytest.mark.parametrize("case", INVALID)
def test_tests_that_give_no_reward_make_it_invalid_with_the_reason(begin: Begin, tmp_path: Path, case: str) -> None:
    script, reason = INVALID[case]
    seconds = "2" if case == "they never end" else "30"
    folder = write_task(tmp_path, test=f"#!/bin/bash\n{script}\n", toml=f"[verifier]\ntimeout_sec = {seconds}\n")
    reward = hand_in(begin(folder))
    assert isinstance(reward, Invalid)
    assert (reward.cause, str(folder) in reward.reason) == (Ending.ERROR_ENV, True)
    assert reason in reward.reason


# ---- what fails at the start

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a command of the Dockerfile": (
        {"dockerfile": "FROM envgym-sandbox\nRUN echo no cake; exit 7\n"},
        "output: no cake",
    ),
    "a Dockerfile that needs the network": (
        {"dockerfile": "FROM envgym-sandbox\nUSER root\nRUN apt-get update && apt-get install -y cowsay\n"},
        "build_network=true",
    ),
    "a base that is not there": ({"dockerfile": "FROM no-such-base-of-a-test:1\n"}, "map its base by `base`"),
    "no Dockerfile at all": ({"dockerfile": "not a Dockerfile\n"}, "Dockerfile must build"),
    "an image that is not there": (
        {"dockerfile": None, "toml": "[environment]\ndocker_image = 'no-such-image-of-a-test:1'\n"},
        "machine must start",
    ),
    "an agent that the image does not know": (
        {"toml": "[agent]\nuser = 'nobody-of-this-name'\n"},
        "agent.user must be a user of the image, got nobody-of-this-name",
    ),
    "a verifier that the image does not know": (
        {"toml": "[verifier]\nuser = 'nobody-of-this-name'\n"},
        "nobody-of-this-name",
    ),
    "no program for the tests": ({"test": "#!/bin/no-such-shell\n"}, "have the program in the first line of test.sh"),
    "kept paths that are too large": (
        {
            "toml": "[metadata.envgym]\nverification = 'fresh'\n",
            "dockerfile": DOCKERFILE + "RUN mkdir -p /app && head -c 70000000 /dev/urandom > /app/weights\n",
        },
        "kept paths must fit limits.kept_mb, got /app cannot be packed into 67108864 bytes",
    ),
    "a variable of no name": ({"toml": "[verifier]\nenv = {'A=B' = 'x'}\n"}, "A=B"),
    "logs that are a link": ({"dockerfile": DOCKERFILE + "RUN ln -s /var/log /logs\n"}, "machine must allow the logs"),
    "a variable of the host": ({"toml": "[environment.env]\nA = '${NOT_THERE}'\n"}, "host_env"),
    "a health check that fails": (
        {"toml": "[environment.healthcheck]\ncommand = 'false'\ninterval_sec = 0\nretries = 2\n"},
        "healthcheck must succeed, got 2 failures",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_task_that_cannot_start_is_one_sentence_and_leaves_nothing(
    begin: Begin, tmp_path: Path, case: str, engine: "APIClient"
) -> None:
    parts, sentence = BROKEN[case]
    folder, before = write_task(tmp_path, **parts), leftovers(engine)
    with pytest.raises((EnvFailure, ValueError)) as error:
        begin(folder)
    assert sentence in str(error.value)
    assert str(folder) in str(error.value)
    assert leftovers(engine) == before


def test_a_base_is_mapped_and_a_health_check_that_succeeds_begins(begin: Begin, tmp_path: Path) -> None:
    toml = TOML + "[environment.healthcheck]\ncommand = 'test -e /app'\n"
    folder = write_task(tmp_path, toml=toml, dockerfile=DOCKERFILE.replace("envgym-sandbox", "ubuntu:24.04"))
    assert solve(begin(folder, base={"ubuntu:24.04": "envgym-sandbox"})) == ONE
    image = write_task(
        tmp_path, "image", dockerfile=None, toml="[environment]\ndocker_image = 'python:3'\nworkdir = '/app'\n"
    )
    (image / "tests" / "test.sh").write_text(TEST)
    assert hand_in(begin(image, base={"python:3": "envgym-sandbox"})) == ZERO


def test_episodes_in_a_row_leave_nothing(begin: Begin, tmp_path: Path, engine: "APIClient") -> None:
    env = begin(write_task(tmp_path))
    task, before, layers = env.task, leftovers(engine), len(engine.images(all=True))
    for number in range(NUM_EPISODES):
        env.reset(seed=number, options={"task": task})
        if number % 3 == 0:
            bash(env, "echo 42 > answer.txt; sleep 98765 &")
            wait_until(lambda: is_running("sleep", "98765"))
        if number % 3 != 1:
            assert hand_in(env) == (ONE if number % 3 == 0 else ZERO)
    env.close()
    assert len(leftovers(engine) - before) == 0
    assert len(engine.images(all=True)) == layers
    assert not is_running("sleep", "98765")


def is_running(*command: str) -> bool:
    """Return whether a process of this machine runs a command; those of containers are among them."""
    wanted = "".join(f"{word}\0" for word in command).encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            if path.read_bytes() == wanted:
                return True
    return False
