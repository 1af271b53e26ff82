"""One tokenizer, used so that outside text can never turn into a control token, and tokens can be shown exactly.

Text from outside (a task, a tool's output) may contain `<|im_end|>` or `<tool_call>`. Such a place is *escaped*: its
characters move into Unicode's private planes, where no template and no tokenizer knows them, and come back only when
ids are made, with a cut inside each place so that no tokenizer can match it. Decoding gives the original text.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from envgym.core.json_types import well_formed
from envgym.core.segments import Origin, Segment
from envgym.errors import InvalidInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_CUT = 0x100000
"""A character moved here is followed by a cut."""
_KEEP = 0xF0000
"""A character moved here is not."""
_QUOTE = "\ufdd0"
"""Stands before a character that was in the private planes (or equal to this one) from the start."""
_NATIVE = re.compile(f"[{_QUOTE}\U000f0000-\U0010ffff]")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Encoded(NamedTuple):
    """Ids of a text and where each comes from."""

    ids: list[int]
    starts: list[int]
    """[T] first character of each token, never falling."""
    ends: list[int]
    """[T] character after each token, never falling."""


class TokenCodec:
    """Encodes, decodes and shows the tokens of one fast tokenizer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", *, markup: str = "") -> None:
        """Wrap `tokenizer`; its added tokens that occur in `markup` (a chat template) are control tokens too."""
        self.tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        added = self._backend.get_added_tokens_decoder()
        texts = {index: token.content for index, token in added.items()}
        self._special = frozenset(index for index, token in added.items() if token.special)
        plain = (index for index, text in texts.items() if len(text) > 1 and text.strip() and text in markup)
        self._control = self._special | frozenset(plain)
        self._is_byte_level = "ByteLevel" in repr(self._backend.decoder)
        self._whole = {index: text for index, text in texts.items() if self._is_byte_level or index in self._special}
        """Tokens that are read as they are written."""
        self._string = cache(self._read_string)

    # ---- control tokens ------------------------------------------------------------------------------------------

    def first_control(self, text: str) -> tuple[int, str] | None:
        """Return the id and the text of the control token with which `text` begins, None where it begins otherwise."""
        encoded = self.encode(text)
        if not encoded.ids or encoded.ids[0] not in self._control or encoded.starts[0] != 0:
            return None
        return encoded.ids[0], text[: encoded.ends[0]]

    def count_as_markup(self, ids: Iterable[int]) -> None:
        """Let the model's own text hold these special tokens, as it holds tags such as `<tool_call>`."""
        self._special = self._special.difference(ids)

    def control(self, ids: Iterable[int]) -> frozenset[int]:
        return self._control.intersection(ids)

    def special(self, ids: Iterable[int]) -> frozenset[int]:
        """Return the special tokens among `ids`; tags that a model writes as text are not special."""
        return self._special.intersection(ids)

    def count_control(self, ids: Sequence[int]) -> int:
        return sum(map(self._control.__contains__, ids))

    def quote(self, text: str) -> str:
        """Return `text` so that nothing in it is taken for an escape."""
        return _NATIVE.sub(lambda match: _QUOTE + match.group(), well_formed(text))

    def escape(self, text: str, *, markup: bool = False) -> str:
        """Return `text` with every place escaped that would become a control token.

        With `markup` only special tokens are escaped and tags such as `<tool_call>` stay what they are: for text of
        the env's author and of the model itself.
        """
        text = self.quote(text)
        forbidden = self._special if markup else self._control
        encoded = self._encode_plain(text)
        if forbidden.isdisjoint(encoded.ids):
            return text
        parts: list[str] = []
        done = 0
        for index, start, end in zip(*encoded, strict=True):
            if index in forbidden and start >= done:
                parts += text[done:start], _move(text[start], _CUT)
                parts += (_move(char, _KEEP) for char in text[start + 1 : end])
                done = end
        return "".join([*parts, text[done:]])

    def escape_all(self, text: str) -> str:
        """Return `text` with a cut after every character: no token of it spans two of them."""
        return "".join(_move(char, _CUT) for char in well_formed(text))

    # ---- ids and text --------------------------------------------------------------------------------------------

    def encode(self, text: str) -> Encoded:
        """Return the ids of a text, escaped places undone; characters are counted in the text as it is given."""
        if not _NATIVE.search(text):
            return self._encode_plain(text)
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        for places in _pieces(text):
            part = self._encode_plain("".join(char for char, _ in places))
            last = len(places) - 1
            ids += part.ids
            starts += [places[min(start, last)][1] for start in part.starts]
            ends += [places[max(end - 1, 0)][1] + 1 for end in part.ends]
        return Encoded(ids, starts, ends)

    def _encode_plain(self, text: str) -> Encoded:
        if self._backend.truncation is not None:  # left by someone else's call of the tokenizer
            self._backend.no_truncation()
        if self._backend.padding is not None:
            self._backend.no_padding()
        encoding = self._backend.encode(text, add_special_tokens=False)
        offsets = encoding.offsets
        return Encoded(encoding.ids, [start for start, _ in offsets], [end for _, end in offsets])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, control tokens included."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def strings(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Return each token as a person reads it; bytes that are no UTF-8 on their own are written as `\\xe2`."""
        return tuple(map(self._string, ids))

    def _read_string(self, index: int) -> str:
        if index in self._whole:
            return self._whole[index]
        name = self._backend.id_to_token(index)
        if name is None:
            return f"<unknown token {index}>"
        if self._is_byte_level:
            return bytes(_BYTE_OF[char] for char in name).decode(errors="backslashreplace")
        if byte := _BYTE.fullmatch(name):
            return bytes.fromhex(byte.group(1)).decode(errors="backslashreplace")
        return name.replace("\u2581", " ") if "\u2581" in name else self.decode([index])

    # ---- segments ------------------------------------------------------------------------------------------------

    def segment(self, origin: Origin, ids: Sequence[int]) -> Segment:
        """Return a segment of text that nobody sampled."""
        return Segment(origin=origin, token_ids=tuple(ids), token_strings=self.strings(ids))

    def segments(
        self, encoded: Encoded, spans: Iterable[tuple[int, int]], inside: Origin, outside: Origin, *, skip: int = 0
    ) -> tuple[Segment, ...]:
        """Split tokens by origin, the first `skip` left out.

        Tokens with a character in one of `spans` (rising, disjoint) are `inside`, the others `outside`.
        """
        borders = [skip]
        for start, end in spans:
            first = max(bisect_right(encoded.ends, start), borders[-1])
            last = max(bisect_left(encoded.starts, end), first)
            if end > start and last > first:
                borders += [first, last]
        borders.append(len(encoded.ids))
        return tuple(
            self.segment(inside if index % 2 else outside, encoded.ids[first:last])
            for index, (first, last) in enumerate(pairwise(borders))
            if first < last
        )


