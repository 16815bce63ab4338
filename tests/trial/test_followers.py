"""Followers over TCP, UNIX sockets and TLS, as the library connects and serves them. Run by trial."""

import socket

from twisted.internet.error import ConnectionDone, ConnectionLost

from tests.certificates import Authority
from tests.trial.worlds import World


class FollowerTests(World):
    """A follower hears facts as they come, and fetches those that came while it was away."""

    async def test_facts_arrive_over_tcp(self) -> None:
        """Those that were there, and those that come."""
        await self.append("@ada:hs")
        _, port = await self.serving("tcp:0:interface=127.0.0.1")
        self.following(f"tcp:127.0.0.1:{port.getHost().port}")
        await self.happens("applied", 1)

        await self.append("@bob:hs", "@eve:hs")
        await self.happens("applied", 3)

        self.assertEqual([1, 2, 3], self.applied)

    async def test_followers_connect_while_the_server_is_busy(self) -> None:
        """The system holds many: it drops what is beyond, and a client tries again only after a second."""
        _, port = await self.serving("tcp:0:interface=127.0.0.1")

        # The reactor accepts none of them, as it does not run meanwhile.
        for _ in range(100):
            connected = socket.create_connection(("127.0.0.1", port.getHost().port), timeout=0.9)
            self.addCleanup(connected.close)

    async def test_a_follower_comes_back_to_a_server_that_was_away(self) -> None:
        """It tries again by itself, and pulls over HTTP what it missed."""
        service, port = await self.serving("tcp:0:interface=127.0.0.1")
        number = port.getHost().port
        self.following(f"tcp:127.0.0.1:{number}")
        await self.append("@ada:hs")
        await self.happens("applied", 1)
        await service.stopService()
        await self.happens("disconnected", 2)

        await self.append("@bob:hs", "@eve:hs")
        await self.serving(f"tcp:{number}:interface=127.0.0.1")
        await self.happens("applied", 3)
        await self.append("@zoe:hs")
        await self.happens("applied", 4)

        self.assertEqual([1, 2, 3, 4], self.applied)
        self.assertEqual([], self.flushLoggedErrors(ConnectionDone, ConnectionLost))

    async def test_a_connection_that_is_cut_is_made_again(self) -> None:
        """Nothing is lost, and nothing is applied twice."""
        service, port = await self.serving("tcp:0:interface=127.0.0.1")
        self.following(f"tcp:127.0.0.1:{port.getHost().port}")
        for count in range(1, 4):
            await self.append(f"@ada{count}:hs")
            await self.happens("applied", count)
            for protocol in list(service._factory.protocols):
                protocol.transport.abortConnection()
            await self.happens("connected", count + 1)

        await self.append("@bob:hs")
        await self.happens("applied", 4)

        self.assertEqual([1, 2, 3, 4], self.applied)

    async def test_facts_arrive_over_a_unix_socket(self) -> None:
        """It is known for local although it has no address."""
        path = self.home / "socket"
        await self.serving(f"unix:{path}")
        self.following(f"unix:{path}")
        await self.happens("connected", 1)

        await self.append("@ada:hs")
        await self.happens("applied", 1)

        self.assertEqual([1], self.applied)

    async def test_facts_arrive_over_tls(self) -> None:
        """From a server whose certificate is of a CA that the follower trusts."""
        ours = Authority(self.home, "ours")
        certificate, key = ours.sign("localhost", "127.0.0.1")
        own = f"certificate={certificate}:privateKey={key}"
        _, port = await self.serving(f"tls:0:interface=127.0.0.1:{own}")
        self.following(f"tls:localhost:{port.getHost().port}:trustRoots={ours.ca_file}")

        await self.append("@ada:hs")
        await self.happens("applied", 1)

        self.assertEqual([1], self.applied)

    async def test_a_server_of_another_name_is_not_followed(self) -> None:
        """Its facts are not ours."""
        await self.append("@ada:hs")
        _, port = await self.serving("tcp:0:interface=127.0.0.1")
        self.following(f"tcp:127.0.0.1:{port.getHost().port}", server_name="other.example")

        await self.happens("disconnected", 1)

        self.assertEqual([], self.applied)
        self.assertIn(
            "wrong server_name: the server is hs.example, expected other.example",
            {event.text for event in self.events},
        )
