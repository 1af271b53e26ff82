"""What stands outside the package agrees with it: continuous integration, the citation, the page on versions."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

import envgym
from envgym.report.data import SCHEMA_VERSION as REPORT_SCHEMA
from envgym.runs.directory import SCHEMA_VERSION as RUN_SCHEMA

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read_yaml(name: str) -> Any:  # a YAML tree
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_ci_makes_targets_that_exist_on_every_python_of_the_package() -> None:
    matrix = read_yaml(".github/workflows/ci.yml")["jobs"]["make"]["strategy"]["matrix"]
    prefix = "Programming Language :: Python :: 3."
    supported = [f"3.{item.removeprefix(prefix)}" for item in PROJECT["classifiers"] if item.startswith(prefix)]
    assert matrix["python"] == supported == ["3.11", "3.12", "3.13"]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(matrix["target"]) <= set(targets)
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_make_check_builds_the_documentation_with_strict_links() -> None:
    done = subprocess.run(["make", "-n", "check"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert "mkdocs build --strict" in done.stdout
    links = {
        "absolute_links": "warn",
        "unrecognized_links": "warn",
        "anchors": "warn",
    }  # a warning fails a strict build
    assert links.items() <= read_yaml("mkdocs.yml")["validation"].items()


def test_citation_is_of_this_version() -> None:
    citation = read_yaml("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()  # what the format requires
    assert citation["version"] == PROJECT["version"] == envgym.__version__
    assert citation["license"] == PROJECT["license"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]


def test_page_on_versions_has_the_numbers_of_the_code() -> None:
    page = (ROOT / "docs/versions.md").read_text(encoding="utf-8")
    for told in (
        f"| package | `envgym.__version__` | {envgym.__version__} |",
        f"| run directory | `schema` in `run.json` | {RUN_SCHEMA} |",
        f"| report | `schema_version` in the page's data | {REPORT_SCHEMA} |",
    ):
        assert told in page, told
