"""Fields, lists, dates, sliders and texts: the solutions that fill something in."""

import re
from calendar import month_name
from collections.abc import Callable, Iterator, Mapping, Sequence

from envgym.envs.web._miniwob_solving import (
    FIELDS,
    Oracle,
    all_then_submit,
    click,
    drag,
    enter,
    every,
    fill,
    first,
    found_in,
    leading,
    number_of,
    press,
    quoted_in,
    select,
    submit,
    texts,
)
from envgym.envs.web._miniwob_view import PageView

# ---- forms --------------------------------------------------------------------------------------------------------


def _iso_date(view: PageView) -> list[str]:
    month, day, year = re.findall(r"(\d\d)/(\d\d)/(\d{4})", view.task)[0]
    return [f"{year}-{month}-{day}"]


def _iso_time(view: PageView) -> list[str]:
    hour, minute, half = re.findall(r"(\d+):(\d\d) ([AP]M)", view.task)[0]
    return [f"{int(hour) % 12 + 12 * (half == 'PM'):02}:{minute}"]


def _cased(view: PageView) -> list[str]:
    text = quoted_in(view.task)[0]
    return [text.upper() if "upper case" in view.task else text.lower()]


def _nth_word(view: PageView) -> list[str]:
    return [re.sub("[^a-zA-Z]", "", " ".join(texts(view)).split()[number_of(view.task) - 1])]


def _rows(view: PageView) -> dict[str, str]:
    pairs = (node.name.split(" |") for node in every(view, "row"))
    return {parts[0].strip(): parts[1].strip() for parts in pairs if len(parts) > 1}


def _long_text(view: PageView) -> list[str]:
    values = [node.value or "" for node in every(view, "textbox") if node.multiline]
    return [values[number_of(view.task) - 1 if len(values) > 1 else 0]]


def _sum(view: PageView) -> list[str]:
    a, sign, b = re.findall(r"(-?\d+) ([-+x*]) (-?\d+)", " ".join(texts(view)))[0]
    return [str({"+": int(a) + int(b), "-": int(a) - int(b)}.get(sign, int(a) * int(b)))]


def _unknown(view: PageView) -> list[str]:
    left, sign, right, total = re.findall(r"(x|\d+) ([-+]) (x|\d+) = (-?\d+)", " ".join(texts(view)))[0]
    if sign == "+":
        return [str(int(total) - int(right if left == "x" else left))]
    return [str(int(total) + int(right) if left == "x" else int(left) - int(total))]


def _movie(view: PageView) -> str:
    genre, director, year = re.findall(r"for (\w+) movies directed by (\w+) from year (\d+)", view.task)[0]
    values = {"genre": genre, "director": director, "year": year, "date": year}
    names = (next((word for word in values if word in node.name.lower()), "") for node in view.nodes)
    for field, name in zip(every(view, "textbox"), filter(None, names), strict=True):
        if field.value != values[name]:
            return fill(field, values[name])
    return click(every(view, "clickable", "button")[-1])


def _login(view: PageView) -> str:
    cancel = every(view, "button", name="Cancel")
    return click(cancel[0]) if cancel else _popup_form(view)


_popup_form = enter(lambda view: quoted_in(view.task), "OK")


def _choice(view: PageView) -> str:
    options = found_in(r"Select (.*?) from the", view.task).split(", ")
    box = first(view, "combobox")
    return submit(view) if sorted((box.value or "").split(", ")) == sorted(options) else select(box, *options)


_MONTHS = tuple(month_name)[1:]


def _calendar(view: PageView) -> str:
    month, day, year = map(int, re.findall(r"(\d\d)/(\d\d)/(\d{4})", view.task)[0])
    field = first(view, "textbox")
    if field.value:
        return submit(view)
    text = " ".join(node.name for node in view.nodes)
    match = re.search(rf"({'|'.join(_MONTHS)}) (\d{{4}})", text)
    if match is None:
        return click(field)
    there = 12 * int(match[2]) + _MONTHS.index(match[1]) + 1
    if there != 12 * year + month:
        return click(first(view, "link", "clickable", "button", name="Prev" if there > 12 * year + month else "Next"))
    return click(first(view, "link", name=str(day)))


