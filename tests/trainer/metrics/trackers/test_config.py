"""What of a run's settings leaves the machine."""

import pytest

from envgym.trainer.metrics.trackers.config import masked


@pytest.mark.parametrize(
    "key", ["api_key", "OPENAI_API_KEY", "token", "hf-token", "password", "client_secret", "Cookie"]
)
def test_text_under_a_secret_key_is_masked_at_any_depth(key: str) -> None:
    config = {"models": [{"kind": {key: "abc", "model": "m"}}]}
    assert masked(config) == {"models": [{"kind": {key: "***", "model": "m"}}]}


def test_what_is_no_secret_stays() -> None:
    config = {
        "api_key_env": "OPENAI_API_KEY",
        "max_turn_tokens": 24,
        "token": None,
        "api_key": None,
        "url": "http://host:8000/v1?page=2",
        "tokenizer": "a/b",
        "shares": [0.5, True],
    }
    assert masked(config) == config


@pytest.mark.parametrize(
    "text,expected",
    [
        ("https://me:pass@host/v1", "https://***@host/v1"),
        ("http://host/?write_token=abc&page=2", "http://host/?***&page=2"),
        ("agent --key sk-0123456789abcdefghij end", "agent --key *** end"),
        ("hf_0123456789abcdefghij", "***"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
    ],
)
def test_secrets_inside_texts_are_masked(text: str, expected: str) -> None:
    assert masked({"command": [text]}) == {"command": [expected]}
