"""`code/repo-v0`: references mend, nothing else pays, the hidden tests stay hidden, forks part, hints are a guide's."""

import json
from dataclasses import replace
from typing import Any

import pytest

from envgym.agents.loop.agent import AgentSettings, assemble
from envgym.agents.protocols import FinishReason, Generation
from envgym.core.messages import GUIDE
from envgym.core.segments import Origin
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending, Scored
from envgym.envs.code import _repo_grading as grading
from envgym.envs.code import repo
from envgym.envs.code._repo_patch import apply_patch, read_patch, reverse_patch
from envgym.envs.code._repo_tasks import checkout, read_repo_task, read_tree, repositories
from envgym.envs.code.repo import Repositories
from envgym.errors import InvalidInput, ToolInfraFailure
from envgym.parsing import tool_call_action
from envgym.party import ScriptedParty
from envgym.sandbox import BwrapSandbox, Completed, Limits, RunEnding
from tests.envs.episodes import conformance
from tests.support.parrots import CharRenderer

TASKS: dict[str, Task] = {
    task.id: task
    for source in [Repositories().tasks]
    for split in Split
    for task in (source.task(split, index) for index in range(source.size(split) or 0))
}
PRECEDENCE = "exprs/minus_is_weaker_than_power"


TestRepositories = pytest.mark.slow(conformance("code/repo-v0", num_tasks=1, levels=1, kinds="bug"))


def begun(task: str = PRECEDENCE, **settings: Any) -> Repositories:  # Any: the env's own arguments
    env = Repositories(**settings)
    env.reset(options={"task": TASKS[task]})
    return env


def said(env: Repositories, tool: str, **arguments: Any) -> str:  # Any: the tool's own arguments
    return str(env.step(tool_call_action(tool, **arguments)).observation)


def test_38_tasks_lie_in_6_repositories_and_whole_repositories_are_held_out() -> None:
    assert (len(TASKS), len(repositories())) == (38, 6)
    sides = {split: {task.metadata["repository"] for task in TASKS.values() if task.split is split} for split in Split}
    assert sides[Split.TEST] == {"slots", "switchyard"}
    assert not sides[Split.TEST] & sides[Split.TRAIN]
    assert {(task.metadata["kind"], task.metadata["level"]) for task in TASKS.values()} == {
        (kind, level) for kind in ("bug", "feature") for level in (1, 2, 3)
    }


@pytest.mark.parametrize("name", TASKS)
def test_hidden_tests_fail_before_the_reference_and_pass_after_it_and_all_others_hold_throughout(name: str) -> None:
    repair = read_repo_task(TASKS[name])
    assert len(repair.hints) == 3
    assert (
        checkout(repair.repository, repair.patch, Limits()).run("python3 -m unittest discover -s tests -t .").is_success
    )
    before = grading.grade(repair, _encoded(repair.files), BwrapSandbox())
    assert before.issue_share < 1.0, "the hidden tests must fail"
    assert before.other_share == 1.0, "those of other tasks must hold"
    after = grading.grade(repair, _encoded(repair.goal), BwrapSandbox())
    assert after.is_passed, "the reference must pass"
    changed = {path for path in repair.goal if repair.goal[path] != repair.files[path]}
    assert all(grading.is_source(path, repair.repository) for path in changed)


def _encoded(files: Any) -> dict[str, bytes]:
    return {path: text.encode() for path, text in files.items()}


@pytest.mark.parametrize("name", TASKS)
def test_a_patch_taken_back_and_applied_changes_nothing(name: str) -> None:
    whole = read_tree(str(TASKS[name].metadata["repository"]))
    hunks = read_patch(str(TASKS[name].payload["patch"]))
    assert apply_patch(apply_patch(whole, reverse_patch(hunks)), hunks) == whole
    with pytest.raises(InvalidInput, match="patch must fit the file"):
        apply_patch(whole, hunks)


