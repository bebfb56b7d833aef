"""``s4 dead-letter``: lists, shows and replays the events that an app could not process.

Rules
- The setting ``task.dead.letter.stream`` names the stream. The id of a dead letter is its partition
  and offset there, such as ``0:17``.
- Replay sends an event unchanged to where it came from, under a producer id of its own. Then it
  appends a mark, an event with the dead letter's id in ``replayed``, and has the producer id
  forgotten. Until the mark is there, the producer id makes a repeated replay harmless; the mark
  stays as long as the dead letter.
- Many events are sent at a time, because each waits for a commit; those of one key keep their
  order.
- An event that does not decode, or that the app itself has put, cannot be replayed. A failed call
  of a window or a timer is made again at the next start of the app.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import trio

from s4node.cli import skip_event
from s4node.cli.arguments import command, group, to_option
from s4node.cli.job import app_argument, find_job, job_options
from s4node.cli.output import counted, give, report
from s4node.cli.running_apps import addresses_of_app
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError, S4Error, on_one_line
from s4node.events.event import LIVE, GenericEvent
from s4node.events.schema import GENERIC, UNREADABLE, EventType, JsonText, OpenType
from s4node.events.type_declaration import TypeDecl, fingerprint_of
from s4node.failpoints import passing
from s4node.net.certificates.credentials import Credentials
from s4node.net.client.client import Client
from s4node.net.ingress.producer_lane import origin_of
from s4node.net.wire.frame import TASK, too_long
from s4node.offsets.system import InputBatch, System, SystemStreamPartition
from s4node.systems.embedded_log import EmbeddedLog
from s4node.systems.registry import Systems

_TIMEOUT_SECONDS = 10.0
_AT_A_TIME = 50
_MARK = "replayed"
_NAME = "under"
_OUTCOMES = "sent", "sent before", "refused again", "not sent"
_ID = re.compile(r"[0-9]+:[0-9]+", re.ASCII)
_PLACE = ("system", "stream", "partition", "offset", "app", "task")
_SHOWN = (*_PLACE, "reason", "pe", "key", "hook", "of")


class DeadLetter(NamedTuple):
    """A dead letter, its ``id``, and whether its event was replayed."""

    id: str
    dead_letter: GenericEvent
    sent: bool = False

    @property
    def stream(self) -> str:
        return f"{self.dead_letter.system}.{self.dead_letter.stream}"

    @property
    def kind(self) -> tuple[str, str, str]:
        """The stream, the reason without the event's own values, and the PE that raised it."""
        return (
            self.stream,
            self.dead_letter.reason.partition(":")[0],
            self.dead_letter.get("pe", ""),
        )

    @property
    def turn(self) -> tuple[str, int, str]:
        """The key of replay order: dead letters with the same key are replayed one after
        another."""
        return self.stream, self.dead_letter.partition, self.dead_letter.get("key", "")

    @property
    def name(self) -> str:
        """The producer id of its replay."""
        one = self.dead_letter
        name = f"replay of {one.get('app', '')} {one.get('task', '')} {one.origin}:{one.offset}"
        if too_long(name):  # it contains the id of the event's producer
            name = f"replay {hashlib.sha256(name.encode()).hexdigest()}"
        return name

    def is_own(self, cluster: str) -> bool:
        """Return True if a task of the app itself has put the event."""
        dead_letter = self.dead_letter
        task = origin_of(
            dead_letter.stream, dead_letter.partition, f"{TASK}{cluster}/{dead_letter.get('app')}/"
        )
        sent = dead_letter.system == LIVE and dead_letter.origin.startswith(task)
        return bool(sent or dead_letter.offset < 0)

    @property
    def declaration(self) -> TypeDecl | None:
        name = self.dead_letter.get("type")
        if not name:
            return None
        fields = tuple((field, kind, bool(must)) for field, kind, must in self.dead_letter.fields)
        return TypeDecl(name, fingerprint_of(name, fields), fields)

    @property
    def event(self) -> dict[str, Any] | None:
        """The attributes of its event; None if it does not decode."""
        declared = self.declaration
        if declared is None:
            return None
        kind = EventType(GenericEvent) if declared.name == GENERIC else OpenType(declared)
        try:
            return kind.decode(self.dead_letter.raw)[0].attributes
        except UNREADABLE:
            return None


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = group(parser)
    listed = command(
        actions,
        "list",
        list_,
        "count the dead letters by stream and reason",
        "s4 dead-letter list clicks -p task.dead.letter.stream=log.dead "
        "-p systems.log.address=tcp://127.0.0.1:12000",
    )
    app_argument(listed)
    listed.add_argument(
        "--all", dest="every", action="store_true", help="print each on a line, with its id"
    )
    shown = command(
        actions,
        "show",
        show,
        "show dead letters with their event, place and traceback",
        "s4 dead-letter show clicks 0:17 --config clicks.properties",
    )
    app_argument(shown)
    shown.add_argument("ids", metavar="ID", nargs="+", help="as list prints it, such as 0:17")
    replayed = command(
        actions,
        "replay",
        replay,
        "send the events of dead letters to their streams again, each once",
        "s4 dead-letter replay clicks --stream log.clicks --config clicks.properties",
    )
    app_argument(replayed)
    replayed.add_argument("ids", metavar="ID", nargs="*", help="as list prints it (default: all)")
    to_option(
        replayed,
        "where the app listens, for events of live streams",
        "that of the running app",
        settings=False,
    )
    for action in (listed, replayed):
        action.add_argument(
            "--stream",
            metavar="STREAM",
            default="",
            help="only those from this stream, such as log.clicks",
        )
    for action in (listed, shown, replayed):
        job_options(action)
    skip_event.arguments(actions)


