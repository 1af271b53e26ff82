"""The filter of system calls, run here step by step as the kernel runs it."""

import platform
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.sandbox import _seccomp
from envgym.sandbox._seccomp import seccomp_filter

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
MACHINES = {"x86_64": (0xC000003E, 72), "aarch64": (0xC00000B7, 25)}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(platform, "machine", lambda: request.param)
    seccomp_filter.cache_clear()
    yield str(request.param)
    seccomp_filter.cache_clear()


def verdict(program: bytes, arch: int, number: int, *arguments: int) -> int:
    data = struct.pack(
        "=iIQ6Q", number if number < 1 << 31 else number - (1 << 32), arch, 0, *(*arguments, *[0] * 6)[:6]
    )
    steps = list(struct.iter_unpack("=HBBI", program))
    at, value = 0, 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == 0x54:
            value &= operand
        elif code == 0x06:
            return int(operand)
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize("sockets", [False, True])
def test_calls_of_kernels_to_come_do_not_exist(machine: str, sockets: bool) -> None:
    program, (arch, _) = seccomp_filter(sockets=sockets), MACHINES[machine]
    refused = {number for number in range(424, 2000) if verdict(program, arch, number) == ENOSYS}
    assert refused == {*range(457, 2000), 435} - {462}  # clone3 is one that libraries replace by clone
    assert {verdict(program, arch, number) for number in (457, 458, 467, 468, 470, 1 << 29)} == {ENOSYS}


def test_mounts_cannot_be_cloned_by_any_call(machine: str) -> None:
    program, (arch, _) = seccomp_filter(sockets=True), MACHINES[machine]
    assert {verdict(program, arch, number) for number in (428, 429, 430, 431, 432, 433, 442)} == {EPERM}


def test_commands_that_reach_beyond_the_program_are_refused_and_others_are_not(machine: str) -> None:
    program, (arch, fcntl) = seccomp_filter(sockets=False), MACHINES[machine]
    assert {verdict(program, arch, fcntl, 3, command) for command in (1024, 1026, 1031)} == {EPERM}
    assert {verdict(program, arch, fcntl, 3, command) for command in (0, 1, 2, 3, 4, 6, 7, 1030, 1033)} == {ALLOW}


def test_calls_of_another_architecture_end_the_program(machine: str) -> None:
    other = next(arch for name, (arch, _) in MACHINES.items() if name != machine)
    assert verdict(seccomp_filter(sockets=True), other, 0) == KILL


@given(st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 20))
def test_every_call_has_a_verdict_and_names_of_the_table_are_refused(number: int, argument: int) -> None:
    if _seccomp.is_known():
        arch, _ = MACHINES[platform.machine()]
        result = verdict(seccomp_filter(sockets=False), arch, number, argument, argument)
        assert result in (ALLOW, KILL, EPERM, ENOSYS, 0x00050000, 0x00050061)
