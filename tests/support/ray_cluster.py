"""Ray's test cluster: several nodes on this machine, each with processes of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest


class RayNodes:
    """A head node, which is this machine's, and further ones."""

    def __init__(self, cluster: Any) -> None:  # ray is not installed where types are checked
        self._cluster = cluster
        self.address: str = cluster.address
        self.dashboard = f"http://{cluster.webui_url}"

    def add(self, num_cpus: int, **variables: str) -> Any:  # as above
        node = self._cluster.add_node(num_cpus=num_cpus, env_vars=variables or None)
        self._cluster.wait_for_nodes()
        return node

    def kill(self, node: Any) -> None:  # as above
        self._cluster.remove_node(node, allow_graceful=False)

    def settings(self, **others: object) -> dict[str, object]:
        return {"launcher": "ray", "ray": {"address": self.address, "timeout_s": 300.0, **others}}


@contextmanager
def ray_nodes(*, num_cpus: int) -> Iterator[RayNodes]:
    """Run a cluster of a head node, with its dashboard, for a block."""
    pytest.importorskip("ray")
    from ray._private import services
    from ray.cluster_utils import Cluster

    find_node = services.get_node

    def wait_for_node(*args: Any, **kwargs: Any) -> Any:  # as above
        """Return a node that has started; Ray itself gives up after 30 s, which is short for a busy machine."""
        end_at = time.monotonic() + 300
        while True:
            try:
                return find_node(*args, **kwargs)
            except RuntimeError:
                if time.monotonic() > end_at:
                    raise
                time.sleep(0.1)

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT"] = "300"  # 30 s is short for a busy machine
    with patch.object(services, "get_node", wait_for_node):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": num_cpus, "include_dashboard": True})
        try:
            yield RayNodes(cluster)
        finally:
            cluster.shutdown()


@contextmanager
def node_without(directory: str, nodes: RayNodes, *, num_cpus: int) -> Iterator[None]:
    """Run a further node for a block, to which a directory is empty."""
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("mounting a directory for one process needs root")
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--address={nodes.address}"]
    start += [f"--num-cpus={num_cpus}", "--disable-usage-stats"]
    hide = 'mount -t tmpfs none "$0" && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", hide, directory, *start]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment, text=True
    ) as node:
        assert node.stdout is not None
        try:
            assert any("runtime started" in line for line in node.stdout)
            yield
        finally:
            node.terminate()
            node.communicate(timeout=30)