def list_(target: str, config: Config, *, every: bool, stream: str, as_json: bool) -> int:
    """Print the dead letters by stream and reason, or one by one; returns the exit status."""

    async def work(dead_letters: list[DeadLetter], _: _Home) -> int:
        if every:
            for one in dead_letters:
                if as_json:
                    print(json.dumps(_plain(one, raw=False)))
                else:
                    at = f"{one.dead_letter.origin}:{one.dead_letter.offset}"
                    end = "  (sent again)" if one.sent else ""
                    print(f"{one.id}  {at}  {on_one_line(one.dead_letter.reason)}{end}")
            return 0
        groups = Counter(one.kind for one in dead_letters)
        again = Counter(one.kind for one in dead_letters if one.sent)
        if as_json:
            rows = [
                {
                    "stream": kind[0],
                    "reason": kind[1],
                    "pe": kind[2],
                    "letters": count,
                    "sent": again[kind],
                    "first": next(one.id for one in dead_letters if one.kind == kind),
                }
                for kind, count in groups.items()
            ]
            print(json.dumps(rows))
            return 0
        for kind, count in groups.items():
            first = next(one.id for one in dead_letters if one.kind == kind)
            where = f" in {kind[2]}" if kind[2] else ""
            what = on_one_line(f"{kind[0]}: {kind[1]}{where}")
            sent = f"; {again[kind]} sent again" if again[kind] else ""
            print(f"{count:6}  {what}, the first is {first}{sent}")
        if not groups:
            report("no dead letters")
        return 0

    return _with_letters(target, config, [], stream, work)


def show(target: str, ids: Sequence[str], config: Config, *, as_json: bool) -> int:
    async def work(dead_letters: list[DeadLetter], _: _Home) -> int:
        for one in dead_letters:
            if as_json:
                print(json.dumps(_plain(one, raw=True)))
                continue
            print(f"id: {one.id}")
            for name in _SHOWN:
                value = one.dead_letter.get(name, "")
                if value != "":
                    print(f"{name}: {on_one_line(str(value))}")
            event = one.event
            what = f"does not decode: {one.dead_letter.raw.hex()}"
            if event is not None:
                what = f"{one.dead_letter.type} {json.dumps(msgspec.to_builtins(event))}"
            if not one.dead_letter.get("hook"):
                print(f"event: {what}")
            if one.dead_letter.get("trace"):
                print(one.dead_letter.trace.rstrip("\n"))
        return 0

    return _with_letters(target, config, ids, "", work)