def _move(char: str, plane: int) -> str:
    """Return the escape of `char` in a private plane; a character above plane 0 stays, quoted."""
    return chr(plane + ord(char)) if ord(char) < 0xFFFE else _QUOTE + char


def _pieces(text: str) -> list[list[tuple[str, int]]]:
    """Undo the escapes and cut where they say so; each character comes with its place in `text`."""
    pieces: list[list[tuple[str, int]]] = [[]]
    is_quoted = False
    for place, char in enumerate(text):
        if char == _QUOTE and not is_quoted:
            is_quoted = True
            continue
        code = ord(char)
        if is_quoted or code < _KEEP:
            pieces[-1].append((char, place))
        elif code < _CUT:
            pieces[-1].append((chr(code - _KEEP), place))
        else:
            pieces[-1].append((chr(code - _CUT), place))
            pieces.append([])
        is_quoted = False
    return [piece for piece in pieces if piece]


def _byte_alphabet() -> dict[str, int]:
    """Return the characters with which byte-level tokenizers write the 256 bytes; printable ones are themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def require_fast(tokenizer: object) -> "PreTrainedTokenizerFast":
    """Return a tokenizer whose tokens can be traced to characters. Raises: InvalidInput: these cannot."""
    if not getattr(tokenizer, "is_fast", False):
        do = "load one that has a tokenizer.json"
        raise InvalidInput.of("tokenizer", "be a fast one", type(tokenizer).__name__, where="renderer", do=do)
    return tokenizer  # type: ignore[return-value]  # as was just checked
