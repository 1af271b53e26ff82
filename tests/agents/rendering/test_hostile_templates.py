"""Chat templates come with a model, and may be programs that never end or eat all memory: each is one sentence."""

import pytest

from envgym.agents.models.tiny import tiny_tokenizer
from envgym.agents.rendering import template as template_module
from envgym.agents.rendering.template import ChatTemplate
from envgym.errors import InvalidInput

TWICE = "{% set box = namespace(s='ab') %}{% for i in range(60) %}{% set box.s = box.s ~ box.s %}{% endfor %}"
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
FOREVER = r"chat template must render within 1 s and 1 GiB, got the process ended with code -24 \(.*\); use a model"


def refusal(text: str) -> str:
    """Return what is said of a template."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = text
    with pytest.raises(InvalidInput) as caught:
        ChatTemplate(tokenizer, {})
    return str(caught.value)


@pytest.mark.parametrize(
    "text,reason",
    [
        ("{% for i in range(10**9) %}{% endfor %}", "OverflowError: Range too big"),
        ("{{ 'a' * 10**10 }}", "MemoryError"),
        ("{{ '%10000000000d' % 1 }}", "MemoryError"),
        ("{{ 'a'.ljust(10**10) }}", "MemoryError"),
        (TWICE, "MemoryError"),
        ("{{ 'a' * 10**8 }}", "a text of 100,000,000 characters, of which 16,777,216 are allowed"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ().__class__.__base__.__subclasses__() }}", "SecurityError"),
        ("{% for", "TemplateSyntaxError"),
        ("{{ raise_exception('no') }}", "TemplateError: no"),
    ],
)
def test_template_that_asks_for_too_much_is_one_sentence(text: str, reason: str) -> None:
    assert refusal(text).startswith(f"chat template must render a user message, got {reason}")


@pytest.mark.slow
@pytest.mark.parametrize("text", [LOOPS, "{{ 9**(9**9) }}"])
def test_template_that_never_ends_is_ended(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "CPU_S", 1)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = text
    with pytest.raises(InvalidInput, match=FOREVER):
        ChatTemplate(tokenizer, {})
    tokenizer = tiny_tokenizer()
    assert ChatTemplate(tokenizer, {}).render([{"role": "user", "content": "hi"}], (), opens_turn=True).count("hi") == 1


def test_worker_renders_what_the_tokenizer_does() -> None:
    tokenizer = tiny_tokenizer()
    messages = [{"role": "user", "content": "ä\ud800 <|im_end|>"}, {"role": "assistant", "content": "{{ 1 }}"}]
    for opens_turn in (False, True):
        expected = tokenizer.apply_chat_template(messages, add_generation_prompt=opens_turn, tokenize=False)
        assert ChatTemplate(tokenizer, {}).render(messages, (), opens_turn=opens_turn) == expected