def _autocomplete(view: PageView) -> str:
    start, *end = quoted_in(view.task)
    field = first(view, "textbox")
    value = field.value or ""
    is_taken = value != start or (bool(view.past) and view.past[-1].startswith("click"))
    if is_taken and value.startswith(start) and value.endswith(*end or ("",)):
        return submit(view)
    offers = (node for node in every(view, "option", "menuitem", "listitem", "clickable", "text"))
    fits = [node for node in offers if node.name.startswith(start) and node.name.endswith(*end or ("",))]
    return click(fits[0]) if fits else fill(field, start)


def _guess(view: PageView) -> str:
    """Halve what is left: the last answer says on which side, the earlier guesses how far."""
    guesses = [int(action.split('"')[1]) for action in view.past if action.startswith("fill")]
    text = " ".join(texts(view))
    is_new = bool(view.past) and view.past[-1].startswith("fill")
    if is_new:
        return submit(view)
    low, high = -1, 10
    if guesses:
        last = guesses[-1]
        if "higher" in text:
            low, high = last, min([guess for guess in guesses if guess > last], default=10)
        else:
            low, high = max([guess for guess in guesses if guess < last], default=-1), last
    return fill(first(view, *FIELDS), str((low + high) // 2))


def _generate(view: PageView) -> str:
    current = next((int(name) for name in texts(view) if re.fullmatch(r"\d+", name)), None)
    bound = int(re.sub(r"\D", "", view.task) or 0)
    tests: dict[str, Callable[[int], bool]] = {
        "less": lambda number: number < bound,
        "greater": lambda number: number > bound,
        "odd": lambda number: number % 2 == 1,
        "even": lambda number: number % 2 == 0,
    }
    fits = leading(test for word, test in tests.items() if word in view.task)
    return submit(view) if current is not None and fits(current) else click(first(view, "button", name="Generate"))


def _greatest(view: PageView) -> Iterator[str]:
    cards = [node for node in every(view, "clickable") if node.name.isdigit()]
    yield from [action for action in view.past if action.startswith("click")][:1] or [
        click(max(cards, key=lambda card: int(card.name)))
    ]


def _parities(view: PageView) -> Iterator[str]:
    nodes = [node for node in view.nodes if node.id is not None]
    for before, node, after in zip(nodes, nodes[1:], nodes[2:], strict=False):
        if before.name == "Odd" and after.name == "Even":
            yield click(before if int(node.name) % 2 else after)


# ---- sliders ------------------------------------------------------------------------------------------------------


def _slides(view: PageView, values: Sequence[int]) -> str | None:
    nodes = [node for node in view.nodes if node.id is not None]
    handles = [node for node in nodes if "ui-slider-handle" in node.name]
    for handle, value in zip(handles, values, strict=True):
        label = leading(node for node in nodes[nodes.index(handle) :] if re.fullmatch(r"-?\d+", node.name))
        missing = value - int(label.name)
        if missing:
            return press(handle, *["ArrowRight" if missing > 0 else "ArrowLeft"] * min(abs(missing), 100))
    return None


def _slider(view: PageView) -> str:
    numbers = re.findall(r"-?\d+", found_in(r"(?:Select|combination) (\[?[-\d,]+)", view.task))
    return _slides(view, [int(number) for number in numbers]) or submit(view)


def _slider_and_box(view: PageView) -> str:
    box = every(view, "checkbox")[number_of(view.task) - 1]
    moved = _slides(view, [int(found_in(r"Select (-?\d+)", view.task))])
    return moved or (submit(view) if box.checked else click(box))


def _box_and_text(view: PageView) -> str:
    places = [int(place) - 1 for place in re.findall(r"(\d+)(?:st|nd|rd)", view.task)]
    text = quoted_in(view.task)[0]
    button, field = every(view, "radio")[places[0]], every(view, "textbox")[places[1]]
    if not button.checked:
        return click(button)
    return fill(field, text) if field.value != text else submit(view)


def _choice_and_button(view: PageView) -> str:
    option, name = re.findall(r'Choose (.*) from the dropdown, then click the button labeled "(.*)"', view.task)[0]
    box = first(view, "combobox")
    return select(box, option) if box.value != option else click(first(view, "button", name=name))


# ---- texts and lists ----------------------------------------------------------------------------------------------


def _scrolled(view: PageView) -> str:
    text = first(view, "textbox")
    at, end = text.scrolled or (0, 0)
    goal = 0 if "top" in view.task else end
    return f"scroll {text.id} by {goal - at}" if abs(goal - at) > 1 else submit(view)


def _marked(view: PageView) -> str:
    paragraphs = every(view, "text")
    text = paragraphs[number_of(view.task) - 1 if len(paragraphs) > 1 else 0]
    return drag(text, text) if not view.past else submit(view)


def _terminal(view: PageView) -> str:
    field = first(view, "textbox")
    if not view.past:
        return press(field, *"ls", "Enter")
    extension = found_in(r"extension (\S+)$", view.task) if "extension ." in view.task else ""
    files = [name for line in texts(view) for name in line.split() if re.fullmatch(r"[\w.]+", name)]
    listed = files[files.index("ls") + 1 :] if "ls" in files else files
    name = leading(f for f in listed if (f.endswith(extension) if extension else "." not in f) and f != "user")
    return press(field, "r", "m", "Space", *name, "Enter")


def _resized(view: PageView) -> str:
    if view.past:
        return submit(view)
    side = "ui-resizable-e" if "width" in view.task else "ui-resizable-s"
    handle = leading(node for node in every(view, "clickable") if side in node.name.split())
    by = 20 if "larger" in view.task else -20
    assert handle.box is not None, "a handle has no words, so it has a box"
    middle = (handle.box[2] / 2, handle.box[3] / 2)
    return drag(handle, handle, by=(middle[0] + by, middle[1]) if "width" in view.task else (middle[0], middle[1] + by))


FORMS: Mapping[str, Oracle] = {
    "choose-date": _calendar,
    "choose-date-easy": _calendar,
    "choose-date-medium": _calendar,
    "choose-date-nodelay": _calendar,
    "choose-list": _choice,
    "click-scroll-list": _choice,
    "copy-paste": enter(_long_text),
    "copy-paste-2": enter(_long_text),
    "enter-date": enter(_iso_date),
    "enter-password": enter(lambda view: quoted_in(view.task) * 2),
    "enter-text": enter(lambda view: quoted_in(view.task)),
    "enter-text-2": enter(_cased),
    "enter-text-dynamic": enter(lambda view: quoted_in(view.task)),
    "enter-time": enter(_iso_time),
    "find-greatest": all_then_submit(_greatest),
    "find-word": enter(_nth_word),
    "form-sequence": _slider_and_box,
    "form-sequence-2": _box_and_text,
    "form-sequence-3": _choice_and_button,
    "generate-number": _generate,
    "guess-number": _guess,
    "highlight-text": _marked,
    "highlight-text-2": _marked,
    "login-user": enter(lambda view: quoted_in(view.task), "Login"),
    "login-user-popup": _login,
    "multi-layouts": _movie,
    "multi-orderings": _movie,
    "odd-or-even": all_then_submit(_parities),
    "read-table": enter(lambda view: [_rows(view)[found_in(r"value of (.*) into", view.task)]]),
    "read-table-2": enter(lambda view: [_rows(view)[name.rstrip(":")] for name in texts(view) if name.endswith(":")]),
    "resize-textarea": _resized,
    "scroll-text": enter(lambda view: [re.sub("[^a-zA-Z0-9]", "", _long_text(view)[0].split()[-1])]),
    "scroll-text-2": _scrolled,
    "simple-algebra": enter(_unknown),
    "simple-arithmetic": enter(_sum),
    "terminal": _terminal,
    "text-transform": enter(lambda view: ["".join(texts(view))]),
    "use-autocomplete": _autocomplete,
    "use-autocomplete-nodelay": _autocomplete,
    "use-slider": _slider,
    "use-slider-2": _slider,
    "use-spinner": enter(lambda view: [found_in(r"Select (-?\d+)", view.task)]),
    "visual-addition": enter(lambda view: [str(len(every(view, "box", name="addition-block")))]),
}
