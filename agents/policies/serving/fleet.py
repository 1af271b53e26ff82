"""The policy servers of one run together: which is used for a request, how many it has, which has gone and returned."""

import asyncio
from collections.abc import Callable, Sequence

from envgym.agents.policies.serving.http import ConnectionFailed
from envgym.agents.policies.serving.link import (
    UNNAMED,
    ExpectedModel,
    PolicyServerUnreachable,
    ServerLink,
    ServerRefused,
    ServerState,
)
from envgym.agents.policies.serving.queue import WAIT_S, ServerQueue
from envgym.agents.policies.serving.transport import WeightUpdate
from envgym.errors import InvalidInput, PolicyFailure
from envgym.server_list import warn_user

_MANY_LATE = 4
"""Transfers after which a server that joins or returns, and still has no newest weights, is named."""
_LATE = f"{_MANY_LATE - 1} times in a row newer weights came while it was taking some"


class ServerFleet(ServerQueue):
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
        super().__init__(links, wait_s=wait_s, is_elastic=is_elastic)
        self._expected, self._check, self._update_timeout_s = expected, check, update_timeout_s
        self.newest: WeightUpdate | None = None
        """The weights that every server must have; None: those it was started with."""
        self.taking: list[int] = []
        """Versions that servers are taking which are not used yet."""
        self.version = version
        """Of the weights that all servers have, or will have."""
        self._first_version: int | None = None
        """That the first servers had; None: none was connected to yet."""
        self.max_context: int | None = None
        """Tokens of context and sample that every server must have room for; None: without a limit."""
        self._takes_weights = False
        """Whether every server must take new weights."""

    async def connect(self) -> None:
        """Use all servers that answer; one that does not is used as soon as it does.

        Raises: InvalidInput: one cannot be used, or none answers and no other may join.
        """
        connecting = [link.connect(self._expected, self.version) for link in self.links]
        found = await asyncio.gather(*connecting, return_exceptions=True)
        connected = [link for link, failure in zip(self.links, found, strict=True) if isinstance(failure, bool)]
        for link, failure in zip(self.links, found, strict=True):
            if isinstance(failure, BaseException):
                if not isinstance(failure, PolicyServerUnreachable) or not (connected or self._is_elastic):
                    raise failure
                link.fail(ServerState.DOWN, failure)
                warn_user(f"{link.url} is not used yet: {failure}")
        if not connected:
            return
        versions = {link.version for link in connected}
        if len(versions) > 1:
            do = "start all of them with the same weights"
            raise InvalidInput.of("servers", "serve one version", sorted(versions), where="policy servers", do=do)
        for link in connected:
            self._check(link)
        self._begin_with(connected)
        for link in connected:
            link.use()

    def _begin_with(self, links: Sequence[ServerLink]) -> None:
        """Take the servers that were connected to first as what others must equal."""
        self.version = self._first_version = links[0].version
        lengths = [link.info.max_context for link in links]
        self.max_context = min((length for length in lengths if length is not None), default=None)
        self._takes_weights = all(link.info.transports for link in links)

    # ---- weights -------------------------------------------------------------------------------------------------

    async def update(self, update: WeightUpdate) -> None:
        """Let all servers that are up take new weights; others get them before they are used.

        Raises: PolicyFailure: none has them.
        """
        self.newest, self.version = update, update.version
        await asyncio.gather(*[self._update(link) for link in self.links if link.state is ServerState.UP])
        if not any(link.is_usable for link in self.links):
            if self._is_hopeless:
                raise PolicyFailure(f"no policy server has the weights of version {update.version}: {self.describe()}")
            await self._wait_for_up()  # one may join or return, and gets them first

    async def _update(self, link: ServerLink) -> None:
        assert self.newest is not None, "there are weights to take"
        await link.update(self.newest, timeout_s=self._update_timeout_s)
        self._router.forget(link.number)

    async def rename(self, version: int) -> None:
        """Name the weights that all servers have."""
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
        if self._first_version is None:
            self._begin_with([link])
        self._compare(link, is_same=is_same)
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
        self.forget(link)

    def _compare(self, link: ServerLink, *, is_same: bool) -> None:
        """Compare a server that joins or returns with the first ones; `is_same`: as `ServerLink.connect` returned it.

        Raises: InvalidInput: it takes no weights, has room for less, or was started with weights of another version.
        """
        what, length, most = "server that joins", link.info.max_context, self.max_context
        must, do = "take new weights, as the others do", "start it with envgym policy-server"
        takes = link.info.transports or not self._takes_weights
        InvalidInput.unless(takes, what, must, "one that takes none", where=link.url, do=do)
        has_room = length is None or (most is not None and length >= most)
        must, do = f"have room for {most or 'any number of'} tokens", "start it with the --max-context of the others"
        InvalidInput.unless(has_room, what, must, length, where=link.url, do=do)
        if self.newest is None and not is_same:
            must, do = f"serve version {self._first_version}", "start it with the weights of the others"
            is_first = link.info.weight_version in (UNNAMED, str(self._first_version))
            InvalidInput.unless(is_first, what, must, link.version, where=link.url, do=do)

    async def _bring_forward(self, link: ServerLink) -> None:
        """Bring the newest weights to a server that is not used; where that fails, it is broken."""
        assert self.newest is not None, "there are weights to take"
        version = self.newest.version
        self.taking.append(version)
        try:
            await self._update(link)
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
        """Learn how one server is."""
        try:
            if link.state is ServerState.UP:
                link.limit = link.limit.observe(await link.count_preemptions(), link.under_way)
            else:
                await self._take_back(link)
        except (ConnectionFailed, TimeoutError, ServerRefused, ValueError) as error:  # of ValueError: InvalidInput
            before = link.reason
            self.fail(link, ServerState.DOWN, error)
            is_refused = isinstance(error, InvalidInput) and not isinstance(error, PolicyServerUnreachable)
            if is_refused and link.reason != before:
                warn_user(f"{link.url} cannot be used: {error}")
        self.wake(len(self.waiting))

    async def _take_back(self, link: ServerLink) -> None:
        """Use a server again; one that is broken only after another start. Raises: as `admit`."""
        if link.state is ServerState.BROKEN:
            info = await link.read_info()
            if info.instance == link.info.instance and info.weight_version != UNNAMED:
                return
            link.state = ServerState.DOWN
        await self.admit(link)
