"""Images of machines from Dockerfiles: built once for the same context, without asking a registry for known bases."""

import hashlib
import io
import re
import tarfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envgym.errors import InvalidInput, ToolInfraFailure
from envgym.sandbox._docker_engine import answering, connect
from envgym.sandbox.records import MIB

if TYPE_CHECKING:
    from docker import APIClient

REPOSITORY = "envgym-machine"
"""Images are tagged `envgym-machine:<hash of what they are built from>`, and kept."""
MAX_CONTEXT = 512 * MIB
BUILD_MEMORY = 8192 * MIB
"""Bytes of the processes of a `RUN`, without swap."""
BUILD_CPUS = 4
_SETTLED = tarfile.TarInfo().mtime
_FORMAT = "1"
_INSTRUCTION = re.compile(r"Step \d+/\d+ : (.+)")
_CODE = re.compile(r"returned a non-zero code: (\d+)")
_MAX_PART = 50
"""Characters of an instruction, or of an error, in a sentence."""
_MAX_TAIL = 160
"""Characters of an instruction's output that are kept; half of them fit into a sentence."""


def build_image(context: Path, *, dockerfile: str, bases: Mapping[str, str], network: bool, timeout_s: float) -> str:
    """Return the image that a Dockerfile describes. Raises: as `MachineBackend.build`."""
    text = _read_dockerfile(context, dockerfile)
    text = with_bases(text, bases, where=str(context / dockerfile)) if bases else text
    if not network:
        check_adds(text, where=str(context / dockerfile))
    archive = _archive(context, dockerfile, text)
    api = connect()
    try:
        ids = [_image_id(api, image) or "" for image in bases.values()]
        key = hashlib.blake2b("\0".join([_FORMAT, dockerfile, str(network), *ids]).encode(), digest_size=16)
        key.update(archive)
        tag = f"{REPOSITORY}:{key.hexdigest()}"
        if _image_id(api, tag) is None:
            _build(archive, dockerfile, tag, network=network, timeout_s=timeout_s, where=str(context))
        return tag
    finally:
        api.close()


def with_bases(text: str, bases: Mapping[str, str], *, where: str) -> str:
    """Return a Dockerfile whose `FROM` lines name other images. Raises: InvalidInput: one names a variable."""
    lines, is_continued = text.split("\n"), False
    for number, line in enumerate(lines):
        words = line.split()
        if not is_continued and words and words[0].upper() == "FROM":
            place = next((index for index, word in enumerate(words) if index > 0 and not word.startswith("--")), None)
            if place is not None:
                must, do = "name an image if bases are given", "write the image out"
                InvalidInput.unless("$" not in words[place], "FROM", must, words[place], where=where, do=do)
                words[place] = bases.get(words[place], words[place])
                lines[number] = " ".join(words)
        is_continued = line.rstrip().endswith("\\") and not line.lstrip().startswith("#")
    return "\n".join(lines)


def check_adds(text: str, *, where: str) -> None:
    """Check that the engine itself fetches nothing for an `ADD`. Raises: InvalidInput: an address, or it may be one."""
    escape = re.search(r"^\s*#\s*escape\s*=\s*`", text, re.IGNORECASE | re.MULTILINE)
    must, do = "be left out if no network is allowed", "continue lines with a backslash"
    InvalidInput.unless(escape is None, "escape", must, "`", where=where, do=do)
    lines = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"(?<!\\)\\[ \t]*\n", "", "\n".join(lines)).split("\n"):
        words = line.split()
        words = words[1:] if words[0].upper() == "ONBUILD" else words
        if words and words[0].upper() == "ADD":
            written = re.sub("[\"']", "", line)
            is_file = not any(mark in written for mark in ("://", "git@", "$", "\\"))
            must, do = "name files of the context if no network is allowed", "write them out, or use COPY"
            InvalidInput.unless(is_file, "ADD", must, line.strip(), where=where, do=do)


def _read_dockerfile(context: Path, dockerfile: str) -> str:
    path = context / dockerfile
    is_file = path.is_file() and path.resolve().is_relative_to(context.resolve())
    InvalidInput.unless(is_file, "Dockerfile", "be a file of the context", str(path), where="build", do="write one")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        do = "save it as UTF-8"
        raise InvalidInput.of("Dockerfile", "be text", str(error), where=str(path), do=do) from None


