"""Parts of machines that need no engine: the choice of a back-end, Dockerfiles, checks, and files of the guest."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from envgym.errors import InvalidInput, SettingsError, UnknownName
from envgym.sandbox import BwrapSandbox, DockerSandbox, LocalSandbox, make_machines, make_sandbox
from envgym.sandbox.machines import CommandResult, MachineSpec, _guest_files, docker
from envgym.sandbox.machines._build import BuildLog, check_adds, with_bases
from envgym.sandbox.machines._guest_frames import Output
from envgym.sandbox.machines._guest_processes import UserIds, find_user
from envgym.sandbox.machines.requests import read_folder
from envgym.sandbox.records import RunEnding

VENDOR = '''
from envgym.sandbox.records import Completed, RunEnding

class Programs:
    """Runs nothing, and says how it was made."""
    def __init__(self, region="none"):
        self.region = region
    def run(self, argv, stdin=b"", files={}, limits=None):
        return Completed(stdout=self.region.encode(), stderr=b"", exit_code=0, ending=RunEnding.EXITED, seconds=0.0,
                         peak_memory=0)
    def close(self):
        pass

class Machines:
    """Starts nothing."""
    def build(self, context, *, dockerfile="Dockerfile", bases={}, network=False, timeout_s=600.0):
        return "image"
    def start(self, spec):
        return spec.image
    def why_unavailable(self):
        return None
'''


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    path = tmp_path / "vendor.py"
    path.write_text(VENDOR)
    return path


# ---- the choice


def test_back_ends_are_chosen_by_name_and_what_follows_a_colon_is_their_argument() -> None:
    assert isinstance(make_sandbox(), BwrapSandbox)
    assert isinstance(make_sandbox("local", unsafe=True), LocalSandbox)
    assert make_sandbox("docker:a/b:1") == DockerSandbox("a/b:1")
    assert make_machines("docker:a/b:1") == DockerSandbox("a/b:1")


def test_a_back_end_of_a_vendor_is_one_file(vendor: Path) -> None:
    assert make_sandbox(f"{vendor}:Programs").run(["true"]).stdout == b"none"
    machines = make_machines(f"{vendor}:Machines")
    assert machines.build(vendor.parent) == "image"
    assert machines.why_unavailable() is None


def test_an_entry_point_of_a_vendor_takes_an_argument(
    vendor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "envgym_test_vendor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: envgym_test_vendor\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[envgym.sandbox]\ncloud = vendor:Programs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert make_sandbox("cloud:west").run(["true"]).stdout == b"west"
    finally:
        sys.modules.pop("vendor", None)


def test_what_a_back_end_lacks_is_one_sentence(vendor: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^sandbox must offer machines, got bwrap, without build \(make_machines\)"):
        make_machines("bwrap")
    with pytest.raises(InvalidInput, match=r"^sandbox must offer programs, got .*vendor.py:Machines, without run"):
        make_sandbox(f"{vendor}:Machines")
    with pytest.raises(UnknownName, match=r"^sandbox must be a known name, got 'dokcer' .* did you mean docker\?"):
        make_machines("dokcer")
    with pytest.raises(SettingsError, match=r"^settings must fit bwrap"):
        make_sandbox("bwrap:image")


# ---- records


@pytest.mark.parametrize(
    "fields, must",
    [
        ({"image": ""}, "image must be a name"),
        ({"image": "-v"}, "image must be a name"),
        ({"memory": 0}, "memory must be positive"),
        ({"cpus": float("inf")}, "cpus must be positive and finite"),
        ({"workdir": "work"}, "path must be absolute"),
        ({"workdir": "/a/../b"}, "path must be absolute"),
        ({"env": {"": "1"}}, "environment variable must have a name"),
        ({"env": {"A": "\0"}}, "environment variable must have a name"),
    ],
)
def test_a_specification_is_checked(fields: dict[str, object], must: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{must}"):
        MachineSpec(**{"image": "a", **fields})  # type: ignore[arg-type]  # wrong on purpose


def test_output_keeps_its_ends_however_it_comes() -> None:
    text = bytes(range(256)) * 10
    for limit in (0, 1, 2, 7, 100, 2559, 2560, 5000):
        for size in (1, 13, 2560):
            output = Output(limit)
            for start in range(0, len(text), size):
                output.feed(text[start : start + size])
            head, tail = (limit + 1) // 2, limit // 2
            ends = text if limit >= len(text) else text[:head] + text[len(text) - tail :]
            assert output.content() == (ends, len(text) - len(ends)), (limit, size)


def test_text_of_a_result_marks_what_is_left_out() -> None:
    done = CommandResult(exit_code=0, output=b"abcde", ending=RunEnding.EXITED, seconds=0.0, dropped=3)
    assert done.text == "abc\n[3 bytes left out]\nde"


# ---- Dockerfiles


def test_bases_are_replaced_in_from_lines_alone() -> None:
    text = (
        "# FROM a\nFROM a AS one\nRUN echo \\\n  FROM a\nfrom --platform=linux/amd64 a as two\nFROM one\nCOPY FROM a\n"
    )
    new = (
        "# FROM a\nFROM b AS one\nRUN echo \\\n  FROM a\nfrom --platform=linux/amd64 b as two\nFROM one\nCOPY FROM a\n"
    )
    assert with_bases(text, {"a": "b"}, where="here") == new
    with pytest.raises(InvalidInput, match=r"^FROM must name an image if bases are given, got \$BASE \(here\)"):
        with_bases("ARG BASE=a\nFROM $BASE\n", {"a": "b"}, where="here")


# ---- files


@pytest.mark.parametrize(
    "line",
    [
        "ADD http://127.0.0.1/x /x",
        "  add --chown=1 a https://127.0.0.1/x /x",
        'ADD ["http://127.0.0.1/x", "/x"]',
        'ADD ["http\\u003a//127.0.0.1/x", "/x"]',
        'ADD ht"tp:/"/127.0.0.1/x /x',
        "ADD $URL /x",
        "ADD git@127.0.0.1:x /x",
        "ADD a \\\n# text\n\n http://127.0.0.1/x /x",
        "AD\\  \nD http://127.0.0.1/x /x",
        "RUN echo \\\\\nADD http://127.0.0.1/x /x",
        "ONBUILD ADD http://127.0.0.1/x /x",
    ],
)
def test_a_file_of_an_address_needs_a_network(line: str) -> None:
    with pytest.raises(InvalidInput, match=r"^ADD must name files of the context if no network is allowed"):
        check_adds(f"FROM a\n{line}\n", where="Dockerfile")


def test_the_character_that_continues_a_line_stays() -> None:
    with pytest.raises(InvalidInput, match=r"^escape must be left out if no network is allowed"):
        check_adds("# Escape = `\nFROM a\nAD`\nD http://127.0.0.1/x /x\n", where="Dockerfile")


def test_machines_of_another_engine_are_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(docker, "_shared", docker._Shared())
    with monkeypatch.context() as patched:
        patched.setattr(docker, "_Home", str)
        patched.setenv("DOCKER_HOST", "tcp://first")
        assert docker.why_no_machines("image") is None
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    assert docker.why_no_machines("image") is not None


def test_a_package_that_only_a_folder_of_its_name_stands_for_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", ModuleType("docker"))
    reason = make_machines("docker").why_unavailable()
    assert reason is not None
    assert "must be installed, got no such package (sandbox); run pip install 'envgym[docker]'" in reason


def test_a_failing_instruction_is_named_with_the_end_of_its_output() -> None:
    log = BuildLog()
    lines = ["Step 1/3 : FROM base\n", " ---> 12ab\n", "Step 2/3 : RUN make all\n", " ---> Running in 3f\n", "cc a.c\n"]
    for line in [*lines, *(f"warning {number}\n" for number in range(100)), "a.c:1: error: no cake\n"]:
        log.add(line)
    reason = log.failure("The command '/bin/sh -c make all' returned a non-zero code: 2")
    assert reason.startswith("exit code 2 of RUN make all, output: ")
    assert reason.endswith("warning 99 a.c:1: error: no cake")
    assert len(reason) <= 200, "a sentence cuts longer values at their end"
    log.add("Step 3/3 : RUN " + "x" * 300)
    assert log.failure("no space\nleft") == f"no space left of RUN {'x' * 46}..."
    assert BuildLog().failure("unknown instruction: HELLO") == "unknown instruction: HELLO"


def test_files_of_the_context_need_no_network() -> None:
    adds = 'ADD --chown=1 a.tar "b c" /x\nADD ["a", "/x"]\n'
    others = "RUN echo \\\nADD http://127.0.0.1\nCOPY $A /x\n# ADD http://a b\n"
    check_adds(f"FROM a\n{adds}{others}", where="Dockerfile")


def test_a_folder_is_read_with_its_permissions_and_refused_with_links(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run").write_text("1")
    (tmp_path / "a" / "run").chmod(0o700)
    (tmp_path / "b").write_bytes(b"\xff")
    (tmp_path / "b").chmod(0o600)
    assert read_folder(tmp_path) == {"a/run": (b"1", 0o755), "b": (b"\xff", 0o644)}
    (tmp_path / "c").symlink_to("/etc")
    with pytest.raises(InvalidInput, match=r"^file must be a regular file, got .*/c "):
        read_folder(tmp_path)
    with pytest.raises(InvalidInput, match=r"^folder must be a folder"):
        read_folder(tmp_path / "b")


def read_all(path: Path, max_bytes: int = 100) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}

    def give(name: str, part: bytes) -> None:
        parts[name] = parts.get(name, b"") + part

    _guest_files.read(str(path), max_bytes, give)
    return parts


def test_files_are_bounded_in_bytes_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (tmp_path / str(number)).write_bytes(b"x" * 10)
    assert sum(map(len, read_all(tmp_path, 40).values())) == 40
    with pytest.raises(_guest_files.TooMuch, match="more than 39 bytes"):
        read_all(tmp_path, 39)
    folder = tmp_path / ("ä" * 50)
    folder.mkdir()
    (folder / "a").touch()
    monkeypatch.setattr(_guest_files, "MAX_NAMES", 106)
    assert len(read_all(tmp_path, 40)) == 5
    monkeypatch.setattr(_guest_files, "MAX_NAMES", 105)
    with pytest.raises(_guest_files.TooMuch, match="names of more than 105 bytes"):
        read_all(tmp_path)
    monkeypatch.setattr(_guest_files, "MAX_FILES", 3)
    with pytest.raises(_guest_files.TooMuch, match="more than 3 files"):
        read_all(tmp_path)


def test_links_are_neither_read_nor_written_through_nor_removed_through(tmp_path: Path) -> None:
    me = UserIds(os.getuid(), os.getgid(), (), "/")
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    (real / "file").write_bytes(b"1")
    link.symlink_to(real)
    (tmp_path / "in").symlink_to(real / "file")
    os.mkfifo(tmp_path / "pipe")
    assert read_all(tmp_path) == {"real/file": b"1"}
    assert read_all(link) == read_all(link / "file") == read_all(tmp_path / "in") == {}
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        _guest_files.write(_guest_files.Making(str(link), me, 0o755), "new", 0o644, iter([b"2"]))
    _guest_files.write(_guest_files.Making(str(tmp_path), me, 0o755), "in", 0o640, iter([b"2", b"3"]))
    assert (read_all(tmp_path / "in"), (tmp_path / "in").stat().st_mode & 0o777) == ({"in": b"23"}, 0o640)
    _guest_files.remove(str(link))
    assert (real / "file").read_bytes() == b"1"
    _guest_files.remove(str(tmp_path / "real"))
    assert not real.exists()
    _guest_files.remove(str(tmp_path / "nothing" / "at" / "all"))


def test_users_are_found_by_name_and_number() -> None:
    assert find_user("root") == UserIds(0, 0, (0,), "/root")
    assert find_user("12345") == UserIds(12345, 0, (0,), "/")
    assert find_user("12345:678") == UserIds(12345, 678, (678,), "/")
    for text in ("no-such-user", "", "-1", "0:no-such-group", "4294967295", "1:2:3"):
        assert find_user(text) is None, text