def test_patches_by_hand() -> None:
    hunks = read_patch("--- a/x\n+++ b/x\n@@ -1,2 +1,3 @@\n a\n+b\n c\n@@ -9 +10 @@\n-y\n+z\n")
    assert [(hunk.start, hunk.old, hunk.new) for hunk in hunks] == [
        (0, ("a\n", "c\n"), ("a\n", "b\n", "c\n")),
        (8, ("y\n",), ("z\n",)),
    ]
    files = {"x": "a\nc\n3\n4\n5\n6\n7\n8\ny\n"}
    assert apply_patch(files, hunks)["x"] == "a\nb\nc\n3\n4\n5\n6\n7\n8\nz\n"
    assert [hunk.start for hunk in reverse_patch(hunks)] == [0, 9]
    with pytest.raises(InvalidInput, match="patch must hold a hunk, got hello"):
        read_patch("hello")


FAST = (PRECEDENCE, "slots/months", "switchyard/any_state")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in TASKS])
def test_oracle_mends_with_the_edit_tools(name: str) -> None:
    env = begun(name)
    while not (result := env.step(env.oracle())).terminated:
        assert result.info["envgym"].tool_errors == 0
    assert result.info["envgym"].reward == Scored(value=1.0, components={"issue": 1.0, "kept": 1.0})


def test_oracle_goes_on_from_where_somebody_else_has_been() -> None:
    env = begun()
    said(env, "write", path="exprs/parser.py", text="nothing")
    said(env, "shell", command="rm exprs/tokens.py; git checkout -q exprs/tokens.py")
    while not (result := env.step(env.oracle())).terminated:
        pass
    assert result.reward == 1.0


INIT = "exprs/__init__.py"
FORGED = json.dumps(
    {"own": [{"printed": "", "raised": None}] * 3 + [{"printed": "(-4, 0.5, -6, 3, 6)\n", "raised": None}]}
)
TRICKS = {
    "nothing": {},
    "tests that pass": {"tests/test_exprs.py": "", "tests/__init__.py": ""},
    "a conftest": {"conftest.py": "import os; os._exit(0)", "pytest.ini": "[pytest]\naddopts = --co"},
    "a sitecustomize": dict.fromkeys(("sitecustomize.py", "usercustomize.py"), "import os; os._exit(0)"),
    "another unittest": {"unittest.py": "", "doctest.py": "", "json.py": "", "exprs/json.py": "raise SystemExit"},
    "exit": {INIT: "import sys; sys.exit(0)"},
    "hard exit": {INIT: "import os; os._exit(0)"},
    "endless": {INIT: "while True: pass"},
    "no text": {INIT: "\udcff"},
    "patched builtins": {
        INIT: "import builtins, doctest, unittest, sys\nbuiltins.repr = lambda x: '(-4, 0.5, -6, 3, 6)'\n"
        "doctest.OutputChecker.check_output = lambda *a: True\nunittest.TestCase.assertEqual = lambda *a: None\n"
        "sys.displayhook = lambda value: None\nevaluate = parse = show = lambda *a: None"
    },
    "equal to all": {
        INIT: "class All:\n  def __eq__(self, other): return True\n  def __hash__(self): return 0\n"
        "  def __repr__(self): return '...'\nevaluate = parse = show = simplify = lambda *a: All()"
    },
    "forged results": {
        INIT: f"import os\nfor fd in range(1, 20):\n  try: os.write(fd, {FORGED!r}.encode())\n  except OSError: pass\n"
        "os._exit(0)"
    },
    "read from frames": {
        INIT: "import sys\nframe, found = sys._getframe(), []\nwhile frame:\n  found.append(repr(frame.f_locals))\n"
        "  frame = frame.f_back\nevaluate = parse = show = lambda *a: '\\n'.join(found)"
    },
    "mended outside of the source": {"exprs.py": "def evaluate(*a): return (-4, 0.5, -6, 3, 6)", "README.md": "-4"},
    "too large": {"exprs/large.py": "#" * 3 * 1024**2},
}


