"""Commands that replicas forward: judged by the replica's key, and not sent back."""

from typing import Any, TypeVar

from synrepl.base.access import access_of
from synrepl.replicas.command_receiver import CommandReceiver
from tests.http import test_authorization, test_changelog_feed, test_command_rights
from tests.http.test_authorization import OSLO
from tests.http.test_command_rights import KEYS, may

T = TypeVar("T")


def without_tests(case: type[T]) -> type[T]:
    """Return a class with the set-up of this case, and none of its tests."""
    names = {name: None for name in dir(case) if name.startswith("test_")}
    return type(case.__name__, (case,), dict(names))


def receiver_of(case: Any) -> CommandReceiver:
    """What takes the commands that replicas of this site's daemon forward."""
    receiver = CommandReceiver(
        case.publisher.follower_commands,
        case.metrics,
        case.clock,
        broadcast=lambda command, source: case.publisher.broadcast(command, but=source),
    )
    case.addCleanup(receiver.stop)
    return receiver


class InvalidationTests(without_tests(test_authorization.Authorization)):  # type: ignore[misc]
    """A daemon with keys."""

    def test_a_forwarded_invalidation_wants_the_right_to_write_its_stream(self) -> None:
        """As one does that a follower says here."""
        receive, said = receiver_of(self).receive, b'INVALIDATE_CACHE f ["x"]'
        received = receive("copy-1", [(1, said)], access=access_of(OSLO))
        self.assertEqual(((1, 1), 0), (received, self.log.head.serial))
        self.assertEqual(1, self.metrics.commands_dropped.labels("INVALIDATE_CACHE").value)

        receive("copy-1", [(2, said)])

        self.assertEqual(1, self.log.head.serial)


class FeedTests(without_tests(test_changelog_feed.CommandsDownTests)):  # type: ignore[misc]
    """Readers of the changelog that also take commands."""

    def test_what_a_replica_forwarded_does_not_come_back_to_it(self) -> None:
        """Its followers have heard it, or said it."""
        talks = {origin: self.follow(f"commands={origin}") for origin in ("copy-1", "copy-2")}
        said = [(1, b"REMOTE_SERVER_UP far.example.org")]
        receiver_of(self).receive("copy-1", said, source="copy-1")

        self.assertEqual([], self.lines(talks["copy-1"]))
        self.assertEqual(["REMOTE_SERVER_UP far.example.org"], self.lines(talks["copy-2"]))


class RightsTests(without_tests(test_command_rights.CommandRightsTests)):  # type: ignore[misc]
    """Keys with instances."""

    def test_through_a_replica(self) -> None:
        """What its followers say is judged by the replica's key; one of all instances has asked them."""
        self.wait(self.log.append("federation", "master", [b'[["k",{}]]']))
        receiver, number = receiver_of(self), 0
        for key in KEYS[-2:]:
            for run in key.instances or ():
                number += 1
                line = f"USER_SYNC {run} @a:hs None start 1".encode()
                receiver.receive("o", [(number, line)], access=access_of(key))
        for key, sample, instance, line in self.samples():
            if sample.line.startswith("REPLICATE"):
                continue  # no replica forwards it
            number += 1
            before = self.dropped()
            with self.subTest(key=key, line=line):
                receiver.receive("o", [(number, line)], access=access_of(key))
                self.assertEqual(may(key, sample, instance), self.dropped() == before)
