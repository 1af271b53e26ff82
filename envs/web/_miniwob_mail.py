"""Mail and messages: the solutions that look for what stands with a name."""

import re
from collections.abc import Iterator, Mapping

from envgym.envs.web._miniwob_solving import (
    ElementMissing,
    Oracle,
    all_then_submit,
    click,
    every,
    fill,
    first,
    found_in,
    leading,
    quoted_in,
)
from envgym.envs.web._miniwob_view import PageElement, PageView


def _near(view: PageView, sender: str) -> Iterator[PageElement]:
    nodes = [node for node in view.nodes if node.id is not None]
    start = next((place for place, node in enumerate(nodes) if node.name == sender), None)
    if start is None:
        raise ElementMissing(f"no mail by {sender}")
    depth = nodes[start].depth
    for node in nodes[start:]:
        if node.depth < depth:
            return
        yield node


def _mail(view: PageView) -> str:
    by = found_in(r"(?:email by|from) (\w[\w-]*)", view.task)
    for word, icon in (("important", "star"), ("delete", "trash")):
        if word in view.task:
            return click(leading(node for node in _near(view, by) if icon in node.name.split()))
    is_reply = "reply" in view.task
    text = quoted_in(view.task)[0] if is_reply else found_in(r"to ([\w-]+)\W*$", view.task)
    send = every(view, "clickable", name="send-reply" if is_reply else "send-forward")
    if send:
        field = first(view, "textbox")
        return click(send[0]) if field.value == text else fill(field, text)
    buttons = every(view, "clickable", "text", name="Reply" if is_reply else "Forward")
    return click(buttons[0] if buttons else leading(_near(view, by)))


_ICONS = {"Reply": "reply", "Retweet": "retweet", "Like": "like", "Share": "share"}


def _posts(view: PageView, user: str) -> Iterator[tuple[PageElement, ...]]:
    nodes = [node for node in view.nodes if node.id is not None]
    heads = [place for place, node in enumerate(nodes) if node.role == "text" and "@" in node.name]
    for head, end in zip(heads, [*heads[1:], len(nodes)], strict=True):
        if user in nodes[head].name.split():
            yield tuple(nodes[head:end])


def _post(view: PageView) -> str:
    """Use one button of a user's post, which may be behind `more`."""
    user, name = found_in(r"user (@\S+?),", view.task), quoted_in(view.task)[0]
    parts = leading(_posts(view, user))
    for node in parts:
        if node.role != "text" and node.name.lower().startswith(_ICONS.get(name, name).lower()):
            return click(node)
    return click(leading(node for node in parts if node.name == "more"))


def _marks(view: PageView) -> list[str]:
    user, icon = found_in(r"by (@\S+)", view.task), _ICONS[quoted_in(view.task)[0]]
    buttons = [node for post in _posts(view, user) for node in post if icon in node.name.split()]
    count = re.search(r"on (\d+) post", view.task)
    return [click(node) for node in buttons[: int(count[1]) if count else None]]


MAIL: Mapping[str, Oracle] = {
    "email-inbox": _mail,
    "email-inbox-delete": _mail,
    "email-inbox-forward": _mail,
    "email-inbox-important": _mail,
    "email-inbox-noscroll": _mail,
    "email-inbox-reply": _mail,
    "email-inbox-star-reply": _mail,
    "social-media": _post,
    "social-media-all": all_then_submit(_marks),
    "social-media-some": all_then_submit(_marks),
}
