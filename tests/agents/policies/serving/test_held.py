"""Contexts that a server holds: found by the very objects, bounded, and never another's."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from envgym.agents.policies.serving.client import ServedPolicy
from envgym.agents.policies.serving.frames import FramedRequest, RequestKey, read_tokens, write_tokens
from envgym.agents.policies.serving.held import HeldContexts, SentContext, SentContexts, UnknownContext
from envgym.agents.policies.serving.link import ServerLink
from envgym.agents.protocols import EarlierTurn, FinishReason, GenerateRequest, Generation, Sampling
from envgym.errors import InvalidInput
from tests.agents.policies.serving.running import serving
from tests.agents.policies.serving.test_client import ask, client
from tests.agents.policies.small_models import llama, request

CONTEXT = tuple(range(100, 140))


def sampled(*token_ids: int) -> Generation:
    return Generation(
        token_ids=token_ids,
        behavior_logprobs=(-1.0,) * len(token_ids),
        raw_logprobs=None,
        finish_reason=FinishReason.STOP,
        policy_version=0,
    )


def following(context: tuple[int, ...], turn: Generation, *more: int) -> GenerateRequest:
    """Return a request that continues a turn, as the agent loop makes it."""
    tokens = context + turn.token_ids + more
    return GenerateRequest(token_ids=tokens, sampling=Sampling(), seed=0, continues=EarlierTurn(context, turn, tokens))


def held_by(contexts: SentContexts, context: tuple[int, ...], turn: Generation) -> SentContext:
    sent = SentContext(contexts.next_key(), 2, context, turn)
    contexts.add(sent)
    return sent


# ---- the client -----------------------------------------------------------------------------------------------------


def test_a_turn_is_found_by_its_own_objects_alone() -> None:
    contexts, turn = SentContexts(), sampled(7, 8)
    sent = held_by(contexts, CONTEXT, turn)
    request = following(CONTEXT, turn, 9)
    assert contexts.find(request) is sent
    assert sent.num_tokens == 42
    equal = tuple(range(100, 140))
    assert contexts.find(replace(request, continues=EarlierTurn(equal, turn, request.token_ids))) is None
    assert contexts.find(replace(request, continues=EarlierTurn(CONTEXT, replace(turn), request.token_ids))) is None
    assert contexts.find(replace(request, continues=None)) is None


@pytest.mark.parametrize("changed", [(1, *CONTEXT[1:]), (0, *CONTEXT), CONTEXT[:-1], (*CONTEXT, 0)], ids=str)
def test_a_context_that_was_changed_on_its_way_is_sent_whole(changed: tuple[int, ...]) -> None:
    contexts, turn = SentContexts(), sampled(7, 8)
    held_by(contexts, CONTEXT, turn)
    request = following(CONTEXT, turn, 9)
    assert contexts.find(replace(request, token_ids=changed + turn.token_ids + (9,))) is None


def test_a_context_without_a_new_token_is_sent_whole() -> None:
    contexts, turn = SentContexts(), sampled(7, 8)
    held_by(contexts, CONTEXT, turn)
    assert contexts.find(following(CONTEXT, turn)) is None


def test_a_client_remembers_so_many_tokens_and_forgets_first_what_was_continued() -> None:
    contexts, turns = SentContexts(max_tokens=120), [sampled(number) for number in range(4)]
    sent = [held_by(contexts, CONTEXT, turn) for turn in turns[:2]]
    contexts.retire(sent[1])
    held_by(contexts, CONTEXT, turns[2])  # 123 tokens: one too many
    found = [contexts.find(following(CONTEXT, turn, 9)) is not None for turn in turns]
    assert found == [True, False, True, False]
    contexts.retire(sent[1])  # which is forgotten already
    held_by(contexts, CONTEXT, turns[3])
    assert [contexts.find(following(CONTEXT, turn, 9)) is not None for turn in turns] == [False, False, True, True]


# ---- the server -----------------------------------------------------------------------------------------------------


def framed(
    number: int, *, continues: int, num_kept: int, new: tuple[int, ...], client: bytes = b"a" * 16
) -> FramedRequest:
    key = RequestKey(client, number)
    return FramedRequest(key, continues, num_kept, write_tokens(new), None, "", Sampling(), 0)


def test_a_server_puts_a_context_together_from_one_that_it_holds() -> None:
    held = HeldContexts()
    first = framed(1, continues=0, num_kept=0, new=(1, 2, 3))
    assert read_tokens(held.context(first)) == (1, 2, 3)
    held.keep(first.key, held.context(first), (4, 5))
    whole, part = (framed(2, continues=1, num_kept=kept, new=(9,)) for kept in (5, 2))
    assert read_tokens(held.context(whole)) == (1, 2, 3, 4, 5, 9)
    assert read_tokens(held.context(part)) == (1, 2, 9)
    assert read_tokens(held.context(whole)) == (1, 2, 3, 4, 5, 9), "a branch begins where another began"


def test_a_server_without_the_context_or_with_another_clients_says_so() -> None:
    held = HeldContexts()
    held.keep(RequestKey(b"a" * 16, 1), write_tokens((1, 2)), (3,))
    for unknown in (
        framed(2, continues=5, num_kept=2, new=(9,)),
        framed(2, continues=1, num_kept=2, new=(9,), client=b"b" * 16),
    ):
        with pytest.raises(UnknownContext, match="send all of it"):
            held.context(unknown)
    with pytest.raises(InvalidInput, match="kept tokens must be at most the 3 tokens that are held, got 4"):
        held.context(framed(2, continues=1, num_kept=4, new=(9,)))


def test_a_server_holds_so_many_bytes_and_forgets_the_oldest_first() -> None:
    held = HeldContexts(max_bytes=3 * (512 + 4 * 4))
    keys = [RequestKey(b"a" * 16, number) for number in range(1, 6)]
    for key in keys[:3]:
        held.keep(key, write_tokens((1, 2, 3)), (key.number,))
    held.keep(keys[1], write_tokens((1, 2, 3)), (2,))  # the same again takes no more
    held.keep(keys[3], write_tokens((1, 2, 3)), (4,))
    known = [key.number for key in keys if key in held._contexts]
    assert known == [2, 3, 4]
    held.keep(keys[4], bytes(10_000), ())
    assert keys[4] not in held._contexts, "larger than all that may be held"
    assert [key.number for key in keys if key in held._contexts] == known
    assert held._num_bytes == held._max_bytes


# ---- both -----------------------------------------------------------------------------------------------------------


@contextmanager
def noting_sizes() -> Iterator[list[int]]:
    """Note how many bytes each request in arrays has."""
    sizes: list[int] = []
    sound = ServerLink.send

    async def send(link: ServerLink, path: str, body: bytes, *, timeout_s: float) -> bytes:
        sizes.append(len(body))
        return await sound(link, path, body, timeout_s=timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerLink, "send", send)
        yield sizes


def talk(policy: ServedPolicy, num_turns: int, *, begin: tuple[int, ...] = tuple(range(40))) -> list[Generation]:
    """Sample turns whose contexts continue each other, as those of an episode do."""
    context, earlier, turns = begin, None, list[Generation]()
    for number in range(num_turns):
        item = replace(request(context, seed=number, max_new_tokens=5), continues=earlier)
        turns += ask(policy, [item])
        whole = context + turns[-1].token_ids + (11, 12)
        context, earlier = whole, EarlierTurn(context, turns[-1], whole)
    return turns


def test_a_turn_sends_the_tokens_that_are_new_and_samples_as_with_all_of_them(tmp_path: Path) -> None:
    with serving(llama()) as served, client(tmp_path, served.http.url) as policy:
        with noting_sizes() as sizes:
            turns = talk(policy, 4)
        assert sizes[1:] == [sizes[0] - 4 * 38] * 3, "40 tokens, and then 2"
        link = policy._fleet.links[0]
        link.info = link.info._replace(has_frames=False)
        served._policy.clear_prefix_cache()
        assert talk(policy, 4) == turns, "bit for bit as in JSON"


def test_a_server_that_has_forgotten_a_context_is_sent_all_of_it(tmp_path: Path) -> None:
    with serving(llama()) as served, client(tmp_path, served.http.url) as policy:
        turns = talk(policy, 3)
        served._contexts._max_bytes = 0
        served._policy.clear_prefix_cache()
        with noting_sizes() as sizes:
            assert talk(policy, 3) == turns
    assert len(sizes) == 1 + 2 + 2, "each later turn is sent a second time"


def test_a_context_goes_on_at_another_server_and_after_a_restart(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(serving(llama())) for _ in range(2))
        policy = stack.enter_context(client(tmp_path, first.http.url, second.http.url))
        expected = talk(policy, 4)
        context, earlier, turns = tuple(range(40)), None, list[Generation]()
        for number in range(4):
            item = replace(request(context, seed=number, max_new_tokens=5), continues=earlier)
            turns += ask(policy, [item])
            whole = context + turns[-1].token_ids + (11, 12)
            context, earlier = whole, EarlierTurn(context, turns[-1], whole)
            if number == 1:  # the server that has the context is started anew
                for served in (first, second):
                    served._contexts = type(served._contexts)()
            if number == 2:  # it is used no more
                (sent,) = [item for item in policy._sent._contexts.values() if item.generation is turns[-1]]
                link = policy._fleet.links[sent.server]
                link.is_leaving = True
    assert [turn.token_ids for turn in turns] == [turn.token_ids for turn in expected]
    for turn, other in zip(turns, expected, strict=True):  # what a cache holds changes the rounding
        assert turn.behavior_logprobs == pytest.approx(other.behavior_logprobs, abs=1e-5)
