"""What of a run's settings leaves the machine."""

from typing import Any

import pytest

from envgym.config.masking import masked

SECRET_KEYS = (
    "api_key", "OPENAI_API_KEY", "apiKey", "APIKey", "secretAccessKey", "api_keys", "token", "hf-token", "accessToken",
    "access_tokens", "tokens", "TOKEN_2", "auth", "password", "client_secret", "clientSecret", "Cookie", "GITHUB_PAT",
)  # fmt: skip


@pytest.mark.parametrize("key", SECRET_KEYS)
@pytest.mark.parametrize("value", ["abc", ["abc"], {"name": "abc"}], ids=["text", "list", "mapping"])
def test_all_under_a_secret_key_is_masked_at_any_depth(key: str, value: Any) -> None:
    config = {"models": [{"kind": {key: value, "model": "m"}}]}
    assert masked(config) == {"models": [{"kind": {key: "***", "model": "m"}}]}


def test_a_number_can_be_a_secret() -> None:
    assert masked({"password": 1234, "token": 0.5}) == {"password": "***", "token": "***"}


@pytest.mark.parametrize("key", ["env", "environment", "headers"])
def test_what_a_program_gets_in_its_environment_is_masked(key: str) -> None:
    assert masked({key: {"MODE": "fast", "UNSET": None}}) == {key: {"MODE": "***", "UNSET": None}}


def test_what_is_no_secret_stays() -> None:
    config = {
        "api_key_env": "OPENAI_API_KEY",
        "token_env": "TOKEN",
        "env": "math/arithmetic-v0",
        "max_turn_tokens": 24,
        "micro_batch_tokens": 4096,
        "num_tokens": [1, 2],
        "tokens": 24,
        "token": None,
        "api_key": None,
        "auth": False,
        "url": "http://host:8000/v1?page=2",
        "ids": ["inspect://file.py@task", "http://host:8000/a@b", "https://host/@scope/package", "openenv://h:80"],
        "command": ["serve", "--max-tokens", "5", "--use-token", "--sort", "key=name", "level=2"],
        "tokenizer": "a/b",
        "text": 'Write the token: "x". A key = value.',
        "shares": [0.5, True],
    }
    assert masked(config) == config


@pytest.mark.parametrize(
    "text,expected",
    [
        ("https://me:pass@host/v1", "https://***@host/v1"),
        ("http://u:p/w@h/", "http://***@h/"),
        ("postgresql://u:p@ss@h", "postgresql://***@h"),
        ("openenv://user:s3cret@host:8000", "openenv://***@host:8000"),
        ("https://abc@host", "https://***@host"),
        ("http://host/?write_token=abc&page=2", "http://host/?write_token=***&page=2"),
        ("agent --key sk-0123456789abcdefghij end", "agent --key *** end"),
        ("agent --api-key abc end", "agent --api-key *** end"),
        ("agent --api-key 'a b' end", "agent --api-key '***' end"),
        ("--api-key=abc", "--api-key=***"),
        ("OPENAI_API_KEY=abc", "OPENAI_API_KEY=***"),
        ('{"apiKey": "abc", "n": 1}', '{"apiKey": "***", "n": 1}'),
        ("hf_0123456789abcdefghij", "***"),
        ("github_pat_11ABC_def", "***"),
        ("xoxb-1-a", "***"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
    ],
)
def test_secrets_inside_texts_are_masked(text: str, expected: str) -> None:
    assert masked({"command": [text]}) == {"command": [expected]}


@pytest.mark.parametrize("option", ["--token", "--api-key", "--key", "--hfToken"])
def test_the_word_after_a_secret_option_is_masked(option: str) -> None:
    assert masked({"command": ["serve", option, "abc", "abc"]}) == {"command": ["serve", option, "***", "abc"]}