def replay(
    target: str,
    ids: Sequence[str],
    config: Config,
    to: Sequence[str] | None,
    *,
    stream: str,
    as_json: bool,
) -> int:
    addresses = to or addresses_of_app(target)

    async def work(dead_letters: list[DeadLetter], home: _Home) -> int:
        sent: Counter[str] = Counter()
        limit = trio.CapacityLimiter(_AT_A_TIME)

        async def send_in_order(turn: list[DeadLetter]) -> None:
            for one in turn:
                async with limit:
                    sent[await send(one)] += 1

        async def send(one: DeadLetter) -> str:
            if one.sent:
                return "sent before"
            try:
                if hook := one.dead_letter.get("hook"):
                    raise _NotReplayable(f"the app calls {hook} again at its next start")
                if one.is_own(home.cluster):
                    raise _NotReplayable(
                        "the app itself has put its event; replay the event that led to it"
                    )
                refusal, new = await _send_again(one, home, addresses)
                if not refusal:
                    return "sent" if new else "sent before"
                why, outcome = f"its event is refused again: {refusal}", "refused again"
            except (_NotReplayable, S4Error) as error:
                why, outcome = str(error), "not sent"
            report(f"{one.id}: {on_one_line(why)}")
            return outcome

        turns: dict[tuple[str, int, str], list[DeadLetter]] = {}
        for one in dead_letters:
            turns.setdefault(one.turn, []).append(one)
        async with trio.open_nursery() as nursery:
            for turn in turns.values():
                nursery.start_soon(send_in_order, turn)
        said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(sent.items()) if count)
        text = f"{counted(len(dead_letters), 'letter')}: {said or 'nothing to send'}"
        give({outcome: sent[outcome] for outcome in _OUTCOMES}, text, as_json=as_json)
        return 1 if sent["not sent"] or sent["refused again"] else 0

    return _with_letters(target, config, ids, stream, work)


class _NotReplayable(Exception):  # noqa: N818 - never leaves this module
    """An event cannot be replayed; says why."""


async def _send_again(one: DeadLetter, home: _Home, addresses: Sequence[str]) -> tuple[str, bool]:
    """Send the event of a dead letter, and mark it. Returns the refusal, if any, and True if the
    event had not been replayed before."""
    dead_letter, declared = one.dead_letter, one.declaration
    if declared is None:
        raise _NotReplayable("its event does not decode; have its producer send it correctly")
    if dead_letter.system == LIVE:
        return await _send_live(one, home, addresses)
    system = home.systems[dead_letter.system]
    if not isinstance(system, EmbeddedLog):
        raise _NotReplayable(f"system {dead_letter.system!r} is not a log")
    encoded = {
        "types": [[declared.name, declared.fingerprint, list(declared.fields)]],
        "sections": [[declared.fingerprint, 1, len(dead_letter.raw)]],
        "body": dead_letter.raw,
    }
    stream, partition = dead_letter.stream, dead_letter.partition
    new = await system.append_encoded(stream, partition, encoded, home.sender(one), kept=True)
    passing("replay.sent")
    await home.mark(one)
    await system.forget(home.sender(one), stream)
    return "", new


async def _send_live(one: DeadLetter, home: _Home, addresses: Sequence[str]) -> tuple[str, bool]:
    async with Client(addresses, producer=home.sender(one), credentials=home.credentials) as client:
        stream = await client.stream(one.dead_letter.stream)
        reason, new = "", True
        for partition in range(stream.partitions):
            if await stream.resume_at(partition):
                new = False
        if new:
            stream.read_as(one.dead_letter.type)
            await stream.send(JsonText(msgspec.json.encode(one.event)))
            refusals = await stream.flush()
            reason = refusals[0].reason if refusals else ""
            passing("replay.sent")
        await home.mark(one)
        stream.end()
        return reason, new


# -- reading --------------------------------------------------------------------------------------


def _with_letters(
    target: str,
    config: Config,
    ids: Sequence[str],
    stream: str,
    work: Callable[[list[DeadLetter], _Home], Awaitable[int]],
) -> int:
    for each in ids:
        if not _ID.fullmatch(each):
            raise ConfigError(f"{each!r} is not the id of a dead letter; list --all prints the ids")
    job = find_job(target, config)
    name = job.name

    async def run() -> int:
        async with _home_of(job.config) as home:
            dead_letters = [
                one
                async for one in _dead_letters(home.system, home.stream)
                if one.dead_letter.get("app", name) == name and stream in ("", one.stream)
            ]
            if ids:
                known = {one.id: one for one in dead_letters}
                missing = [each for each in ids if each not in known]
                if missing:
                    raise S4Error(
                        f"{name} has no dead letter {missing[0]}; s4 dead-letter list --all prints "
                        f"the existing ones"
                    )
                dead_letters = [known[each] for each in ids]
            return await work(dead_letters, home)

    return trio.run(run)


