"""What workers send up, read by the homeserver over HTTP."""

from typing import Any

from synrepl.replication.serving.commands import MAX_COMMANDS
from synrepl.wire.commands import ClearUserSync, FederationAck, RemovePusher, UserSync
from tests.http.builders import Answer, SiteCase

PUSHER = RemovePusher(app_id="app.id", push_key="push key", user_id="@ada:hs")


class CommandBufferTests(SiteCase):
    """Numbers, gaps, acknowledgements."""

    def say(self, *commands: Any, connection: object = "c") -> None:
        """A worker sends these up."""
        for command in commands:
            self.publisher.follower_commands.received(connection, command)

    def read(self, query: str = "") -> list[Any]:
        """The lines of an answer, without the first."""
        answer = self.get(f"/v1/commands?{query}")
        self.assertEqual(200, answer.status)
        return answer.lines()[1:]

    def acknowledge(self, number: int, life: str | None = None) -> Answer:
        """Everything up to this was acted on."""
        life = self.publisher.follower_commands.buffer.life if life is None else life
        return self.ask("POST", "/v1/commands/ack", b'{"life":"%s","number":%d}' % (life.encode(), number))

    def test_what_a_worker_says_can_be_read(self) -> None:
        """REMOVE_PUSHER ended here: no pusher ever went."""
        self.say(PUSHER, FederationAck(instance="sender1", token=7))

        first, second = self.read("since=0")
        self.assertEqual((1, "REMOVE_PUSHER"), (first["number"], first["command"]))
        self.assertEqual("REMOVE_PUSHER app.id push key @ada:hs", first["line"])
        self.assertEqual((2, "FEDERATION_ACK sender1 7"), (second["number"], second["line"]))
        self.assertEqual([second], self.read("since=1"))
        self.assertEqual([first], self.read("since=0&limit=1"))
        self.assertEqual([], self.read("since=2"))

    def test_a_process_that_embeds_the_publisher_is_called(self) -> None:
        """Then nobody need read the command over HTTP. What a function raises is its own matter."""
        heard: list[RemovePusher] = []

        @self.publisher.on_command(RemovePusher)
        def fail(command: RemovePusher) -> None:
            raise ValueError(command)

        self.publisher.on_command(RemovePusher)(heard.append)
        self.say(PUSHER, UserSync(instance_id="w1", user_id="@ada:hs", is_syncing=True, last_sync_ms=1))

        self.assertEqual([PUSHER], heard)
        self.assertEqual({"@ada:hs"}, self.publisher.syncing_users())
        self.assertEqual(["USER_SYNC"], [line["command"] for line in self.read("since=0")])
        self.assertEqual(1, len(self.flushLoggedErrors(ValueError)))

    def test_what_was_acknowledged_is_not_offered_again(self) -> None:
        """Nor is it told as lost."""
        self.say(PUSHER, PUSHER, PUSHER)
        answer = self.acknowledge(2)

        self.assertEqual((200, 2, 3), (answer.status, answer.json()["trimmed_upto"], answer.json()["head"]))
        self.assertEqual([3], [line["number"] for line in self.read()])
        self.assertEqual([3], [line["number"] for line in self.read("since=0")])

    def test_an_acknowledgement_of_another_life_is_refused(self) -> None:
        """Its numbers mean other commands."""
        self.say(PUSHER)

        self.assertEqual(409, self.acknowledge(1, "other").status)
        self.assertEqual(409, self.acknowledge(2).status)
        self.assertEqual([1], [line["number"] for line in self.read()])

    def test_what_fell_out_is_counted_and_told(self) -> None:
        """A homeserver that is away must not fill the memory."""
        for _ in range(MAX_COMMANDS + 2):
            self.say(PUSHER)

        gap, first = self.read("since=0&limit=1")
        self.assertEqual({"gap": {"after": 0, "upto": 2, "restarted": False}}, gap)
        self.assertEqual(3, first["number"])
        self.assertEqual(2, self.metrics.commands_unread.labels("REMOVE_PUSHER").value)

    def test_a_reader_of_a_former_life_is_told_so(self) -> None:
        """It must not pass over what has the same numbers."""
        self.say(PUSHER)

        for query in ("since=7", "since=1&life=other"):
            gap, first = self.read(query)
            self.assertIs(True, gap["gap"]["restarted"])
            self.assertEqual(1, first["number"])

    def test_a_reader_may_wait_for_the_next_command(self) -> None:
        """It need not ask again and again."""
        asked = self.request("GET", "/v1/commands?wait=30")
        talk = self.talk()
        talk.say(asked)
        self.assertEqual(b"", talk.heard)
        self.say(PUSHER)

        self.assertEqual([1], [line["number"] for line in talk.answer().lines()[1:]])

    def test_a_wait_without_a_command_ends(self) -> None:
        """With no lines but the first; one that was cut leaves nothing behind."""
        talk, gone = self.talk(), self.talk()
        for one in (talk, gone):
            one.say(self.request("GET", "/v1/commands?wait=30"))
        gone.leave()
        self.assertEqual(1, len(self.publisher.follower_commands.buffer.waiters))
        self.clock.advance(30)

        self.assertEqual([], talk.answer().lines()[1:])
        self.assertEqual(0, len(self.publisher.follower_commands.buffer.waiters))

    def test_syncing_users_are_listed(self) -> None:
        """The set was kept in memory, and nobody could see it."""
        ada = UserSync(instance_id="one", user_id="@ada:hs", is_syncing=True, last_sync_ms=1)
        other = UserSync(instance_id="two", user_id="@ada:hs", is_syncing=True, last_sync_ms=2)
        self.say(ada, other)
        both = self.get("/v1/syncing").json()
        self.say(ClearUserSync(instance_id="one"), ClearUserSync(instance_id="two"))

        self.assertEqual({"users": [{"user_id": "@ada:hs", "device_id": None, "workers": 2}]}, both)
        self.assertEqual({"users": []}, self.get("/v1/syncing").json())

    def test_syncing_users_are_sorted_by_name_and_device(self) -> None:
        """Releases before 1.92 do not name the device, which is then null."""
        self.say(
            *(
                UserSync(instance_id="one", user_id=user, device_id=device, is_syncing=True, last_sync_ms=1)
                for user, device in (("@bob:hs", "A"), ("@ada:hs", "PHONE"), ("@ada:hs", None))
            )
        )

        users = self.get("/v1/syncing").json()["users"]
        self.assertEqual(
            [("@ada:hs", None), ("@ada:hs", "PHONE"), ("@bob:hs", "A")],
            [(user["user_id"], user["device_id"]) for user in users],
        )

    def test_a_legacy_worker_is_named_by_its_connection(self) -> None:
        """And its end is told as that of a worker is."""
        self.say(UserSync(user_id="@ada:hs", is_syncing=True, last_sync_ms=1))
        self.publisher.follower_commands.connection_lost("c")

        said, cleared = self.read("since=0")
        life = said["line"].split(" ")[1]
        self.assertEqual(f"USER_SYNC {life} @ada:hs None start 1", said["line"])
        self.assertEqual(f"CLEAR_USER_SYNC {life}", cleared["line"])
