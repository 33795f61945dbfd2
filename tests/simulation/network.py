"""The network between simulated processes and servers: latencies, loss, partitions, cut and frozen connections."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, Final

from sqla_tickets.connect.ok_packets import Insert, Pollable
from sqla_tickets.connect.sockets import CLOSED, Poll

from .runtime import AnswerTimeout, ConnectionLost, ConnectionRefused, Server, ServerError, Session
from .world import Machine, Task, World

__all__ = ["Channel", "Host", "Link", "Network", "insert_over_socket", "wire_of"]

_NOTHING: Final = object()


class Link:
    """The way between one client process and one server.

    Args:
        world: that it is part of.
        machine: of the client.
        host: the name of the server.

    Attributes:
        seconds: that a message travels, at least.
        loss: how likely a message is lost, and sent again after a while.
        is_cut_there: whether nothing arrives at the server.
        is_cut_back: whether nothing arrives at the client.
        cut_replies: how likely a reply ends in the middle, with its connection.
    """

    def __init__(self, world: World, machine: Machine, host: str, loss: float) -> None:
        self._world, self._chance = world, world.random.random
        self.machine, self.host = machine, host
        self.seconds, self.loss = world.random.uniform(0.0001, 0.0005), loss
        self.is_cut_there = self.is_cut_back = False
        self.cut_replies = 0.0
        self._held: list[tuple[bool, Channel, Callable[[], None]]] = []

    def delay(self) -> float:
        """How long the next message travels."""
        seconds = self.seconds * (1 + 0.5 * self._chance())
        if self._chance() < self.loss:
            seconds += 0.2 if self._chance() < 0.7 else 0.6  # sent again once, or twice
        return seconds

    def send(
        self, channel: Channel, *, there: bool, deliver: Callable[[], None], after: float = 0.0
    ) -> None:
        """Send a message; those of one channel arrive in their order, or not at all.

        Args:
            channel: that it belongs to.
            there: whether it goes to the server.
            deliver: is called when it arrives.
            after: seconds until it is sent.
        """
        if channel.is_frozen:
            return
        if self.is_cut_there if there else self.is_cut_back:
            self._held.append((there, channel, deliver))
            return
        when = channel.last_there if there else channel.last_back
        when = max(when, self._world.now + after + self.delay())
        if there:
            channel.last_there = when
        else:
            channel.last_back = when
        self._world.at(when, deliver)

    def cut(self, *, there: bool, back: bool) -> None:
        """Let nothing through, in these directions."""
        self.is_cut_there, self.is_cut_back = there, back

    def heal(self) -> None:
        """Let everything through again; what was sent in the meantime is sent again after a while."""
        self.is_cut_there = self.is_cut_back = False
        held, self._held = self._held, []
        again = self._world.now + self._chance() * 0.5
        for there, channel, deliver in held:
            if there:
                channel.last_there = max(channel.last_there, again)
            else:
                channel.last_back = max(channel.last_back, again)
            self.send(channel, there=there, deliver=deliver)


class Host:
    """A machine with one database server.

    Args:
        world: that it is part of.
        name: of the machine.
        make: makes the model of the server.

    Attributes:
        machine: the server's process; another one after each start.
        is_reachable: whether the machine itself answers: else nothing says that no server listens.
        seconds: that the server takes for a request, about.
    """

    def __init__(self, world: World, name: str, make: Callable[[HostRuntime], Server]) -> None:
        self.world, self.name = world, name
        self.machine = Machine(world, name)
        self.is_reachable = True
        #: Which processes its firewall lets in.
        self.admits: Callable[[Machine], bool] = lambda machine: True
        self.seconds = 0.0002
        self.runtime = HostRuntime(self)
        self.channels: dict[int, Channel] = {}
        self._idle: list[_Worker] = []
        self.model = make(self.runtime)

    def __str__(self) -> str:
        return self.name

    @property
    def is_up(self) -> bool:
        """Whether the server runs, frozen or not."""
        return not self.machine.is_dead

    def service_time(self) -> float:
        """Seconds that the server takes for the next request."""
        return self.seconds * (0.5 + self.world.chance())

    def work(self, job: Callable[[], None]) -> None:
        """Do something in a thread of the server's, now."""
        worker = self._idle.pop() if self._idle else _Worker(self)
        worker.job = job
        self.world.resume(worker.task)

    def has_ended(self, worker: _Worker) -> None:
        """Keep a thread for another job."""
        self._idle.append(worker)

    def stop(self, *, is_crash: bool, is_reachable: bool = True) -> None:
        """End the server.

        Args:
            is_crash: whether it is killed, and loses what is not durable.
            is_reachable: whether its machine goes on, and tells the clients.
        """
        if not self.is_up:
            return
        self.is_reachable = is_reachable
        self.machine.die()
        self._idle = []
        self.model.stop(is_crash=is_crash)
        channels, self.channels = list(self.channels.values()), {}
        for channel in channels:
            channel.server_has_gone(told=is_reachable)

    def start(self) -> None:
        """Start the server again."""
        if not self.is_up:
            self.is_reachable = True
            self.machine = Machine(self.world, self.name)
            self.runtime.restarted()
            self.model.start()


