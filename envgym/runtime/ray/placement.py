"""What is asked of a cluster, what its nodes tell, and which of that a run cannot begin with. Knows nothing of Ray."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from envgym.errors import SettingsError

_WHERE = "launch.ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What one process takes of its node."""

    role: str
    cpus: float
    gpus: float
    directories: tuple[str, ...] = ()
    """That it reads, and that must be there."""
    sees_run: bool = False
    """Whether it must see the files of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """What is asked of a cluster; the first bundle is of the run's own process, and is taken on its node."""

    address: str
    """`auto`, `local`, or HOST:PORT."""
    strategy: str
    """`PACK` or `SPREAD`."""
    bundles: tuple[Bundle, ...]
    directory: str
    """In which the processes start."""
    run: str
    """Absolute path of the run directory, or of a directory above it that is there."""
    timeout_s: float
    """Within which all is placed."""
    clock_tolerance_s: float

    def to_json(self) -> dict[str, Any]:
        """The JSON that `of_json` reads."""
        return asdict(self)

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Self:
        bundles = tuple(Bundle(**{**item, "directories": tuple(item["directories"])}) for item in data["bundles"])
        return cls(**{**data, "bundles": bundles})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a node tells, for one process that is placed there."""

    role: str
    host: str
    """Address of the node."""
    name: str
    node: str
    """Ray's id of the node."""
    python: str
    version: str
    """Of envgym, or why it does not run."""
    gpus: tuple[str, ...] = ()
    """Ids of the GPUs that the process has."""
    missing: tuple[str, ...] = ()
    """Directories that are not there."""
    unseen: tuple[str, ...] = ()
    """Files that the run's node has written, and this one does not see."""
    clock_s: float = 0.0
    """By how much its clock is ahead, at least; below 0: behind."""

    @property
    def place(self) -> str:
        """Where this is, for a sentence."""
        return f"{self.role} on node {self.host} {self.name}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the processes of a run are placed."""

    hosts: Mapping[str, str] = field(default_factory=dict)
    """Role -> address of its node."""
    host: str = ""
    """Address of the run's own node."""
    gpus: tuple[str, ...] = ()
    """Ids of the GPUs that are the run's own process's."""


def check_totals(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]], *, is_free: bool) -> None:
    """See that nodes have what is asked for: the `CPU` and `GPU` of each, what they have free now or all.

    Raises: SettingsError: they have not.
    """
    needed = {"CPU": sum(item.cpus for item in bundles), "GPU": sum(item.gpus for item in bundles)}
    there = {name: sum(node.get(name, 0.0) for node in nodes) for name in needed}
    largest = [max((node.get(name, 0.0) for node in nodes), default=0.0) for name in needed]
    fits = all(item.cpus <= largest[0] and item.gpus <= largest[1] for item in bundles)
    if all(there[name] >= number for name, number in needed.items()) and fits:
        return
    free = "free " * is_free
    must = f"have {_shown(needed, free)} for {len(bundles)} processes, each on one node"
    got = f"{_shown(there, free)} on {len(nodes)} node{'s' * (len(nodes) != 1)}"
    do = "add nodes, start fewer processes, or lower what each takes in launch.ray"
    raise SettingsError.of("the Ray cluster", must, got, where=_WHERE, do=do)


def _shown(numbers: Mapping[str, float], free: str) -> str:
    return " and ".join(f"{number:g} {free}{name}s" for name, number in numbers.items())


def check_nodes(reports: Iterable[NodeReport], own: NodeReport, *, tolerance_s: float) -> None:
    """See that nodes can run the processes that are placed there, as the run's own node does.

    Raises: SettingsError: one cannot.
    """
    for report in reports:
        do = "install the same version on every node, in the environment that Ray was started from"
        must = f"be {own.version} on every node, as on the run's own"
        SettingsError.unless(report.version == own.version, "envgym", must, report.version, where=report.place, do=do)
        must = f"be {own.python} on every node, as on the run's own"
        SettingsError.unless(report.python == own.python, "Python", must, report.python, where=report.place, do=do)
        must, do = "be on every node under the same path", "mount it there, or copy it"
        got = f"no {', '.join(report.missing)}"
        SettingsError.unless(not report.missing, "directory", must, got, where=report.place, do=do)
        must, got = "be shared by all nodes", f"no {', '.join(report.unseen)} there"
        do = "put run.directory on a file system that every node mounts under the same path"
        SettingsError.unless(not report.unseen, "run directory", must, got, where=report.place, do=do)
        must = f"differ by at most {tolerance_s:g} s from the run's"
        got, do = f"{report.clock_s:+.1f} s", "synchronise it (NTP), or raise launch.ray.clock_tolerance_s"
        SettingsError.unless(abs(report.clock_s) <= tolerance_s, "clock", must, got, where=report.place, do=do)
