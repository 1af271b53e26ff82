"""What a text needs that meets several constraints, collected while they are drawn."""

from dataclasses import dataclass

from envgym.envs.math._instructions.written import split_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """Everything that constraints ask for; nothing is asked for by default."""

    topic: str
    topic_count: int = 1
    """How often the topic occurs at least."""
    min_words: int = 0
    paragraphs: int = 1
    sections: int = 0
    """Headings, one at the beginning of each paragraph."""
    bullets: int = 0
    bullet_word: str = ""
    has_title: bool = False
    keys: tuple[str, ...] = ()
    """Of a JSON object."""
    start: str = ""
    end: str = ""
    opening: tuple[int, str] = (0, "")
    """Number of a paragraph and its first word."""
    sentences: int = 0
    """In the whole text; 0: as many as there are."""
    paragraph_sentences: int = 0
    words: tuple[tuple[str, int], ...] = ()
    """Words, and how often they occur."""
    avoided_words: tuple[str, ...] = ()
    letters: tuple[tuple[str, int], ...] = ()
    """Letters, and how often they occur at least."""
    avoided_letters: str = ""
    placeholders: int = 0
    is_lower: bool = False
    is_upper: bool = False

    @property
    def fixed_text(self) -> str:
        """All that must occur word for word."""
        words = (word for word, _ in self.words)
        return " ".join((self.topic, self.bullet_word, self.start, self.end, self.opening[1], *self.keys, *words))

    @property
    def reserved(self) -> frozenset[str]:
        """Words that other constraints must neither forbid nor count."""
        return frozenset(split_words(self.fixed_text)) | frozenset(self.avoided_words)
