"""A user who needs no model: tells a scenario piece by piece, agrees to what is proposed, does as told on the phone.

Everything said is the scenario's own, turned into the first person. The user keeps nothing between replies: what was
told is read off the conversation, so forks, threads and replays agree.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envgym.core.messages import Message, Role, ToolCall
from envgym.envs.tools._tau2.phone import wanted_calls, wanted_state
from envgym.errors import PartyFailure
from envgym.seeds import generator

STOP, TRANSFER, OUT_OF_SCOPE = "###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"
"""How a user ends the conversation."""
GREETING = "Hi! How can I help you today?"
"""What the agent is taken to have said first."""
MAX_SPEECHES = 30
"""Replies after which the user hangs up."""
MAX_HEARD = 4_000
"""Characters of a message that the user listens to; the patterns below must not meet a book."""

_YES = ("Yes, please.", "Yes, go ahead.", "Yes, that is right. Please go ahead.")
_BYE = ("No, that is all. Thank you.", "That was everything, thank you.", "Nothing else. Thanks for your help.")
_NOTHING = ("I have told you everything that I know.", "There is nothing more that I could tell you.")
_TOPICS = (
    (r"\bnames?\b|who (?:are|am) (?:you|I)|identi|verify|account|user id", r"^I am|\bname\b|\bid\b"),
    *(
        (words, words)
        for words in (r"e-?mail", r"zip|postal|address|\blive\b", r"order", r"reservation|confirmation|booking")
    ),
    *((words, words) for words in (r"phone|number", r"payment|card|refund|pay", r"\bdate|when|birth", r"\bid\b")),
)
"""What is asked for, and the facts that answer it."""
_ASKS_AGREEMENT = re.compile(
    r"\b(?:confirm|proceed|go ahead|agree|(?:shall|should) i (?!know)|would you like|do you want|"
    r"is that (?:ok|okay|correct|right)|"
    r"yes/no|\(yes\))",
    re.IGNORECASE,
)
_PROPOSES = re.compile(
    r"\b(?:(?:shall|should) i (?!know|have)|(?:can|may) i (?:proceed|go ahead)|do you (?:agree|want me)|"
    r"(?<!what )would you like me|is that (?:ok|okay|correct|right)|please confirm(?! your)|yes/no)|\(yes",
    re.IGNORECASE,
)
"""A question to which yes is an answer, whatever it names; the above may also ask for a fact to be confirmed."""
_ASKS_FOR_MORE = re.compile(
    r"\b(?:anything|something) (?:else|more)\b|\bfurther\b|\bother (?:question|request)", re.IGNORECASE
)
_TRANSFERS = re.compile(r"\btransferr(?:ed|ing) (?:you )?to a human", re.IGNORECASE)
_STAGE_DIRECTIONS = re.compile(
    r"tool call|ground your|make up the results|without revealing|do not reveal|don't reveal|make sure you mention|"
    r"^\W*for example|ask the agent for clarification|^be |express mild frustration|your replies|make up reasons",
    re.IGNORECASE,
)
_TRAITS = re.compile(
    r"You(?:'re| are) (?!fine|willing|ok|looking|flying|trying|not |also|only|available|interested|currently|going|in |"
    r"at |open|unable|certain|sure|under)[a-z][^.]{0,90}\.?"
)
"""What somebody is like, in the instructions: it is acted by a person, not said."""


class ScriptedUser:
    """Plays the user of one task; a `Party`."""

    def __init__(self, scenario: Mapping[str, Any], *, seed: int, has_phone: bool) -> None:
        """Take the instructions of a task's scenario; `seed` chooses among equal ways to say things."""
        self.opening = spoken(scenario.get("reason_for_call"))
        self.facts = [*spoken(scenario.get("known_info")), *spoken(scenario.get("unknown_info"))]
        wishes = spoken(scenario.get("task_instructions"), leave_out=_TRAITS)
        self.wishes = [text for text in wishes if text not in self.opening]
        self.seed, self.has_phone = seed, has_phone

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next message: words, or calls of the phone's tools. Raises: PartyFailure: nobody has spoken."""
        if not messages:
            raise PartyFailure("the scripted user was asked for a reply to nothing")
        heard = next((message.content[:MAX_HEARD] for message in reversed(messages) if message.role is Role.USER), "")
        if messages[-1].role is Role.TOOL:
            return self._after_calls(messages, heard)
        calls = wanted_calls(heard) if self.has_phone else []
        user_texts = [message.content for message in messages if message.role is Role.ASSISTANT and message.content]
        if calls and user_texts and len(user_texts) < MAX_SPEECHES:
            return Message(role=Role.ASSISTANT, content="", tool_calls=tuple(calls))
        return Message(role=Role.ASSISTANT, content=self._words(heard, user_texts))

    def _words(self, heard: str, user_texts: Sequence[str]) -> str:
        draw = generator(self.seed, "tau2 user", len(user_texts), heard)
        if not user_texts:
            return " ".join(["Hello.", *self.opening])
        if _TRANSFERS.search(heard):
            return TRANSFER
        disclosed = "\n".join(user_texts)
        undisclosed = [text for text in (*self.facts, *self.wishes) if text not in disclosed]
        answer = [text for text in self.facts if _concern_the_same(heard, text)] if _is_question(heard) else []
        asks = _PROPOSES if answer else _ASKS_AGREEMENT
        if asks.search(heard) and not _ASKS_FOR_MORE.search(heard):
            answer = [_YES[draw.integers(len(_YES))], *(text for text in answer if text in undisclosed)]
        more = [text for text in undisclosed if text not in answer][: 2 if answer else 3]
        if answer or more:
            return " ".join([*answer, *more, *([STOP] if len(user_texts) >= MAX_SPEECHES else [])])
        nothing = _NOTHING[draw.integers(len(_NOTHING))]
        if _is_question(heard) and not _ASKS_FOR_MORE.search(heard) and not any(text in disclosed for text in _NOTHING):
            return nothing
        return f"{_BYE[draw.integers(len(_BYE))]} {STOP}"

    def _after_calls(self, messages: Sequence[Message], heard: str) -> Message:
        """Set switches again that are not as wished, else tell what came of the calls."""
        since = max(place for place, message in enumerate(messages) if message.role is Role.USER)
        results = [message for message in messages[since:] if message.role is Role.TOOL]
        again = [
            ToolCall(name=result.name)
            for result in results
            if result.name is not None
            and result.name.startswith("toggle_")
            and sum(other.name == result.name for other in results) == 1
            and _is_not_as_wished(result.content, wanted_state(heard, result.name))
        ]
        if again:
            return Message(role=Role.ASSISTANT, content="", tool_calls=tuple(again))
        last = {result.name: result.content for result in results}
        return Message(role=Role.ASSISTANT, content=" ".join(["Done.", *last.values()]))


