"""The policy servers of one run together: which is used for a request, and which join, fail and return.

The pure rules beside it: `routing` chooses a server and limits its requests.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from envgym.agents.policies.serving.group_update import GroupUpdate
from envgym.agents.policies.serving.link import (
    UNNAMED,
    ExpectedModel,
    PolicyServerUnreachable,
    ServerLink,
    ServerRefused,
    ServerState,
)
from envgym.agents.policies.serving.routing import PrefixRouter, ServerLoad
from envgym.agents.policies.serving.wire import read_metrics
from envgym.agents.policies.weights.transport import WeightUpdate
from envgym.errors import InvalidInput, PolicyFailure
from envgym.runtime.http.client import ConnectionFailed
from envgym.runtime.membership import warn_user

WAIT_S = 30.0
"""For a server to join or return, where none is up."""
_MANY_LATE = 4
"""Transfers after which a server that joins or returns, and still has no newest weights, is named."""
_LATE = f"{_MANY_LATE - 1} times in a row newer weights came while it was taking some"


class FirstServers(NamedTuple):
    """What was true of the servers that were connected to first, which all others must equal."""

    version: int
    max_context: int | None
    """Tokens of context and sample for which every server must have room; None: without a limit."""
    takes_weights: bool
    """Whether every server must take new weights."""

    @classmethod
    def of(cls, links: Sequence[ServerLink]) -> Self:
        """Compare the servers with each other. Raises: InvalidInput: they serve several versions."""
        versions, do = sorted({link.version for link in links}), "start all of them with the same weights"
        InvalidInput.unless(len(versions) == 1, "servers", "serve one version", versions, where="policy servers", do=do)
        lengths = [link.info.max_context for link in links if link.info.max_context is not None]
        return cls(versions[0], min(lengths, default=None), all(link.info.transports for link in links))

    def check(self, link: ServerLink, *, has_first_weights: bool) -> None:
        """Compare a server that joins or returns with the first ones.

        Raises: InvalidInput: it takes no weights, has room for less, or must have the first weights and was started
            with those of another version.
        """
        what, length, most = "server that joins", link.info.max_context, self.max_context
        must, do = "take new weights, as the others do", "start it with envgym policy-server"
        takes = link.info.transports or not self.takes_weights
        InvalidInput.unless(takes, what, must, "one that takes none", where=link.url, do=do)
        has_room = length is None or (most is not None and length >= most)
        must, do = f"have room for {most or 'any number of'} tokens", "start it with the --max-context of the others"
        InvalidInput.unless(has_room, what, must, length, where=link.url, do=do)
        if has_first_weights:
            must, do = f"serve version {self.version}", "start it with the weights of the others"
            is_first = link.info.weight_version in (UNNAMED, str(self.version))
            InvalidInput.unless(is_first, what, must, link.version, where=link.url, do=do)


class ServerQueue:
    """The requests that wait for a place on a server, and which server each gets; used from one event loop."""

    def __init__(self, links: Sequence[ServerLink], *, wait_s: float, is_elastic: bool) -> None:
        """Begin without a request; the arguments are those of `ServerFleet`, which changes the list of links."""
        self._links, self.wait_s, self._is_elastic = links, wait_s, is_elastic
        self._router = PrefixRouter()
        self.waiting: deque[asyncio.Future[None]] = deque()
        """Requests that found no server with room."""

    async def acquire(
        self, hashes: Callable[[], Sequence[int]], excluded: set[int], *, holder: int | None = None
    ) -> ServerLink:
        """Wait for a server with room, best the one that holds the context.

        Args:
            hashes: returns those of the context's blocks; not called if there is nothing to choose.
            excluded: numbers of servers that have failed the request, and are used again only where no other is up.
            holder: number of the server that holds all of the context but what is new.

        Raises: PolicyFailure: no server is up, and none that is down returns in time.
        """
        codes: Sequence[int] | None = None if holder is None else ()
        while True:
            up = [link for link in self._links if link.is_usable] or await self.wait_for_up()
            usable = [link for link in up if link.number not in excluded] or up
            if len(self._links) == 1:
                server = usable[0] if usable[0].limit.allows(usable[0].under_way) else None
            else:
                codes = hashes() if codes is None else codes
                server = self._choose(usable, codes, holder)
            if server is not None:
                server.under_way += 1
                server.limit = server.limit.begin(server.under_way)
                return server
            await self._wait()

    def _choose(self, usable: Sequence[ServerLink], codes: Sequence[int], holder: int | None) -> ServerLink | None:
        loads = [ServerLoad(link.number, link.under_way, link.limit.allows(link.under_way)) for link in usable]
        number = self._router.choose(codes, loads, holder=holder)
        if number is None:
            return None
        self._router.note(codes, number)
        return next(link for link in usable if link.number == number)

    def release(self, link: ServerLink) -> None:
        """Give a request's place back."""
        link.under_way -= 1
        self.wake(1)

    def forget(self, link: ServerLink) -> None:
        """Let requests that wait for a server look for others; its prefixes are not looked for any more."""
        self._router.forget(link.number)
        self.wake()

    async def wait_for_up(self) -> list[ServerLink]:
        """Return the servers that are up: at least one. Raises: PolicyFailure: as `acquire`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.wait_s):
                while not (up := [link for link in self._links if link.is_usable]):
                    if self.is_hopeless:
                        break
                    await self._wait()
                else:
                    return up
        raise PolicyFailure(f"no policy server is up: {self.describe() or 'all have left'}")

    @property
    def is_hopeless(self) -> bool:
        """Whether no server will be up again that was not restarted, and no other may join."""
        return not self._is_elastic and all(link.state is ServerState.BROKEN for link in self._links)

    def describe(self) -> str:
        return "; ".join(map(str, self._links))

    async def _wait(self) -> None:
        change = asyncio.get_running_loop().create_future()
        self.waiting.append(change)
        try:
            await change
        except asyncio.CancelledError:
            if change.done() and not change.cancelled():
                self.wake(1)  # the room is for another request
            raise

    def wake(self, count: int | None = None) -> None:
        """Let some requests look for room again; None: all."""
        count = len(self.waiting) if count is None else count
        while count and self.waiting:
            change = self.waiting.popleft()
            if not change.done():
                change.set_result(None)
                count -= 1


class ServerFleet:
    """Servers, used from one event loop: nothing changes between two lines but where one of them awaits."""

    def __init__(
        self,
        links: Sequence[ServerLink],
        expected: ExpectedModel,
        *,
        check: Callable[[ServerLink], None] = lambda link: None,
        version: int = 0,
        update_timeout_s: float,
        wait_s: float = WAIT_S,
        is_elastic: bool = False,
    ) -> None:
        """Take the servers, to none of which anything was sent.

        Args:
            links: to the servers of the beginning.
            expected: what all of them must serve.
            check: refuses a server that takes no weights in the way of this run.
            version: of the weights, where a server does not name them.
            update_timeout_s: longest weight update.
            wait_s: longest wait for a server where none is up.
            is_elastic: whether others may join, so that a wait has a point though every server is broken.
        """
        self.links, self._is_elastic = list(links), is_elastic
        self.queue = ServerQueue(self.links, wait_s=wait_s, is_elastic=is_elastic)
        self._expected, self._check, self._update_timeout_s = expected, check, update_timeout_s
        self.newest: WeightUpdate | None = None
        """The weights that every server must have; None: those it was started with."""
        self.taking: list[int] = []
        """Versions that servers are taking which are not used yet."""
        self.version = version
        """Of the weights that all servers have, or will have."""
        self._first: FirstServers | None = None
        """None: no server was connected to yet."""

    @property
    def max_context(self) -> int | None:
        """Tokens of context and sample that every server has room for; None: without a limit."""
        return None if self._first is None else self._first.max_context

    async def connect(self) -> None:
        """Use all servers that answer; one that does not is used as soon as it does.

        Raises: InvalidInput: one cannot be used, or none answers and no other may join.
        """
        connecting = [link.connect(self._expected, self.version) for link in self.links]
        results = await asyncio.gather(*connecting, return_exceptions=True)
        connected = [link for link, failure in zip(self.links, results, strict=True) if isinstance(failure, bool)]
        for link, failure in zip(self.links, results, strict=True):
            if isinstance(failure, BaseException):
                if not isinstance(failure, PolicyServerUnreachable) or not (connected or self._is_elastic):
                    raise failure
                link.fail(ServerState.DOWN, failure)
                warn_user(f"{link.url} is not used yet: {failure}")
        if not connected:
            return
        first = FirstServers.of(connected)
        for link in connected:
            self._check(link)
        self._first, self.version = first, first.version
        for link in connected:
            link.use()

    def fail(self, link: ServerLink, state: ServerState, reason: object) -> None:
        """Use a server no more, for now or until it is started again."""
        link.fail(state, reason)
        self.queue.forget(link)

    async def wait_for_first(self) -> None:
        """Wait until a server is up. Raises: InvalidInput: none is in time."""
        try:
            await self.queue.wait_for_up()
        except PolicyFailure as error:
            do = "look at their logs, start one again, or add another with envgym servers"
            got = self.queue.describe() or "none"
            must = f"be up within {self.queue.wait_s:g} s"
            raise InvalidInput.of("a policy server", must, got, where="all servers of the run", do=do) from error

    async def close(self) -> None:
        for link in self.links:
            await link.close()

    # ---- weights -------------------------------------------------------------------------------------------------

    async def update(self, update: WeightUpdate) -> None:
        """Let all servers that are up take new weights; others get them before they are used.

        Raises: PolicyFailure: none has them.
        """
        self.newest, self.version = update, update.version
        await self._update([link for link in self.links if link.state is ServerState.UP])
        if not any(link.is_usable for link in self.links):
            if self.queue.is_hopeless:
                raise PolicyFailure(
                    f"no policy server has the weights of version {update.version}: {self.queue.describe()}"
                )
            await self.queue.wait_for_up()  # one may join or return, and gets them first

    async def _update(self, links: Sequence[ServerLink]) -> None:
        update, timeout_s = self.newest, self._update_timeout_s
        assert update is not None, "there are weights to take"
        groups = None if update.sender is None else GroupUpdate(update.sender, [link.started for link in links])

        async def update_one(link: ServerLink) -> None:
            await link.update(update, timeout_s=timeout_s, groups=groups)
            self.queue.forget(link)

        try:
            await asyncio.gather(*map(update_one, links))
        finally:
            if groups is not None:
                await groups.close()

    async def rename(self, version: int) -> None:
        self.version = version
        for link in self.links:
            if link.state is ServerState.UP:
                try:
                    await link.rename(version)
                except (ConnectionFailed, TimeoutError, ServerRefused) as error:
                    self.fail(link, ServerState.DOWN, error)

    # ---- joining and returning -----------------------------------------------------------------------------------

    async def admit(self, link: ServerLink) -> None:
        """Use a server that joins or returns, as soon as it has the newest weights; nothing waits for that.

        Raises: InvalidInput: it cannot be used. ConnectionFailed, TimeoutError, ServerRefused: it does not answer.
        """
        is_same = await link.connect(self._expected, self.version)
        self._check(link)
        if self._first is None:
            self._first = FirstServers.of([link])
            self.version = self._first.version
        self._first.check(link, has_first_weights=self.newest is None and not is_same)
        num_late = 0
        while not (has_them := link.digests == (self.newest and self.newest.digests)) or link.version != self.version:
            if has_them:
                await link.rename(self.version)
            else:
                num_late += 1
                if num_late == _MANY_LATE:
                    warn_user(f"{link.url} is not used yet: {_LATE}; unless it can take them faster, let it leave")
                await self._bring_forward(link)
            if link.state is ServerState.BROKEN:
                must, do = f"take the weights of version {self.version}", "look into its log, and start it again"
                raise InvalidInput.of("server", must, link.reason, where=link.url, do=do)
        if link not in self.links:  # no update has begun since the comparison
            self.links.append(link)
        link.use()
        self.queue.forget(link)

    async def _bring_forward(self, link: ServerLink) -> None:
        """Bring the newest weights to a server that is not used; where that fails, it is broken."""
        assert self.newest is not None, "there are weights to take"
        version = self.newest.version
        self.taking.append(version)
        try:
            await self._update([link])
        finally:
            self.taking.remove(version)

    async def watch(self, every_s: float) -> None:
        """Adapt the limits, and take servers back that have returned, until cancelled."""
        looks = dict[ServerLink, asyncio.Task[None]]()
        try:
            while True:
                await asyncio.sleep(every_s)
                looks = {link: look for link, look in looks.items() if not look.done()}
                for link in self.links:
                    if not link.is_leaving and link not in looks:
                        looks[link] = asyncio.ensure_future(self.look_at(link))
                for link, look in looks.items():
                    if link.is_leaving:
                        look.cancel()
        finally:
            for look in looks.values():
                look.cancel()

    async def look_at(self, link: ServerLink) -> None:
        try:
            if link.state is ServerState.UP:
                num_preemptions = read_metrics(str(await link.ask("GET", "/metrics")))
                link.limit = link.limit.observe(num_preemptions, link.under_way)
            else:
                await self._take_back(link)
        except (ConnectionFailed, TimeoutError, ServerRefused, ValueError) as error:  # of ValueError: InvalidInput
            before = link.reason
            self.fail(link, ServerState.DOWN, error)
            is_refused = isinstance(error, InvalidInput) and not isinstance(error, PolicyServerUnreachable)
            if is_refused and link.reason != before:
                warn_user(f"{link.url} cannot be used: {error}")
        self.queue.wake()

    async def _take_back(self, link: ServerLink) -> None:
        """Use a server again; one that is broken only after another start. Raises: as `admit`."""
        if link.state is ServerState.BROKEN:
            info = await link.read_info()
            if info.instance == link.info.instance and info.weight_version != UNNAMED:
                return
            link.state = ServerState.DOWN
        await self.admit(link)
