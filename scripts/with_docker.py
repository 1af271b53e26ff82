"""Run a command with a Docker engine that has the sandbox image; where none can be had, say why, and run it alone.

    python scripts/with_docker.py COMMAND ...

An engine that answers is used. Otherwise root starts one of its own for as long as the command runs; images stay in the
cache directory. That engine asks no registry: its base is built by docker/build_base.sh. Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGE, BASE = "envgym-sandbox", "envgym-base"
_LABEL = "envgym.source"
_BUILD_S = float(os.environ.get("ENVGYM_DOCKER_BUILD_S", "420"))
"""How long the images may take to build; that is done once."""
_START_S = 60.0
_STOP_S = 30.0


class NoEngine(Exception):
    """There is no engine, for a reason."""


def main(command: list[str]) -> int:
    """Run the command; return its exit code."""
    try:
        with _engine() as (host, is_own):
            _build(host, is_own=is_own)
            return subprocess.run(command, env={**os.environ, **_naming(host)}, check=False).returncode
    except NoEngine as reason:
        print(f"No Docker engine: {reason}. Tests that need one are skipped.", flush=True)
    return subprocess.run(command, check=False).returncode


@contextmanager
def _engine() -> Iterator[tuple[str, bool]]:
    """Give an engine's address, empty for the usual one, and whether it was started here. Raises: NoEngine."""
    if shutil.which("docker") is None:
        raise NoEngine("the program docker is not installed")
    if _answers(""):
        yield "", False
        return
    if shutil.which("dockerd") is None:
        raise NoEngine("none answers, and dockerd is not installed")
    if os.geteuid() != 0:
        raise NoEngine("none answers, and only root can start one")
    cache = Path(os.environ.get("ENVGYM_CACHE") or Path.home() / ".cache" / "envgym") / "docker"
    cache.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="envgym-docker-"))
    with open(cache / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one engine at a time on one store of images
        try:
            with _started(cache / "data", folder) as host:
                yield host, True
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _started(data: Path, folder: Path) -> Iterator[str]:
    """Start an engine that has no network of its own; stop it at the end. Raises: NoEngine."""
    host = f"unix://{folder}/docker.sock"
    options = [f"--data-root={data}", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid", f"--host={host}"]
    options += ["--iptables=false", "--bridge=none"]
    with open(folder / "log", "wb") as log:
        engine = subprocess.Popen(["dockerd", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(host):
            if engine.poll() is not None or time.monotonic() > deadline:
                raise NoEngine(f"dockerd does not start: {_last_line(folder / 'log')}")
            time.sleep(0.2)
        yield host
    finally:
        engine.terminate()
        try:
            engine.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()
        subprocess.run(["umount", "--lazy", folder / "exec/netns/default"], check=False, capture_output=True)


def _build(host: str, *, is_own: bool) -> None:
    sources = [ROOT / "docker" / "sandbox" / "Dockerfile", ROOT / "docker" / "build_base.sh"]
    key = hashlib.blake2b(b"".join(path.read_bytes() for path in sources), digest_size=8).hexdigest()
    inspect = ["docker", "image", "inspect", IMAGE, "--format", f'{{{{index .Config.Labels "{_LABEL}"}}}}']
    if _run(inspect, host)[1].strip() == key:
        return
    deadline = time.monotonic() + _BUILD_S
    build = ["docker", "build", "--quiet", "--label", f"{_LABEL}={key}", "--tag", IMAGE]
    if is_own:
        print("Building the base image with debootstrap, and the sandbox on it: some minutes, once.", flush=True)
        if _run(["docker", "image", "inspect", BASE], host)[0] != 0:
            code, output = _run([str(ROOT / "docker" / "build_base.sh"), BASE], host, deadline)
            if code != 0:
                raise NoEngine(f"the base image cannot be built: {output.strip()[-300:]}")
        build += ["--network", "host", "--build-arg", f"BASE={BASE}"]
    code, output = _run([*build, str(ROOT / "docker" / "sandbox")], host, deadline)
    if code != 0:
        raise NoEngine(f"the image cannot be built: {output.strip()[-300:]}")


def _answers(host: str) -> bool:
    return _run(["docker", "version", "--format", "{{.Server.Version}}"], host)[0] == 0


def _run(command: list[str], host: str, deadline: float | None = None) -> tuple[int, str]:
    environment = {**os.environ, **_naming(host), "DOCKER_BUILDKIT": "0"}  # the builder of old is in every engine
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as child:
        try:
            output, _ = child.communicate(timeout=None if deadline is None else max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # with all that a script has started
            do = "set ENVGYM_DOCKER_BUILD_S to more, or build the images once by hand"
            raise NoEngine(f"the image takes longer than {_BUILD_S:.0f} s to build; {do}") from None
    return child.returncode, output


def _naming(host: str) -> dict[str, str]:
    return {"DOCKER_HOST": host} if host else {}


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1][-300:] if lines else "it says nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
