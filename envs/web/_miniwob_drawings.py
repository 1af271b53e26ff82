"""Shapes, colors and things that are dragged: the solutions that look at places."""

import re
from collections.abc import Iterator, Mapping

from envgym.envs.web._miniwob_solving import (
    ElementMissing,
    Oracle,
    all_then_submit,
    click,
    drag,
    every,
    first,
    found_in,
    leading,
    submit,
)
from envgym.envs.web._miniwob_view import PageElement, PageView

_SYNONYMS = {"grey": "gray", "aqua": "cyan", "fuchsia": "magenta"}
_ROLES = {"circle": "circle", "triangle": "polygon", "rectangle": "rect"}
_LARGE = 15
_SHAPES = ("circle", "polygon", "rect", "text")


def _box(node: PageElement) -> tuple[int, int, int, int]:
    if node.box is None:
        raise ElementMissing(f"{node} has no place")
    return node.box


def _middle(node: PageElement) -> tuple[float, float]:
    left, top, width, height = _box(node)
    return left + width / 2, top + height / 2


def _color(word: str) -> str:
    return _SYNONYMS.get(word, word)


def _fits(node: PageElement, words: list[str]) -> bool:
    for word in words:
        kind = word.removesuffix("s")
        if kind in ("large", "small"):
            is_right = (_box(node)[3] >= _LARGE) == (kind == "large")
        elif kind in _ROLES:
            is_right = node.role == _ROLES[kind]
        elif kind in ("letter", "digit", "number"):
            is_right = node.role == "text" and node.name.isdigit() == (kind != "letter")
        elif kind in ("shape",):
            is_right = node.role != "text"
        else:
            is_right = kind == "item" or node.color == _color(word) or node.name in (word, kind)
        if not is_right:
            return False
    return True


def _count(view: PageView) -> str:
    words = found_in(r"How many (.*) are there", view.task).split()
    shapes = [node for node in every(view, *_SHAPES) if node.box is not None]
    return click(first(view, "button", name=str(sum(_fits(node, words) for node in shapes))))


def _shape(view: PageView) -> str:
    words = found_in(r"Click on an? (.*)", view.task).split()
    return click(leading(node for node in every(view, *_SHAPES) if node.box is not None and _fits(node, words)))


def _figure(view: PageView) -> str:
    shape = leading(node for node in every(view, *_SHAPES) if node.box is not None)
    kinds = ("Rectangle", "Circle", "Triangle", "Letter", "Number")
    name = leading(kind for kind in kinds if _fits(shape, [kind.lower()]))
    return click(first(view, "button", name=name))


def _shade(view: PageView) -> str:
    """Choose every field whose strongest part is the color."""
    place = ["red", "green", "blue"].index(found_in(r"shades of (\w+)", view.task))
    for node in every(view, "clickable"):
        parts = re.findall("[0-9a-f]{2}", node.color or "")
        if len(parts) == 3 and max(parts) == parts[place] != min(parts) and node.name != "selected":
            return click(node)
    return submit(view)


def _pie(view: PageView) -> str:
    label = found_in(r'labeled "(.*)"', view.task)
    target = next((node for node in every(view, "text", name=label) if _box(node)[3] > 5), None)
    return click(target or first(view, "text", name="+"))


def _ascending(view: PageView) -> str:
    numbers = every(view, "text", name="1")
    return click(numbers[0] if numbers else first(view, "rect"))


def _grid(view: PageView) -> str:
    x, y = map(int, re.findall(r"\((-?\d),(-?\d)\)", view.task)[0])
    points = every(view, "circle")
    columns = sorted({_box(point)[0] for point in points})
    rows = sorted({_box(point)[1] for point in points}, reverse=True)
    return click(leading(point for point in points if _box(point)[:2] == (columns[x + 2], rows[y + 2])))