def _is_not_as_wished(result: str, wished: str | None) -> bool:
    return wished is not None and re.search(rf"\b{wished}\b", result) is None


def _is_question(text: str) -> bool:
    return "?" in text or re.search(r"\b(?:please|could you|tell me|need|provide|what|which)\b", text, re.I) is not None


def _concern_the_same(heard: str, fact: str) -> bool:
    return any(re.search(question, heard, re.I) and re.search(answer, fact, re.I) for question, answer in _TOPICS)


# ---- into the first person ----------------------------------------------------------------------------------------

_VERBS = (
    "ask|insist|say|tell|mention|request|accept|refuse|agree|decline|provide|give|check|make|proceed|choose|use|confirm|"
    "express|explain|complain|demand|push|keep|go|let|try|end|cancel|change|respond|reply|answer|claim|wait"
)
_OBJECT = (
    r"\b(to|for|with|of|by|from|than|let|lets|want|told|caused?|"
    r"(?:give|tell|ask|help|allow|save|offer|charge|refund|compensate|know|thank)s?) you\b"
)
_SECOND_PERSON = {"is": "are", "has": "have", "does": "do"}
_AGENT = r"\b(?:the |an |a )?(?:customer )?(?:service )?agent"
_REPLACEMENTS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"\banother agent\b", "somebody else"),
    (rf"{_AGENT}'s\b", "@r"),
    (rf"{_AGENT} doesn't\b", "@u don't"),
    (rf"{_AGENT} (is|has|does)\b", lambda match: f"@u {_SECOND_PERSON[match[1].lower()]}"),
    (rf"{_AGENT} (\w+ly )?(\w+?)ies\b", r"@u \1\2y"),
    (rf"{_AGENT} (\w+ly )?(\w+?)s\b", r"@u \1\2"),
    (rf"{_AGENT}\b", "@u"),
    (rf"(^|, |, then |; |\band )({_VERBS})\b", lambda match: f"{match[1]}I {match[2].lower()}"),
    (r"^(do not|don't|never|always) ", lambda match: f"I {match[1].lower()} "),
    (r"\byou (name is|mobile data)\b", r"my \1"),
    (r"\byourself\b", "myself"),
    (r"\byours\b", "mine"),
    (r"\byour\b", "my"),
    (r"\byou(?:'re| are)\b", "I am"),
    (r"\bare you\b", "am I"),
    (r"\byou were\b", "I was"),
    (r"\byou've\b", "I have"),
    (r"\byou'd\b", "I would"),
    (r"\byou'll\b", "I will"),
    (_OBJECT, r"\1 me"),
    (r"\byou\b", "I"),
    (r"@u", "you"),
    (r"@r", "your"),
)
"""Pattern and what takes its place, in order; @u and @r keep the agent's `you` and `your` apart from the user's."""


def spoken(text: object, *, leave_out: re.Pattern[str] | None = None) -> list[str]:
    """Return the sentences of an instruction as the user says them, without those that only direct the play."""
    plain = re.sub(r"\n\s*-\s*", " ", str(text or "").strip())
    pieces = (" ".join(piece.split()) for piece in re.split(r"(?<=[.!?])\s+|\n\s*\n", plain))
    return [
        _in_first_person(piece)
        for piece in pieces
        if re.search(r"\w", piece)
        and not _STAGE_DIRECTIONS.search(piece)
        and not (leave_out is not None and leave_out.fullmatch(piece))
    ]


def _in_first_person(sentence: str) -> str:
    for pattern, replacement in _REPLACEMENTS:
        sentence = re.sub(pattern, replacement, sentence, flags=re.IGNORECASE)
    sentence = sentence[:1].upper() + sentence[1:]
    return sentence if sentence[-1] in ".!?" else f"{sentence}."
