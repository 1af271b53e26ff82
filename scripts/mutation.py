"""Mutation testing: put one fault at a time into the code, and see whether its laws and worked examples notice.

    python -m scripts.mutation [--size 100] [--seed 14] [--strata NAME ...] [--again] [--least 0.9] [--out FILE]

`mutation.toml` says which files are changed, which tests have to notice, and which mutants are equivalent to the code.
Of each stratum as many are drawn, of each of its files in proportion to its mutants, by a hash of seed and mutant, so
that a change elsewhere leaves the sample as it is. Results are appended to a file of JSON lines as they come; what
stands there is not run again.

A server imports the libraries once and forks a process for each mutant, which imports the project with the fault in it.
"""

import argparse
import importlib
import json
import math
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tomllib
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

import hypothesis
import pytest

from scripts.mutants import Mutant, faulty_source, mutants

ROOT = Path(__file__).resolve().parent.parent
SURVIVED, EQUIVALENT = "survived", "equivalent"
_LANES = "not (slow or fuzz or peers or connect or vllm or web or docker or notebook or gpu)"
_OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-m", _LANES)
_LEAST_CPU_S, _CPU_FACTOR = 20.0, 2.0
"""A mutant may use so much more processor time than the tests without it, and at least that."""
_WALL_S = 1200.0
_MEMORY = 12 << 30
"""Bytes of address space that a mutant may take."""
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """Files to change, and the tests that have to notice."""

    name: str
    sources: Sequence[str]
    tests: Sequence[str]
    share: float = 1.0
    """Of the size asked for: less where the tests are slow, or the files few."""

    def files(self) -> list[str]:
        """Return the files, as paths from the root."""
        paths = {path for pattern in self.sources for path in ROOT.glob(pattern)}
        return sorted(path.relative_to(ROOT).as_posix() for path in paths)

    def test_files(self, excluded: Sequence[str]) -> list[str]:
        """Return the files of tests."""
        roots = [ROOT / name for name in self.tests]
        paths = {path for root in roots for path in ([root] if root.is_file() else root.rglob("test_*.py"))}
        return [name for name in sorted(path.relative_to(ROOT).as_posix() for path in paths) if name not in excluded]


class Verdict(NamedTuple):
    """What the tests said of one mutant."""

    status: str
    """`killed`, `timeout` or `survived`."""
    killed_by: str
    """The first test that failed."""
    cpu_s: float


class _Faulty(SourceFileLoader):
    """Loads a module as one of its mutants."""

    def __init__(self, name: str, path: str, number: int) -> None:
        super().__init__(name, path)
        self._number = number

    def get_code(self, fullname: str) -> CodeType:
        text = faulty_source(Path(self.path).read_text(encoding="utf-8"), self._number)
        with warnings.catch_warnings(action="ignore"):
            return compile(text, self.path, "exec")


class _Finder(MetaPathFinder):
    """Finds the faulty module before the file is found."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant, self._module = mutant, module_name(mutant.path)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._module else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Faulty(fullname, spec.origin, self._mutant.number)
        return spec


class _FirstFailure:
    """A plugin of pytest that remembers which test failed first, and has no example made smaller."""

    name = ""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        quick = [
            phase for phase in hypothesis.Phase if phase not in (hypothesis.Phase.shrink, hypothesis.Phase.explain)
        ]
        hypothesis.settings.register_profile("quick", hypothesis.settings.default, phases=quick)
        hypothesis.settings.load_profile("quick")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.name = self.name or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.name = self.name or report.nodeid


def main() -> int:
    """Run the sample, print what survived and a table; return 1 where too little was killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=100, help="mutants of each stratum")
    parser.add_argument("--seed", type=int, default=14, help="of the sample")
    parser.add_argument("--strata", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--again", action="store_true", help="run again what survived")
    parser.add_argument("--least", type=float, default=0.9, help="share that has to be killed")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "mutation.jsonl")
    options = parser.parse_args()
    table = tomllib.loads((Path(__file__).parent / "mutation.toml").read_text())
    strata = [Stratum(**x) for x in table["strata"]]
    if options.strata:
        strata = [stratum for stratum in strata if stratum.name in options.strata]
    equivalent = {(x["path"], x["function"], x["before"], x["after"]) for x in table["equivalent"]}
    for entry in left_behind(equivalent):
        print("equivalent, but no longer in the code:", *entry)
    verdicts = _read(options.out)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    _preload([name for stratum in strata for name in stratum.test_files(table["excluded"])])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results: list[tuple[str, Mutant, str]] = []
    with options.out.open("a") as out:
        for stratum in strata:
            sample = draw(stratum, size=options.size, seed=options.seed)
            tested = [mutant for mutant in sample if mutant.place not in equivalent]
            finished = {key for key, status in verdicts.items() if not (options.again and status == SURVIVED)}
            for mutant, verdict in run(stratum, [m for m in tested if m.key not in finished], table["excluded"]):
                verdicts[mutant.key] = verdict.status
                line = {"stratum": stratum.name} | dict(zip(Mutant.KEY, mutant.key, strict=True)) | verdict._asdict()
                print(json.dumps(line), file=out, flush=True)
            results += [(stratum.name, m, verdicts.get(m.key, EQUIVALENT)) for m in sample]
    return 0 if report(results) >= options.least else 1