class _Worker:
    """A thread of a server that does one job after the other."""

    def __init__(self, host: Host) -> None:
        self.job: Callable[[], None] = lambda: None
        self._host = host
        machine = host.machine
        self.task = Task(machine, "worker", self._run)
        self.task.order = machine.world.count_task()
        machine.tasks[self.task.order] = self.task

    def _run(self) -> None:
        while True:
            self.job()
            self._host.has_ended(self)
            self._host.world.park()


class HostRuntime:
    """The `Runtime` of a host's model."""

    def __init__(self, host: Host) -> None:
        self._host, self._world = host, host.world
        self._waiting: dict[Task, Callable[[], bool]] = {}

    @property
    def random(self) -> Random:
        return self._world.random

    def now(self) -> float:
        return self._host.machine.wall()

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        if condition():
            return True
        world = self._world
        end, task = world.now + timeout, world.task
        self._waiting[task] = condition
        try:
            while world.now < end:
                world.park(end - world.now)
                if condition():
                    return True
            return False
        finally:
            self._waiting.pop(task, None)

    def notify(self) -> None:
        for task, condition in list(self._waiting.items()):
            if condition():
                self._world.wake(task)

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)

    def restarted(self) -> None:
        """No thread of an earlier run waits."""
        self._waiting = {}