def _line(view: PageView) -> list[str]:
    """Draw a line with its middle in the dot.

    The page looks how near the pointer's moves came, not the line, and to the dot's upper left corner, not its middle.
    """
    x, y = _middle(first(view, "circle"))
    plane = first(view, "clickable")
    left, top, width, height = _box(plane)
    x, y = x - left - 2, y - top - 2
    is_vertical = "vertical" in view.task
    reach = min(y, height - y) - 2 if is_vertical else min(x, width - x) - 2
    dx, dy = (0, reach) if is_vertical else (reach, 0)
    return [f"drag {plane.id} at {x - dx:g} {y - dy:g} to {plane.id} at {x + dx:g} {y + dy:g}"]


def _direction(view: PageView) -> list[str]:
    """Drag the only shape some way; what it is called afterwards does not matter."""
    dx, dy = {"left": (-30, 0), "right": (30, 0), "up": (0, -25), "down": (0, 25)}[
        found_in(r"(left|right|up|down)", view.task)
    ]
    shape = leading(node for node in every(view, *_SHAPES) if node.box is not None)
    _, _, width, height = _box(shape)
    return [drag(shape, shape, by=(width / 2 + dx, height / 2 + dy))]


def _contained(view: PageView) -> list[str]:
    words = found_in(r"all (.*?) into", view.task).split()
    *shapes, container = every(view, "circle", "polygon", "rect")
    return list(_packed([shape for shape in shapes if _fits(shape, words)], container))


def _packed(shapes: list[PageElement], container: PageElement) -> Iterator[str]:
    """Put shapes into a box in rows, in the order of their numbers."""
    for place, shape in enumerate(shapes):
        yield drag(shape, container, at=(15 + 20 * (place % 3), 12 + 12 * (place // 3)))


def _sorted_boxes(view: PageView) -> list[str]:
    words = found_in(r"all (.*?) into", view.task).split()
    *shapes, left, right = every(view, "circle", "polygon", "rect")
    is_left = "into the left" in view.task
    targets = [shape for shape in shapes if _fits(shape, words)]
    others = [shape for shape in shapes if shape not in targets]
    here, there = (left, right) if is_left else (right, left)
    return [*_packed(targets, here), *_packed(others, there)]


def _items(view: PageView) -> list[str]:
    texts = every(view, "listitem")
    return [node.name for node in texts]


def _moved(view: PageView, at: int, place: int) -> str:
    items = every(view, "listitem")
    return drag(items[at], items[place], at=(40, 26 if place > at else 2))


def _list(view: PageView) -> str:
    name, where = re.findall(r"Drag (\S+) (.*)\.", view.task)[0]
    items = _items(view)
    at = items.index(name)
    fixed = {
        "to the top": 0,
        "to the bottom": len(items) - 1,
        "down by one position": at + 1,
        "up by one position": at - 1,
    }
    place = fixed[where] if where in fixed else int(found_in(r"(\d+)", where)) - 1
    return _moved(view, at, place)


def _sort(view: PageView) -> str:
    numbers = _items(view)
    for place, number in enumerate(sorted(numbers, key=int)):
        if numbers[place] != number:
            return _moved(view, numbers.index(number, place), place)
    return submit(view)


DRAWINGS: Mapping[str, Oracle] = {
    "ascending-numbers": _ascending,
    "click-color": lambda view: click(
        leading(
            node for node in every(view, "clickable") if node.color == _color(found_in(r"the (\w+) colored", view.task))
        )
    ),
    "click-pie": _pie,
    "click-pie-nodelay": _pie,
    "click-shades": _shade,
    "click-shape": _shape,
    "count-shape": _count,
    "drag-box": all_then_submit(lambda view: [drag(first(view, name="s"), first(view, name="L"))]),
    "drag-circle": lambda view: submit(view) if view.past else _direction(view)[0],
    "drag-items": _list,
    "drag-shapes": all_then_submit(_contained),
    "drag-shapes-2": all_then_submit(_sorted_boxes),
    "drag-single-shape": lambda view: submit(view) if view.past else _direction(view)[0],
    "drag-sort-numbers": _sort,
    "draw-line": lambda view: submit(view) if view.past else _line(view)[0],
    "grid-coordinate": _grid,
    "identify-shape": _figure,
}