def left_behind(equivalent: Collection[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the entries of equivalent mutants that the code has no more."""
    paths = {entry[0] for entry in equivalent}
    places = {mutant.place for path in paths for mutant in mutants(path, (ROOT / path).read_text(encoding="utf-8"))}
    return sorted(set(equivalent) - places)


def draw(stratum: Stratum, *, size: int, seed: int) -> list[Mutant]:
    """Return a sample of a stratum's mutants: of each file its share, and at least one."""
    by_file = [mutants(path, (ROOT / path).read_text(encoding="utf-8")) for path in stratum.files()]
    share = min(stratum.share * size / sum(map(len, by_file)), 1.0)

    def rank(mutant: Mutant) -> str:
        return sha256("\0".join((str(seed), *mutant.key)).encode()).hexdigest()

    return [mutant for of_file in by_file for mutant in sorted(of_file, key=rank)[: math.ceil(share * len(of_file))]]


def run(stratum: Stratum, sample: Sequence[Mutant], excluded: Sequence[str]) -> Iterator[tuple[Mutant, Verdict]]:
    """Yield what the tests say of each mutant; those run first that killed most of the file, then the newest."""
    if not sample:
        return
    tests, deselected = stratum.test_files(excluded), [f"--deselect={name}" for name in excluded if "::" in name]
    sound = attempt(None, [*tests, *deselected], limit_s=_WALL_S)
    if sound.status != SURVIVED:
        sys.exit(f"the tests of {stratum.name} must pass before anything is changed, got: {sound.killed_by}")
    limit_s, kills = max(_LEAST_CPU_S, _CPU_FACTOR * sound.cpu_s), Counter[tuple[str, str]]()
    for number, mutant in enumerate(sample, start=1):

        def usefulness(name: str, path: str = mutant.path) -> tuple[int, bool, float]:
            return kills[path, name], Path(path).stem in name, (ROOT / name).stat().st_mtime

        ordered = sorted(tests, key=usefulness, reverse=True)
        verdict = attempt(mutant, [*ordered, *deselected], limit_s=limit_s)
        kills[mutant.path, verdict.killed_by.partition("::")[0]] += 1
        print(f"{stratum.name} {number}/{len(sample)} {verdict.status} {mutant}", flush=True)
        yield mutant, verdict


def attempt(mutant: Mutant | None, options: Sequence[str], *, limit_s: float) -> Verdict:
    """Run tests in a process of their own, forked from this one, with the fault in its module."""
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_test, args=(mutant, options, limit_s, sender))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    process.start()
    sender.close()
    process.join(_WALL_S)
    if process.is_alive():
        os.killpg(process.ident or 0, signal.SIGKILL)
        process.join()
    cpu_s = round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, 1)
    killed_by = receiver.recv() if process.exitcode is not None and process.exitcode >= 0 else ""
    receiver.close()
    if process.exitcode == pytest.ExitCode.OK:
        return Verdict(SURVIVED, "", cpu_s)
    is_late = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
    return Verdict("timeout" if is_late else "killed", killed_by, cpu_s)


def _test(mutant: Mutant | None, options: Sequence[str], limit_s: float, sender: Connection) -> None:
    """Be the forked process."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit_s), math.ceil(limit_s) + 5))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    if mutant is not None:
        sys.meta_path.insert(0, _Finder(mutant))
    failure = _FirstFailure()
    code = pytest.main([*_OPTIONS, *options], plugins=[failure])
    sender.send(failure.name or str(code))
    os._exit(code)


def report(results: Sequence[tuple[str, Mutant, str]]) -> float:
    """Print what survived, and counts by stratum and by operator; return the share that was killed."""
    for _, mutant, status in results:
        if status == SURVIVED:
            print(f"survived: {mutant}")
    columns = ("killed", "timeout", SURVIVED, EQUIVALENT)
    for title, kind in (("stratum", 0), ("operator", 1)):
        counts: dict[str, Counter[str]] = {}
        for name, mutant, status in results:
            for row in ((name, mutant.operator)[kind], "all"):
                counts.setdefault(row, Counter())[status] += 1
        print(f"| {title} | mutants | {' | '.join(columns)} | share killed |", f"|{'---|' * 7}", sep="\n")
        for row, count in sorted(counts.items(), key=lambda item: item[0] == "all"):
            cells = [row, count.total(), *(count[column] for column in columns), f"{_share(count):.1%}"]
            print(f"| {' | '.join(map(str, cells))} |")
    return _share(Counter(status for *_, status in results))


def _share(count: Counter[str]) -> float:
    """Return the share that was killed of what can be."""
    return 1 - count[SURVIVED] / max(count.total() - count[EQUIVALENT], 1)


def _read(path: Path) -> dict[tuple[str, ...], str]:
    """Return the last verdict on each mutant."""
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return {tuple(line[name] for name in Mutant.KEY): line["status"] for line in lines}


def _preload(tests: Sequence[str]) -> None:
    """Import all that the tests import but the project itself, so that forked processes need not."""
    code = "import pytest, sys; pytest.main([*sys.argv[1:], '--collect-only']); print(*sys.modules)"
    command = [sys.executable, "-c", code, *_OPTIONS, *tests]
    modules = (
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()[-1].split()
    )
    for name in modules:
        if name.split(".")[0] not in ("envgym", "tests", "conftest", "__main__"):
            importlib.import_module(name)


def module_name(path: str) -> str:
    """Return the name by which a file of the project is imported."""
    name = path.removesuffix(".py").replace("/", ".")
    return name if name.startswith("envgym.") else f"envgym.{name}"


if __name__ == "__main__":
    sys.exit(main())