class Channel:
    """One connection from a process to a server."""

    def __init__(self, network: Network, machine: Machine, host: Host, link: Link) -> None:
        self._network, self._world = network, network.world
        self.machine, self.host, self.link = machine, host, link
        self.number = network.count()
        self.last_there = self.last_back = 0.0
        self.is_frozen = False
        self.has_ended = False
        self._is_closed = False
        self._answer: object = _NOTHING
        self._waiter: Task | None = None
        # the server's side
        self._session: Session | None = None
        self._is_busy = self._is_hung_up = self._has_client_gone = False

    def __str__(self) -> str:
        return f"#{self.number} to {self.host}"

    # -- the client's side

    def open(self, request: object, timeout: float | None) -> None:
        """Connect.

        Raises:
            ServerError: the server refused it.
            ConnectionLost: nobody listens there, or the connection was lost.
            AnswerTimeout: nothing came in time.
        """
        self._network.channels_of(self.machine)[self.number] = self
        self.link.send(self, there=True, deliver=partial(self._arrive, self._accept, request))
        try:
            self.answer(timeout)
        except BaseException:
            self.close()
            raise

    def call(self, request: object, timeout: float | None = None) -> object:
        self.send(request)
        return self.answer(timeout)

    def send(self, request: object) -> None:
        if self.has_ended or self._is_closed:
            raise ConnectionLost("the connection has ended")
        deliver = partial(self._arrive, self._serve, request)
        self.link.send(self, there=True, deliver=deliver, after=self.host.service_time())

    def has_news_within(self, seconds: float | None) -> bool:
        """Wait until an answer has come, or the connection has ended; returns whether it has."""
        world = self._world
        end = None if seconds is None else world.now + seconds
        self._waiter = world.task
        try:
            while not self.unread and not self.has_ended:
                if end is None:
                    world.park()
                elif world.now < end:
                    world.park(end - world.now)
                else:
                    return False
        finally:
            self._waiter = None  # else its end would wake what the task waits for by then
        return True

    def answer(self, timeout: float | None) -> object:
        if not self.has_news_within(timeout):
            raise AnswerTimeout
        if not self.unread:
            raise ConnectionLost("lost connection during query")
        answer, self._answer = self._answer, _NOTHING
        if isinstance(answer, ServerError):
            raise ServerError(answer.code, answer.message)
        if isinstance(answer, ConnectionRefused):
            raise ConnectionRefused(*answer.args)
        return answer

    def close(self) -> None:
        if self._is_closed or self._world.is_over:
            return
        self._is_closed = self.has_ended = True
        self._world.log("{} of {} is closed", self, self.machine)
        self._network.channels_of(self.machine).pop(self.number, None)
        self.link.send(self, there=True, deliver=self._client_has_gone)

    def shut_down(self) -> None:
        """End it from another thread: a client that waits for an answer is told."""
        if not self.has_ended:
            self._end()
            self.link.send(self, there=True, deliver=self._client_has_gone)

    def _end(self) -> None:
        self.has_ended = True
        self._world.log("{} of {} ends", self, self.machine)
        if self._waiter is not None and not self._world.is_over:
            self._world.wake(self._waiter)

    def _answered(self, answer: object) -> None:
        if not self.has_ended:
            self._answer = answer
            if self._waiter is not None:
                self._world.resume(self._waiter)

    @property
    def unread(self) -> bool:
        """Whether an answer lies here that nobody has read."""
        return self._answer is not _NOTHING

    # -- the server's side

    def _arrive(self, work: Callable[[object], None], request: object) -> None:
        host = self.host
        if self._is_hung_up or not host.is_up:
            if host.is_reachable:
                answer = self._refused if self._session is None else self._end
                self.link.send(self, there=False, deliver=answer)
        elif host.machine.is_frozen:
            host.machine.when_thawed(partial(self._arrive, work, request))
        else:
            host.work(partial(work, request))

    def _refused(self) -> None:
        self._answered(ConnectionRefused(f"nobody listens at {self.host}"))

    def _accept(self, request: object) -> None:
        self._world.sleep(2 * self.link.delay())  # the round trips of the protocol's greeting
        if self.is_frozen:
            return  # the rest of it does not arrive
        if not self.host.admits(self.machine):
            self._reply(ConnectionRefused(f"a firewall keeps {self.machine} from {self.host}"))
            return
        try:
            self._session = self.host.model.connect(request, self._hang_up)
        except ServerError as error:
            self._reply(error)
            return
        self.host.channels[self.number] = self
        known = self.machine.state.setdefault("known hosts", {})
        known.setdefault(self.host.name, self._world.now)  # type: ignore[attr-defined]  # a dict
        self._world.log("{} of {} is accepted", self, self.machine)
        self._reply(None)
        if self._has_client_gone:
            self._forget()

    def _serve(self, request: object) -> None:
        session = self._session
        assert session is not None
        self._is_busy = True
        answer: object
        try:
            answer = session.handle(request)
        except ServerError as error:
            answer = error
        except ConnectionLost:
            self._is_busy = False
            self._hang_up()
            return
        self._is_busy = False
        if self._has_client_gone:
            self._forget()
        elif not self._is_hung_up:
            self._reply(answer)

    def _reply(self, answer: object) -> None:
        link = self.link
        is_cut = link.cut_replies and self._world.chance() < link.cut_replies
        deliver = self._cut_reply if is_cut else partial(self._answered, answer)
        link.send(self, there=False, deliver=deliver)

    def _cut_reply(self) -> None:
        if not self.has_ended:
            self.cut()

    def _client_has_gone(self) -> None:
        host = self.host
        if self._has_client_gone or self._is_hung_up:
            return
        if host.machine.is_frozen:
            host.machine.when_thawed(self._client_has_gone)
            return
        self._has_client_gone = True
        if not self._is_busy and self._session is not None and host.is_up:
            host.work(self._forget)

    def _forget(self) -> None:
        session, self._session = self._session, None
        self._world.log("{} of {} is forgotten", self, self.machine)
        if self.host.channels.pop(self.number, None) is not None and session is not None:
            self._is_hung_up = True
            session.close()

    def _hang_up(self) -> None:
        if not self._is_hung_up:
            self._is_hung_up = True
            self.host.channels.pop(self.number, None)
            self.link.send(self, there=False, deliver=self._end)

    def server_has_gone(self, *, told: bool) -> None:
        """The server has died.

        Args:
            told: whether its machine goes on, and tells the client.
        """
        self._is_hung_up = True
        if told:
            self.link.send(self, there=False, deliver=self._end)

    def end_if_dead(self) -> None:
        """Tell both sides where nothing could arrive any more."""
        if self.is_frozen or self._is_hung_up:
            self.is_frozen = False
            self.cut()

    # -- faults

    def cut(self) -> None:
        """End it from both sides, as a firewall does that sends a reset; an answer under way is lost."""
        self._end()
        self._client_has_gone()


