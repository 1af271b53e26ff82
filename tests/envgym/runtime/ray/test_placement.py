"""What is asked of a cluster, and the sentences of what a run cannot begin with."""

import json
from dataclasses import replace

import pytest

from envgym.errors import SettingsError
from envgym.runtime.ray.placement import Bundle, NodeReport, PlacementRequest, check_nodes, check_totals

OWN = NodeReport(role="controller", host="10.0.0.1", name="a", node="1", python="3.11.7", version="0.1.0")
OTHER = replace(OWN, role="policy-server-0", host="10.0.0.2", name="b", node="2")


def bundles(*gpus: float) -> list[Bundle]:
    return [Bundle(role=f"policy-server-{number}", cpus=2, gpus=count) for number, count in enumerate(gpus)]


def test_request_survives_its_way_to_the_driver() -> None:
    request = PlacementRequest(
        address="auto",
        strategy="PACK",
        bundles=(Bundle(role="learner-1", cpus=1, gpus=0.5, directories=("/models/a",), sees_run=True),),
        directory="/home",
        run="/runs",
        timeout_s=60,
        clock_tolerance_s=5,
    )
    assert PlacementRequest.of_json(json.loads(json.dumps(request.to_json()))) == request


def test_cluster_that_has_what_is_asked_for_is_taken() -> None:
    check_totals(bundles(1, 1), [{"CPU": 2.0, "GPU": 1.0}, {"CPU": 2.0, "GPU": 1.0}], is_free=False)


@pytest.mark.parametrize(
    "nodes, told",
    [
        ([{"CPU": 2.0}], "have 4 CPUs and 2 GPUs for 2 processes, each on one node, got 2 CPUs and 0 GPUs on 1 node "),
        ([{"CPU": 1.0, "GPU": 1.0}] * 4, "got 4 CPUs and 4 GPUs on 4 nodes "),  # none has two CPUs
        ([], "got 0 CPUs and 0 GPUs on 0 nodes "),
    ],
)
def test_cluster_with_too_little_is_refused_with_both_numbers(nodes: list[dict[str, float]], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        check_totals(bundles(1, 1), nodes, is_free=False)


def test_too_little_that_is_free_is_called_so() -> None:
    with pytest.raises(
        SettingsError, match=r"have 2 free CPUs and 0 free GPUs for 1 .* got 1 free CPUs and 0 free GPUs"
    ):
        check_totals(bundles(0), [{"CPU": 1.0}], is_free=True)


@pytest.mark.parametrize(
    "report, told",
    [
        (
            replace(OTHER, version="0.0.9"),
            "envgym must be 0.1.0 on every node, as on the run's own, got 0.0.9 (policy-server-0 on node 10.0.0.2 b); "
            "install the same version on every node, in the environment that Ray was started from.",
        ),
        (replace(OTHER, python="3.12.1"), "Python must be 3.11.7 on every node, as on the run's own, got 3.12.1 ("),
        (replace(OTHER, missing=("/m",)), "directory must be on every node under the same path, got no /m ("),
        (replace(OTHER, unseen=("/r/x",)), "run directory must be shared by all nodes, got no /r/x there ("),
        (replace(OTHER, clock_s=-7.25), "clock must differ by at most 5 s from the run's, got -7.2 s ("),
        (replace(OTHER, clock_s=5.1), "clock must differ by at most 5 s from the run's, got +5.1 s ("),
    ],
)
def test_node_that_cannot_run_a_process_is_named(report: NodeReport, told: str) -> None:
    with pytest.raises(SettingsError) as raised:
        check_nodes([OWN, report], OWN, tolerance_s=5)
    assert str(raised.value).startswith(told)


def test_nodes_alike_are_taken() -> None:
    check_nodes([OWN, replace(OTHER, clock_s=5.0)], OWN, tolerance_s=5)
