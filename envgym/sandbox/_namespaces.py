"""System calls for namespaces, by ctypes. Standard library only: it runs inside sandboxes, beside the supervisor."""

import ctypes
import os
import platform
import struct
from collections.abc import Sequence

NEWNS, NEWIPC, NEWUSER, NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
FORK_FLAGS = NEWUSER | NEWPID | NEWNS | NEWIPC | 17
"""What a session's process gets of its own, and SIGCHLD: the one set of flags that its filter lets it clone with."""
READ_ONLY, NO_SUID, NO_DEV, RECURSIVE, PRIVATE = 1, 2, 4, 0x4000, 0x40000
_CLONE = {"x86_64": 56, "aarch64": 220}
_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES, _DROP_BOUND, _ALL_CAPABILITIES = 22, 2, 38, 24, 64

# Holds the interpreter's lock during calls: after `clone` there is one thread on either side.
_libc = ctypes.PyDLL(None, use_errno=True)


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def clone_into_namespaces() -> int:
    """Fork into namespaces of one's own; return 0 in the child, which is process 1 there, else its id.

    The child leads a process group of its own: a signal to one's group crosses namespaces.
    """
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(_libc.syscall(_CLONE[platform.machine()], FORK_FLAGS, 0, 0, 0, 0))
    error = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        os.setsid()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, os.strerror(error))
    return pid


def open_namespace(pid: int, kind: str) -> int:
    """Return a descriptor of a namespace of a process."""
    return os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def join(namespace: int) -> None:
    """Enter a namespace by its descriptor."""
    _check(_libc.setns(namespace, 0))


def mount(kind: str, target: str, flags: int, options: str = "") -> None:
    """Mount a file system without a source."""
    _check(_libc.mount(b"envgym", target.encode(), kind.encode(), flags, options.encode()))


def drop_capabilities() -> None:
    """Give every capability up, also for programs started later."""
    drop = _libc.prctl
    for capability in range(_ALL_CAPABILITIES):
        if drop(_DROP_BOUND, capability, 0, 0, 0) < 0:  # the first that the kernel does not know
            break
    header, nothing = struct.pack("=II", 0x20080522, 0), bytes(24)
    _check(_libc.capset(header, nothing))
    _check(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter; none where `program` is empty."""
    if program:
        steps = ctypes.create_string_buffer(program, len(program))
        description = struct.pack("@HP", len(program) // 8, ctypes.addressof(steps))
        _check(_libc.prctl(_SET_SECCOMP, _FILTER, description, 0, 0))


def map_user(pid: int, user: str) -> None:
    """Let a process' new user namespace know the one user there is; from it or from its parent."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{user} {user} 1")):
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def clean_descriptors(keep: Sequence[int]) -> None:
    """Close every descriptor but the standard ones and `keep`."""
    low = 3
    for descriptor in sorted(keep):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, 4096)