class Network:
    """Every way from a process to a server.

    Args:
        world: that it is part of.

    Attributes:
        hosts: the servers, by the names in URLs.
        loss: how likely a message is lost, and sent again.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.hosts: dict[str, Host] = {}
        self._instead: dict[str, str] = {}
        self.loss = 0.0005
        self._links: dict[tuple[int, str], Link] = {}
        self._channels: dict[int, dict[int, Channel]] = {}
        self._count = 0

    def count(self) -> int:
        """The next number of a channel."""
        self._count += 1
        return self._count

    def channels_of(self, machine: Machine) -> dict[int, Channel]:
        """The open connections of a process."""
        found = self._channels.get(machine.number)
        if found is None:
            found = self._channels[machine.number] = {}
            machine.at_death.append(partial(self._close_all, machine))
        return found

    def _close_all(self, machine: Machine) -> None:
        for channel in list(self.channels_of(machine).values()):
            channel.close()

    def link(self, machine: Machine, host: Host) -> Link:
        """The way from a process to a server."""
        key = machine.number, host.name
        found = self._links.get(key)
        if found is None:
            found = self._links[key] = Link(self.world, machine, host.name, self.loss)
        return found

    def links_of(self, host: Host) -> Iterator[Link]:
        """Every way to a server."""
        return (link for (_, name), link in self._links.items() if name == host.name)

    def swap(self, one: str, other: str) -> None:
        """Let two addresses lead to each other's servers, for new connections."""
        ends = {one: self._instead.get(other, other), other: self._instead.get(one, one)}
        self._instead.update(ends)

    def lead(self, address: str, host: str) -> None:
        """Let an address lead to a server, for new connections."""
        self._instead[address] = host

    def end_dead_connections(self) -> None:
        """Do what a keep-alive does in the end: tell processes and servers of ends that are not there any more."""
        sides = [*self._channels.values(), *(host.channels for host in self.hosts.values())]
        for channels in sides:
            for channel in list(channels.values()):
                channel.end_if_dead()

    def connect(
        self, host: str, port: int | None, request: object, timeout: float | None = None
    ) -> Channel:
        machine = self.world.machine
        target = self.hosts[self._instead.get(host, host)]
        channel = Channel(self, machine, target, self.link(machine, target))
        channel.open(request, timeout)
        return channel


class ChannelWire:
    """The socket of a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def poller(self) -> Poll:
        return self._poll

    def _poll(self, milliseconds: float) -> list[tuple[int, int]]:
        channel = self._channel
        if milliseconds and not channel.has_news_within(milliseconds / 1000):
            return []
        if channel.has_ended:
            return [(channel.number, CLOSED | select.POLLIN)]
        return [(channel.number, select.POLLIN)] if channel.unread else []

    def shut_down(self) -> None:
        self._channel.shut_down()

    def close(self) -> None:
        pass


def wire_of(dbapi_connection: Any) -> ChannelWire | None:
    """The socket under a simulated driver's connection, which keeps its `Channel` in ``channel``."""
    channel = getattr(dbapi_connection, "channel", None)
    return ChannelWire(channel) if isinstance(channel, Channel) else None


def insert_over_socket(dbapi_connection: Any, wire: Any, poll: Poll) -> Insert | None:
    """What `sqla_tickets.connect.ok_packets` has for PyMySQL, for a simulated one."""
    if not isinstance(wire, ChannelWire) or not hasattr(dbapi_connection, "send_insert"):
        return None

    def insert(statement: str, request: Pollable | None, answers: int) -> int:
        read = dbapi_connection.send_insert(statement, answers)
        if request is not None and not poll(1000 * request.overdue_seconds):
            request.be_overdue(read)
        return int(read())

    return insert
