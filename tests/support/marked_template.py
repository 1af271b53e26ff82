"""A chat template that marks what the assistant writes."""

from importlib.resources import files


def marked_template() -> str:
    """Return the template of `tiny` with marks around what the assistant writes."""
    source = files("envgym.agents.models").joinpath("tiny_chat.jinja").read_text(encoding="utf-8")
    begin, end = "    {%- if message.role == 'assistant' and", "    {{- '<|im_end|>\\n' -}}\n{%- endfor -%}"
    head, _, rest = source.partition(begin)
    body, _, tail = rest.partition(end)
    mine = f"{{%- if message.role == 'assistant' -%}}{{%- generation -%}}{begin}{body}{{{{- '<|im_end|>' -}}}}"
    others = "{{- message.content or '' -}}{{- '<|im_end|>\\n' -}}{%- endif -%}{%- endfor -%}"
    return f"{head}{mine}{{%- endgeneration -%}}{{{{- '\\n' -}}}}{{%- else -%}}{others}{tail}"
