"""txredisapi with its defaults, as Synapse uses it: one connection that subscribes, and one for the rest."""

import json
import sys
from typing import Any

import txredisapi
from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint

got: "Deferred[str]" = Deferred()
confirmed: "Deferred[None]" = Deferred()


class Subscriber(txredisapi.SubscriberProtocol):  # type: ignore[misc]  # untyped
    """Hears the channel."""

    channel = ""

    def connectionMade(self) -> None:
        super().connectionMade().addCallback(lambda _: self.subscribe(self.channel))

    def replyReceived(self, reply: Any) -> None:
        if isinstance(reply, list) and reply[:1] == ["subscribe"] and not confirmed.called:
            confirmed.callback(None)
        super().replyReceived(reply)

    def messageReceived(self, pattern: Any, channel: str, message: str) -> None:
        if not got.called:
            got.callback(message)


async def use(port: int, channel: str, password: str | None) -> dict[str, Any]:
    """Answers, and a message."""
    Subscriber.channel = channel
    factory = txredisapi.SubscriberFactory()
    factory.protocol, factory.password = Subscriber, password
    await TCP4ClientEndpoint(reactor, "127.0.0.1", port).connect(factory)
    await confirmed
    client = await txredisapi.Connection("127.0.0.1", port, password=password)
    found = {
        "ping": await client.ping(),
        "set": await client.set("k", "v", pexpire=60_000),
        "get": await client.get("k"),
    }
    found |= {"none": await client.get("none"), "several": await client.mget(["k", "none"])}
    found |= {
        "exists": await client.exists("k"),
        "ttl": await client.ttl("k"),
        "deleted": await client.delete("k"),
    }
    await client.publish(channel, "REMOTE_SERVER_UP txredisapi")
    found["message"] = await got
    return found


def main() -> None:
    """Use it until the message is there."""
    port, channel, password = int(sys.argv[1]), sys.argv[2], (*sys.argv[3:], None)[0]

    def end(found: Any) -> None:
        print(json.dumps(found) if isinstance(found, dict) else found)  # its purpose
        reactor.stop()

    reactor.callWhenRunning(lambda: ensureDeferred(use(port, channel, password)).addBoth(end))
    reactor.run()


if __name__ == "__main__":
    main()
