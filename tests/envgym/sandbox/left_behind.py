"""What this process has on the Docker engine."""

from envgym.sandbox._docker_engine import LABEL, connect, owner


def left_behind() -> list[str]:
    """Return the containers, copies of files and volumes of this process."""
    api = connect()
    try:
        filters = {"label": [f"{LABEL}={owner()}"]}
        containers = [str(item["Id"]) for item in api.containers(all=True, filters=filters)]
        images = [str(item["Id"]) for item in api.images(all=True, filters=filters)]
        volumes = [str(item["Name"]) for item in api.volumes(filters=filters)["Volumes"] or []]
        return sorted([*containers, *images, *volumes])
    finally:
        api.close()