@pytest.mark.parametrize("trick", TRICKS)
def test_trick_pays_nothing_and_is_a_score(trick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = begun()
    monkeypatch.setattr(grading, "_LIMITS", replace(grading._LIMITS, cpu_s=1.0))
    for path, text in TRICKS[trick].items():
        env.state.shell.write(path, text.encode(errors="replace") if "\udcff" not in text else b"\xff\xfe")
    record = env.step("Done.").info["envgym"]
    assert isinstance(record.reward, Scored)
    assert record.reward.value == 0.0
    assert (record.ending, record.error) == (Ending.TERMINATED, None)


def test_only_python_files_of_the_package_are_graded_and_links_are_not() -> None:
    env = begun()
    env.step(
        tool_call_action(
            "shell", command="cp -r exprs /tmp/x; ln -sf /etc/passwd exprs/tokens.py; ln -s / exprs/root; ls"
        )
    )
    assert env.step("Done.").info["envgym"].reward.value == 0.0
    assert [path for path in ("exprs/a.py", "exprs/a/b.py", "exprs.py", "x/exprs/a.py", "exprs/a.txt")
            if grading.is_source(path, "exprs")] == ["exprs/a.py", "exprs/a/b.py"]  # fmt: skip


class Recorder:
    """A sandbox that keeps what it is asked to run."""

    def __init__(self, stdout: bytes) -> None:
        self.stdout, self.seen = stdout, b""

    def run(self, argv: Any, stdin: bytes = b"", files: Any = None, limits: Any = None) -> Completed:
        """Answer without running anything."""
        self.seen = stdin + " ".join(argv).encode()
        return Completed(
            stdout=self.stdout, stderr=b"", exit_code=0, ending=RunEnding.EXITED, seconds=0.1, peak_memory=1
        )

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("stdout", [b"", b"[]", b'{"own": 3}', b'{"own": [1, 2, 3]}', b"{" * 9999, FORGED.encode()])
def test_no_expected_output_goes_to_the_sandbox_and_nothing_said_there_is_believed(stdout: bytes) -> None:
    sandbox = Recorder(stdout)
    repair = read_repo_task(TASKS[PRECEDENCE])
    assert not grading.grade(repair, _encoded(repair.goal), sandbox).is_passed
    assert b'evaluate(\\"-2 ^ 2\\")' in sandbox.seen
    assert b"(-4, 0.5, -6, 3, 6)" not in sandbox.seen


def test_hidden_tests_are_nowhere_in_the_agents_sandbox() -> None:
    env = begun("larder/reading_is_a_use")
    look = "cat $(find /tmp -type f) /proc/[0-9]*/{cmdline,environ} 2>/dev/null | grep -a -c 'lambda: [1]/0'"
    assert said(env, "shell", command=look) == "0\n[exit code 1]"
    assert "lambda: 1/0" in read_repo_task(TASKS["larder/reading_is_a_use"]).checks
    assert (
        said(env, "shell", command="git log --format=%s; git show --stat | grep -c task") == "Import\n0\n[exit code 1]"
    )


def test_tools_by_hand() -> None:
    env = begun()
    assert said(env, "view", path="exprs/tree.py", first=1, last=3) == (
        '   1  """The parts of an expression."""\n   2  \n   3  from dataclasses import dataclass'
    )
    assert said(env, "view", path=".").startswith("README.md\nexprs/__init__.py\n")
    assert said(env, "view", path="tests/") == "tests/__init__.py\ntests/test_exprs.py"
    assert said(env, "search", text="UNARY", path="exprs").startswith("exprs/parser.py:7: UNARY = 4\n")
    assert said(env, "write", path="notes/a.txt", text="one\ntwo\n") == "Wrote notes/a.txt, 2 lines."
    assert said(env, "replace", path="notes/a.txt", old="two", new="2") == "Replaced in notes/a.txt, line 2."
    assert said(env, "shell", command="cd notes; cat a.txt; false") == "one\n2\n[exit code 1]"
    assert said(env, "shell", command="pwd; git status --short") == "/tmp/work/notes\n?? ./"
    assert said(env, "run_tests").endswith("Ran 9 tests\n\nOK")


@pytest.mark.parametrize(
    "tool, arguments, answer",
    [
        ("edit", {"path": "x"}, "There is no tool 'edit'. The tools are: view("),
        (
            "replace",
            {"path": "exprs/tree.py", "old": "frozen", "new": ""},
            "The old text is found 6 times in exprs/tree",
        ),
        (
            "replace",
            {"path": "exprs/tree.py", "old": "no such", "new": ""},
            "The old text is found not in exprs/tree.py",
        ),
        ("replace", {"path": "exprs/tree.py", "old": "", "new": "x"}, "The old text is found not in exprs/tree.py"),
        ("view", {"path": "../secret"}, "'../secret' is not a path inside the directory."),
        ("view", {"path": "/etc/passwd"}, "'/etc/passwd' is not a path inside the directory."),
        ("view", {"path": "nothing.py"}, "There is no file nothing.py."),
        ("view", {"path": "exprs/tree.py", "first": 999}, "exprs/tree.py has 51 lines; there is none from 999 to 51."),
        ("write", {"path": "exprs", "text": ""}, "exprs is a directory, not a file."),
        ("search", {"text": ""}, "Search for a text that is not empty"),
        ("search", {"text": "zzz"}, "'zzz' is nowhere in ."),
        ("shell", {"command": "exit 3"}, "[exit code 3]"),
        ("shell", {"command": "kill -9 -1"}, "[ended by SIGNALED]\n[the directory is as before: the command ended its"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(tool: str, arguments: dict[str, Any], answer: str) -> None:
    env = begun()
    shown = said(env, tool, **arguments)
    assert shown.startswith(answer), shown


def test_commands_share_a_budget_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repo, "MAX_COMMAND_S", 0.001)
    env = begun()
    assert said(env, "shell", command="echo a") == "a"
    assert said(env, "shell", command="echo a").startswith("Your commands took 0.001 seconds: there are no more.")
    assert said(env, "run_tests").startswith("Your commands took")


def test_forks_go_on_independently() -> None:
    env = begun()
    said(env, "shell", command="cd exprs; echo '# a' >> tree.py")
    twin = env.fork()
    said(twin, "shell", command="rm tree.py")
    assert said(env, "shell", command="tail -1 tree.py") == "# a"
    while not (result := env.step(env.oracle())).terminated:
        pass
    assert (result.reward, twin.step("Done.").reward) == (1.0, 0.0)


def test_hints_come_with_the_issue_and_after_failed_attempts_as_words_of_a_guide() -> None:
    repair = read_repo_task(TASKS[PRECEDENCE])
    first = Repositories(guidance=2).reset(options={"task": TASKS[PRECEDENCE]}).observation
    assert [hint in first for hint in repair.hints] == [True, True, False]
    env = begun(attempts=4, coached=True, guidance=1)
    shown = [env.step("Done.").observation for _ in range(3)]
    assert shown[0] == (f"The hidden tests of the issue do not pass. Attempts left: 3.\n\nHint: {repair.hints[1]}")
    assert [repair.hints[2] in text for text in shown] == [False, True, True]
    (message,) = shown[0].messages  # type: ignore[attr-defined]  # an Observation
    assert message.name == GUIDE
    plain = begun(attempts=2).step("Done.").observation
    assert (plain, plain.messages[0].name) == ("The hidden tests of the issue do not pass. Attempts left: 1.", None)  # type: ignore[attr-defined]
    guided = begun(attempts=2, coached=True, parties={"guide": ScriptedParty(["Think of powers."])})
    assert guided.step("Done.").observation.endswith("\n\nHint: Think of powers.")


def test_words_of_a_guide_are_injected_and_do_not_train() -> None:
    agent = assemble(AgentSettings(), CharRenderer())
    env = begun(attempts=2, coached=True)
    generation = Generation(
        token_ids=(1,),
        behavior_logprobs=(0.0,),
        raw_logprobs=(0.0,),
        finish_reason=FinishReason.STOP,
        policy_version=0,
    )
    hinted = agent.extend([], generation, env.step("Done.").info["envgym"].observation, ())
    assert {segment.origin for segment in hinted.segments} == {Origin.INJECTED, Origin.TEMPLATE}
    assert not any(segment.trains for segment in hinted.segments)
    listed = agent.extend(
        [], generation, begun().step(tool_call_action("view", path=".")).info["envgym"].observation, ()
    )
    assert Origin.INJECTED not in {segment.origin for segment in listed.segments}


def test_a_dead_sandbox_makes_the_reward_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*arguments: object) -> None:
        raise ToolInfraFailure("the sandbox is dead")

    env = begun()
    monkeypatch.setattr(BwrapSandbox, "run", dead)
    assert env.step("Done.").info["envgym"].ending is Ending.ERROR_TOOL_INFRA
