"""`python -m envgym.runtime.ray.driver`: the process of a run that speaks with Ray.

Reads a line of JSON with a `PlacementRequest`, connects, places an actor for each process, and answers `placed` or
`refused`. Then it starts processes and sends signals as further lines ask, and writes what the processes print and how
they end. At the end of its input it ends, and Ray ends the actors with it.
"""

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TextIO

from envgym.errors import SettingsError
from envgym.runs.files import PROBE
from envgym.runtime.ray import actor as actor_module
from envgym.runtime.ray.placement import NodeReport, PlacementRequest, check_nodes, check_totals

CONTROLLER: Final = "controller"
"""Role of the run's own process, for which an actor holds its share of the node."""
_POLL_S = 2.0
"""An actor answers at the latest after this, also where its process prints nothing."""
_LOST_S = 20.0
"""From the first call that an actor does not answer until its process is taken as lost."""
_WHERE = "launch.ray.address"


class RayDriver:
    """Connected to a cluster; one actor for each process of a run."""

    def __init__(self, request: PlacementRequest, tell: Callable[..., None]) -> None:
        """Connect. Raises: SettingsError: there is no such cluster."""
        self._request, self._tell = request, tell
        self._deadline = time.monotonic() + request.timeout_s
        _check_address(request.address, request.timeout_s)
        import ray  # heavy

        self._ray = ray
        try:
            ray.init(address=request.address, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, OSError) as error:
            raise _unreachable(request.address, str(error).strip().splitlines()[0]) from None
        self._actors: dict[str, Any] = {}  # handles of Ray
        self._group: Any = None  # as above

    def place(self) -> list[NodeReport]:
        """Reserve what the processes take, and see that their nodes can run them.

        Returns: a report of each bundle, in their order. Raises: SettingsError: they cannot, or too little is free.
        """
        ray, bundles = self._ray, self._request.bundles
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        check_totals(bundles, [node["Resources"] for node in ray.nodes() if node["Alive"]], is_free=False)
        own_node = ray.get_runtime_context().get_node_id()
        resources = [{"CPU": item.cpus, **({"GPU": item.gpus} if item.gpus else {})} for item in bundles]
        labels = [{"ray.io/node-id": own_node}, *({} for _ in bundles[1:])]
        self._group = placement_group(resources, strategy=self._request.strategy, bundle_label_selector=labels)
        if not self._group.wait(max(self._deadline - time.monotonic(), 0.1)):
            self._refuse_for_lack()
        ray.cloudpickle.register_pickle_by_value(actor_module)  # a node may have another version of envgym
        actor_class = ray.remote(actor_module.ProcessActor)
        for number, item in enumerate(bundles):
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
            options = {"num_cpus": item.cpus, "num_gpus": item.gpus, "max_restarts": 0, "max_concurrency": 4}
            self._actors[item.role] = actor_class.options(
                name=item.role, scheduling_strategy=strategy, **options
            ).remote()
        reports = self._describe()
        check_nodes(reports, reports[0], tolerance_s=self._request.clock_tolerance_s)
        return reports

    def _refuse_for_lack(self) -> None:
        free = self._ray.available_resources()
        check_totals(self._request.bundles, [free], is_free=True)
        must, do = (
            f"place {len(self._request.bundles)} processes within {self._request.timeout_s:g} s",
            "see its dashboard",
        )
        raise SettingsError.of("the Ray cluster", must, f"{free} free", where=_WHERE, do=do)

    def _describe(self) -> list[NodeReport]:
        ray, request = self._ray, self._request
        with _probe(Path(request.run)) as files:
            answers = [
                self._actors[item.role].describe_node.remote(
                    request.directory, files if item.sees_run else {}, item.directories
                )
                for item in request.bundles
            ]
            nodes = [self._get(answer, item.role) for answer, item in zip(answers, request.bundles, strict=True)]
        reports = []
        for item, data in zip(request.bundles, nodes, strict=True):
            before = time.time()
            clock = self._get(self._actors[item.role].read_clock.remote(), item.role)
            after = time.time()
            ahead = clock - after if clock > after else min(clock - before, 0.0)
            data = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
            reports.append(NodeReport(role=item.role, clock_s=ahead, **data))
        assert len(reports) == len(ray.util.placement_group_table(self._group)["bundles"])
        return reports

    def _get(self, answer: Any, role: str) -> Any:  # of Ray
        try:
            return self._ray.get(answer, timeout=max(self._deadline - time.monotonic(), 0.1))
        except self._ray.exceptions.RayError as error:
            got = str(error).strip().splitlines()[0]
            do = "look into Ray's logs (/tmp/ray/session_latest/logs on that node), or raise launch.ray.timeout_s"
            must = f"answer within {self._request.timeout_s:g} s"
            raise SettingsError.of(f"Ray's actor for {role}", must, got, where=_WHERE, do=do) from None

    def start(self, role: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the process of a role, and tell what becomes of it."""
        try:
            pid = self._ray.get(
                self._actors[role].start.remote(command, environment, self._request.directory), timeout=_LOST_S
            )
        except self._ray.exceptions.RayError as error:
            self._tell("lost", role=role, reason=_reason_of(error))
            return
        self._tell("started", role=role, pid=pid)
        threading.Thread(target=self._follow, args=(role,), name=role, daemon=True).start()

    def _follow(self, role: str) -> None:
        ray, position, unanswered = self._ray, 0, 0.0
        while True:
            call_start = time.monotonic()
            try:
                answer = self._actors[role].read.remote(position, _POLL_S)
                position, lines, code, memory_mib = ray.get(answer, timeout=_LOST_S)
            except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError) as error:  # it may come back
                unanswered = unanswered or call_start
                if time.monotonic() - unanswered < _LOST_S:
                    time.sleep(0.2)
                    continue
                self._tell("lost", role=role, reason=_reason_of(error))
                return
            except ray.exceptions.RayError as error:
                self._tell("lost", role=role, reason=_reason_of(error))
                return
            unanswered = 0.0
            self._tell(
                "output", role=role, lines=[line.decode("latin-1") for line in lines], memory_mib=memory_mib, code=code
            )
            if code is not None:
                return

    def send_signal(self, role: str, number: int) -> None:
        """Send a signal to the process of a role; without waiting."""
        self._actors[role].send_signal.remote(number)

    def close(self) -> None:
        """Give back what was reserved, and leave the cluster."""
        with suppress(Exception):  # whatever Ray raises: it ends all with this process
            for actor in self._actors.values():
                self._ray.kill(actor)
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)
        self._ray.shutdown()


def _check_address(address: str, timeout_s: float) -> None:
    cluster = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    if cluster in ("", "auto", "local"):
        return
    host, _, port = cluster.rpartition(":")
    if "://" in cluster or not host or not port.isdigit():
        do = "name the head node, such as 10.0.0.2:6379"
        raise SettingsError.of("Ray's address", "be auto, local or HOST:PORT", cluster, where=_WHERE, do=do)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    except OSError as error:
        raise _unreachable(cluster, error.strerror or str(error)) from None


def _unreachable(address: str, got: str) -> SettingsError:
    do = "run: ray start --head (and ray start --address=HEAD:6379 on the others), or set it to local"
    return SettingsError.of(f"the Ray cluster at {address}", "be reached", got, where=_WHERE, do=do)


@contextmanager
def _probe(directory: Path) -> Iterator[dict[str, str]]:
    """Write a file for a block that every node must see; return it with what it holds."""
    nonce = secrets.token_hex(8)
    path = directory / f"{PROBE}{nonce}"
    try:
        path.write_text(nonce, encoding="utf-8")
    except OSError as error:
        do = "choose another run.directory"
        raise SettingsError.of("run directory", "be written to", error.strerror, where=str(directory), do=do) from None
    try:
        yield {str(path): nonce}
    finally:
        path.unlink(missing_ok=True)


def _reason_of(error: Exception) -> str:
    """Return the sentence of Ray's error that tells why: among many lines, or the first one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if "because" in line] or lines or [type(error).__name__]
    return reasons[0].partition(". ")[0].rstrip(".")


def main(orders: TextIO, answers: TextIO) -> int:
    """Serve one run."""
    lock = threading.Lock()

    def tell(event: str, **fields: object) -> None:
        with lock, suppress(OSError, ValueError):
            answers.write(json.dumps({"event": event, **fields}) + "\n")
            answers.flush()

    request = PlacementRequest.of_json(json.loads(orders.readline()))
    driver: RayDriver | None = None
    try:
        try:
            driver = RayDriver(request, tell)
            tell("connected")
            reports = driver.place()
        except SettingsError as error:
            tell("refused", error=str(error))
            return 2
        own, *others = reports
        tell("placed", host=own.host, gpus=own.gpus, hosts={report.role: report.host for report in others})
        for line in orders:
            order = json.loads(line)
            if order["do"] == "start":
                driver.start(order["role"], order["command"], order["environment"])
            else:
                driver.send_signal(order["role"], order["number"])
    finally:
        if driver is not None:
            driver.close()
    return 0


if __name__ == "__main__":
    # What Ray prints is no answer: it goes where the errors go.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as to_run:
        os.dup2(2, 1)
        sys.exit(main(sys.stdin, to_run))
