"""The system calls that a sandboxed program may not make, as a classic BPF program for the kernel.

A deny list of what nobody needs to compute something and what reaches the kernel's less travelled parts, among the
calls known here. Calls that later kernels add are refused as if the kernel had none of them, so libraries fall back.
Namespaces and user ids already contain the program; this makes the kernel behind them smaller. Source: seccomp(2).
"""

import platform
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import cache

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_LOAD, _JEQ, _JGE, _JSET, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NR, _ARCH, _ARG0, _ARG1, _ARG2 = 0, 4, 16, 24, 32
_X32 = 0x40000000
_AUDIT_ARCH: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

CLONE_NAMESPACES = 0x7E020080
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_UNIX, _STREAM, _KIND_MASK = 1, 1, 0xF
_SETSOCKOPT, _SOCKET_LEVEL, _BUFFER_SIZES = (54, 208), 1, (7, 8)  # SOL_SOCKET; SO_SNDBUF, SO_RCVBUF
_NAMING: Mapping[str, tuple[int, int]] = {
    "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200), "connect": (42, 203), "listen": (50, 201),
}  # fmt: skip
"""What gives a socket an address, or finds another by one."""
_FAMILIES = (_UNIX, 2, 10)  # AF_UNIX, AF_INET, AF_INET6: they end at the network namespace, vsock and others need not

_LAST_KNOWN = 456  # futex_requeue
_KNOWN_BEYOND = (462,)  # mseal; statmount, listmount, open_tree_attr and those of security modules are not needed
"""Numbers are the same on all architectures from 424 on."""
_FCNTL = (72, 25)
_COMMANDS = (1024, 1026, 1031)
"""F_SETLEASE and F_NOTIFY act on files that the host and other sandboxes use, F_SETPIPE_SZ takes memory that is counted
for the host's user."""

# name: (x86_64, aarch64); None where the architecture has no such call
_DENIED: Mapping[str, tuple[int | None, int | None]] = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "cachestat": (451, 451),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "delete_module": (176, 106),
    "fanotify_init": (300, 262), "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fsopen": (430, 430), "fspick": (433, 433), "init_module": (175, 105), "inotify_init": (253, None),
    "inotify_init1": (294, 26), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioperm": (173, None), "iopl": (172, None),
    "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
    "lookup_dcookie": (212, 18), "mbind": (237, 235), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "migrate_pages": (256, 238), "modify_ldt": (154, None), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "move_pages": (279, 239), "mq_open": (240, 180), "msgget": (68, 186),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438), "pivot_root": (155, 41),
    "process_madvise": (440, 440), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142),
    "request_key": (249, 218), "semget": (64, 190), "setdomainname": (171, 162), "sethostname": (170, 161),
    "setns": (308, 268), "settimeofday": (164, 170), "shmget": (29, 194), "swapoff": (168, 225),
    "swapon": (167, 224), "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282),
    "uprobe": (336, None), "uretprobe": (335, None), "uselib": (134, None),
    "vhangup": (153, 58),
}  # fmt: skip
_DENIED_IN_MACHINES = (
    "add_key", "bpf", "fanotify_init", "io_uring_enter", "io_uring_register", "io_uring_setup", "kcmp", "keyctl",
    "kexec_load", "mount", "move_mount", "name_to_handle_at", "open_by_handle_at", "open_tree", "perf_event_open",
    "pidfd_getfd", "pivot_root", "process_madvise", "quotactl", "request_key", "setns", "swapoff", "swapon", "syslog",
    "umount2", "unshare", "userfaultfd",
)  # fmt: skip
"""Commands in a machine may do what software that is developed there needs, such as tracing and watching files."""
_PRLIMIT = (302, 261)
_CLONE, _CLONE3, _SOCKET, _SOCKETPAIR = (56, 220), (435, 435), (41, 198), (53, 199)


def is_known() -> bool:
    """Tell whether there is a filter for this machine's architecture."""
    return sys.platform == "linux" and platform.machine() in _AUDIT_ARCH