class _Home(NamedTuple):
    """The system and the stream of the dead letters, all systems, and the app's cluster.

    ``credentials`` are for all of them.
    """

    system: System
    stream: str
    systems: Systems
    cluster: str
    credentials: Credentials | None

    def sender(self, one: DeadLetter) -> str:
        """The producer id under which an event is replayed."""
        credentials = self.credentials
        return one.name if credentials is None else credentials.holder.own_id(one.name)

    async def mark(self, one: DeadLetter) -> None:
        """Append the mark that an event was replayed."""
        partition = int(one.id.partition(":")[0])
        mark = GenericEvent(**{_MARK: one.id, _NAME: one.name})
        await self.system.append(self.stream, partition, [mark])


@asynccontextmanager
async def _home_of(config: Config) -> AsyncIterator[_Home]:
    """The stream of the dead letters, once it can be reached."""
    own = config[settings.LISTENER_ADDRESS] if config[settings.LOG_FOLDER] else ""
    systems = Systems(config, own)
    home, stream = _home(config, systems)
    async with trio.open_nursery() as nursery:
        others = [systems[name] for name in systems.names if name != LIVE]
        for system in others if home in others else [home, *others]:
            await nursery.start(system.run)
        with trio.move_on_after(_TIMEOUT_SECONDS) as patience:
            await home.wait_reachable()
        if patience.cancelled_caught:
            raise S4Error(
                f"the dead letters are in system {home.name!r}, which does not answer at "
                f"{getattr(home, 'address', '') or 'its address'}; start its node"
            )
        cluster, credentials = config[settings.CLUSTER_NAME], Credentials.configured(config)
        yield _Home(home, stream, systems, cluster, credentials)
        nursery.cancel_scope.cancel()


def _home(config: Config, systems: Systems) -> tuple[System, str]:
    name = config[settings.DEAD_LETTERS]
    if not name:
        raise ConfigError(
            f"{settings.DEAD_LETTERS.name} is not set; give the settings that the app runs with, "
            f"with --config or -p"
        )
    for cluster in config.matching(settings.STREAM_CONSUMERS).get(name, ()):
        address = config.matching(settings.CLUSTER_ADDRESS).get(cluster, "")
        if address:
            credentials = Credentials.configured(config)
            return EmbeddedLog(cluster, address, credentials=credentials), name
    system, _, stream = name.partition(".")
    if not stream:
        raise ConfigError(
            f"{settings.DEAD_LETTERS.name} = {name} is an output stream, but the settings have no "
            f"address of a cluster that consumes it; give the settings that the app runs with"
        )
    return systems[system], stream


async def _dead_letters(home: System, stream: str) -> AsyncIterator[DeadLetter]:
    for partition in range(await home.partitions(stream)):
        dead_letters: list[tuple[str, GenericEvent]] = []
        sent: set[str] = set()  # ids of dead letters, and names of replays
        place = SystemStreamPartition(home.name, stream, partition)
        bounds = await home.bounds(place)
        reader = await home.open(place, bounds.oldest, [GenericEvent])
        try:
            while reader.position < bounds.upcoming:
                batch = await reader.read()
                if not isinstance(batch, InputBatch):
                    break
                batch.load()
                for index, event in enumerate(batch.events):
                    if "reason" in event and "raw" in event:
                        dead_letters.append((f"{partition}:{batch.number(index)}", event))
                    elif _MARK in event:
                        sent |= {event[_MARK], event.get(_NAME, "")}
        finally:
            await reader.aclose()
        for number, dead_letter in dead_letters:
            one = DeadLetter(number, dead_letter)
            yield one._replace(sent=not sent.isdisjoint((number, one.name)))


def _plain(one: DeadLetter, *, raw: bool) -> dict[str, Any]:
    found = {"id": one.id, "sent": one.sent, **one.dead_letter.attributes, "event": one.event}
    found.pop("fields", None)
    if not raw:
        found.pop("raw", None)
        found.pop("trace", None)
    return dict(msgspec.to_builtins(found))  # bytes are base64
