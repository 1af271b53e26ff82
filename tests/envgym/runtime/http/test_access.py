"""Which addresses only this machine reaches, and how an address is written and refused."""

import errno

import pytest

from envgym.errors import InvalidInput
from envgym.runtime.http.access import address_url, check_token, is_loopback, unusable_address


def test_addresses_that_only_this_machine_reaches() -> None:
    names = ["127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "::", "", "10.0.0.1", "localhost.example"]
    assert [is_loopback(name) for name in names] == [True] * 4 + [False] * 5


def test_an_address_that_others_reach_needs_a_token() -> None:
    check_token("127.0.0.1", None)
    check_token("0.0.0.0", "secret")
    for token in (None, ""):
        with pytest.raises(InvalidInput, match="server must have a token where others reach it, got none"):
            check_token("0.0.0.0", token)


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    assert address_url("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert address_url("::1", 80) == "http://[::1]:80"


def test_an_address_that_cannot_be_used_is_told() -> None:
    error = unusable_address("10.0.0.1", 80, OSError(errno.EADDRINUSE, "while attempting to bind"))
    assert str(error).startswith("address must be free to listen on, got 10.0.0.1 port 80 (Address already in use); ")
    assert "(port must be 0-65535)" in str(unusable_address("::1", 10**6, OverflowError("port must be 0-65535")))