def _archive(context: Path, dockerfile: str, text: str) -> bytes:
    """Return the context as an archive that depends on names, contents, links and permissions only."""
    from docker.utils.build import exclude_paths

    ignore = context / ".dockerignore"
    patterns = ignore.read_text("utf-8").splitlines() if ignore.is_file() else []
    patterns = [line.strip() for line in patterns if line.strip() and not line.startswith("#")]
    stream, size = io.BytesIO(), 0
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(exclude_paths(str(context), patterns, dockerfile=dockerfile)):
            path = context / name
            if path.is_socket():
                continue
            info = archive.gettarinfo(str(path), arcname=name)
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = _SETTLED
            info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
            content = text.encode() if Path(name) == Path(dockerfile) else path.read_bytes() if info.isreg() else b""
            info.size = len(content)
            size += len(content)
            do = "remove what the Dockerfile does not need, or name it in .dockerignore"
            must = f"have at most {MAX_CONTEXT} bytes"
            InvalidInput.unless(size <= MAX_CONTEXT, "build context", must, size, where=str(context), do=do)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def _image_id(api: "APIClient", image: str) -> str | None:
    from docker.errors import ImageNotFound

    with answering():
        try:
            return str(api.inspect_image(image)["Id"])
        except ImageNotFound:
            return None


def _build(archive: bytes, dockerfile: str, tag: str, *, network: bool, timeout_s: float, where: str) -> None:
    """Build an image. Raises: InvalidInput: the Dockerfile fails. ToolInfraFailure: no engine, or time is over."""
    from docker.errors import APIError
    from urllib3.exceptions import ReadTimeoutError

    deadline, log = time.monotonic() + timeout_s, BuildLog()
    api = connect()
    try:
        with answering():
            try:
                response = _post(api, archive, dockerfile, tag, network=network, timeout_s=timeout_s)
            except APIError as error:
                if not error.is_client_error():
                    raise
                raise _unbuilt(str(error.explanation), where) from None
        try:
            with answering(), suppress(ReadTimeoutError):
                for step in api._stream_helper(response, decode=True):
                    if "error" in step:
                        raise _unbuilt(log.failure(str(step["error"])), where)
                    log.add(str(step.get("stream", "")))
                    if time.monotonic() > deadline:
                        break
                else:
                    return
            got, do = log.failure(f"{timeout_s:g} s"), "raise its time limit"
            raise ToolInfraFailure.of("Dockerfile", "build in time", got, where=where, do=do)
        finally:
            response.close()  # at which the engine stops
    finally:
        api.close()


class BuildLog:
    """The instruction of a Dockerfile that is carried out, and the end of its output."""

    def __init__(self) -> None:
        self._instruction = self._output = ""

    def add(self, text: str) -> None:
        """Add text of the engine's log; ` ---> ID` lines are not output."""
        if started := _INSTRUCTION.match(text):
            self._instruction, self._output = started[1], ""
        elif not text.startswith(" ---> "):
            self._output = (self._output + text)[-_MAX_TAIL:]

    def failure(self, error: str) -> str:
        """Return on one line why the build ended: short enough that an error shows the end of the output."""
        code = _CODE.search(error)
        reason = f"exit code {code[1]}" if code else " ".join(error.split())[:_MAX_PART]
        if not self._instruction:
            return reason
        instruction = self._instruction[:_MAX_PART] + ("..." if len(self._instruction) > _MAX_PART else "")
        output = " ".join(self._output.split())
        return f"{reason} of {instruction}" + (f", output: {output[-_MAX_TAIL // 2 :]}" if output else "")


def _post(api: "APIClient", archive: bytes, dockerfile: str, tag: str, *, network: bool, timeout_s: float) -> Any:
    """Ask for a build, and return its response, which can be closed, unlike that of the SDK's own method."""
    headers = {"Content-Type": "application/tar"}
    api._set_auth_headers(headers)
    options: dict[str, Any] = {"t": tag, "dockerfile": dockerfile, "rm": True, "forcerm": True}
    options |= {"memory": BUILD_MEMORY, "memswap": BUILD_MEMORY, "cpuperiod": 100_000, "cpuquota": BUILD_CPUS * 100_000}
    options |= {} if network else {"networkmode": "none"}
    url = api._url("/build")
    response = api._post(url, data=archive, params=options, headers=headers, stream=True, timeout=timeout_s)
    api._raise_for_status(response)
    return response


def _unbuilt(got: str, where: str) -> InvalidInput:
    do = "correct it, map its base by `base`, or set build_network=true if it loads packages"
    return InvalidInput.of("Dockerfile", "build", got.strip(), where=where, do=do)