@cache
def seccomp_filter(*, sockets: bool, fork_flags: int | None = None) -> bytes:
    """Return the program, as `struct sock_filter[]`; empty where the architecture is unknown.

    Args:
        sockets: Whether Unix and internet sockets may be made, inside whatever network namespace there is. Without
            them there are pairs of connected streams only, which can reach no third socket.
        fork_flags: The one set of namespace flags that `clone` may carry; None: no namespace may be made.
    """
    if not is_known():
        return b""
    index = list(_AUDIT_ARCH).index(platform.machine())
    steps = [_op(_LOAD, _ARCH), _op(_JEQ, _AUDIT_ARCH[platform.machine()], 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NR)]
    if index == 0:
        steps += [_op(_JGE, _X32, 0, 1), _op(_RETURN, _KILL)]
    steps += _on(_CLONE3[index], [_op(_RETURN, _ERRNO | _ENOSYS)])  # its flags lie in memory: clone is used instead
    steps += _on(_CLONE[index], _clone_rule(fork_flags))
    steps += [step for number in _KNOWN_BEYOND for step in _on(number, [_op(_RETURN, _ALLOW)])]
    steps += [_op(_JGE, _LAST_KNOWN + 1, 0, 1), _op(_RETURN, _ERRNO | _ENOSYS)]
    steps += _on(_FCNTL[index], _command_rule())
    refusal = [_op(_RETURN, _ERRNO | _EAFNOSUPPORT)]
    steps += _on(_SOCKET[index], _socket_rule() if sockets else refusal)
    steps += _on(_SOCKETPAIR[index], _socket_rule() if sockets else _stream_pair_rule())
    steps += _on(_SETSOCKOPT[index], _buffer_rule())
    for call in _NAMING.values() if not sockets else ():
        steps += _on(call[index], refusal)
    for numbers in _DENIED.values():
        number = numbers[index]
        if number is not None:
            steps += _on(number, [_op(_RETURN, _ERRNO | _EPERM)])
    return b"".join([*steps, _op(_RETURN, _ALLOW)])


@cache
def own_limits_only() -> bytes:
    """Return a filter that lets a process limit itself and no other one: prlimit(2) asks only for the same user."""
    if not is_known():
        return b""
    number = _PRLIMIT[list(_AUDIT_ARCH).index(platform.machine())]
    rule = [_op(_LOAD, _ARG0), _op(_JEQ, 0, 1, 0), _op(_RETURN, _ERRNO | _EPERM), _op(_RETURN, _ALLOW)]
    return b"".join([_op(_LOAD, _NR), *_on(number, rule), _op(_RETURN, _ALLOW)])


@cache
def machine_filter() -> bytes:
    """Return a filter for the commands of a machine, which refuses more than the engine's own one."""
    if not is_known():
        return b""
    index = list(_AUDIT_ARCH).index(platform.machine())
    steps = [_op(_LOAD, _ARCH), _op(_JEQ, _AUDIT_ARCH[platform.machine()], 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NR)]
    if index == 0:
        steps += [_op(_JGE, _X32, 0, 1), _op(_RETURN, _KILL)]
    for name in _DENIED_IN_MACHINES:
        number = _DENIED[name][index]
        assert number is not None, "calls of both architectures"
        steps += _on(number, [_op(_RETURN, _ERRNO | _EPERM)])
    return b"".join(steps) + own_limits_only()


def _clone_rule(fork_flags: int | None) -> list[bytes]:
    """Refuse namespaces, or all but exactly `fork_flags` of them without shared memory."""
    rule = [_op(_LOAD, _ARG0)]
    if fork_flags is not None:
        rule += [_op(_JEQ, fork_flags, 0, 1), _op(_RETURN, _ALLOW)]
    return [*rule, _op(_JSET, CLONE_NAMESPACES, 0, 1), _op(_RETURN, _ERRNO | _EPERM), _op(_RETURN, _ALLOW)]


def _socket_rule() -> list[bytes]:
    families = [step for family in _FAMILIES for step in (_op(_JEQ, family, 0, 1), _op(_RETURN, _ALLOW))]
    return [_op(_LOAD, _ARG0), *families, _op(_RETURN, _ERRNO | _EAFNOSUPPORT)]


def _stream_pair_rule() -> list[bytes]:
    """Allow pairs of Unix streams: a datagram socket of a pair could still send to any address."""
    kind = [_op(_LOAD, _ARG1), _op(_AND, _KIND_MASK), _op(_JEQ, _STREAM, 0, 1), _op(_RETURN, _ALLOW)]
    return [_op(_LOAD, _ARG0), _op(_JEQ, _UNIX, 0, len(kind)), *kind, _op(_RETURN, _ERRNO | _EAFNOSUPPORT)]


def _buffer_rule() -> list[bytes]:
    """Let a request for larger socket buffers succeed without an effect, as one beyond the system's maximum does."""
    sizes = [step for size in _BUFFER_SIZES for step in (_op(_JEQ, size, 0, 1), _op(_RETURN, _ERRNO))]
    option = [_op(_LOAD, _ARG2), *sizes]
    return [_op(_LOAD, _ARG1), _op(_JEQ, _SOCKET_LEVEL, 0, len(option)), *option, _op(_RETURN, _ALLOW)]


def _command_rule() -> list[bytes]:
    """Refuse those commands of fcntl that reach beyond the program."""
    commands = [step for command in _COMMANDS for step in (_op(_JEQ, command, 0, 1), _op(_RETURN, _ERRNO | _EPERM))]
    return [_op(_LOAD, _ARG1), *commands, _op(_RETURN, _ALLOW)]


def _on(number: int, rule: Sequence[bytes]) -> list[bytes]:
    """Apply a rule that always returns to one system call."""
    return [_op(_JEQ, number, 0, len(rule)), *rule]


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
