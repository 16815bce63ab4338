"""redis-py with its defaults, in threads and with asyncio."""

import asyncio
import json
import sys
from typing import Any

import redis
import redis.asyncio


async def use_asyncio(port: int, channel: str, password: str | None) -> dict[str, Any]:
    """Answers and a message, each on connections of a pool."""
    client: Any = redis.asyncio.Redis(port=port, password=password, client_name="tool", decode_responses=True)
    found = {
        "ping": await client.ping(),
        "set": await client.set("a", "v", px=60_000),
        "get": await client.get("a"),
    }
    async with client.pubsub() as subscription:
        await subscription.subscribe(channel)
        await subscription.get_message(timeout=60)
        await client.publish(channel, "REMOTE_SERVER_UP asyncio")
        message = await subscription.get_message(timeout=60)
    await client.aclose()
    return {**found, "message": message["data"]}


def use(port: int, channel: str, password: str | None) -> dict[str, Any]:
    """The same, and what tools ask."""
    client: Any = redis.Redis(port=port, password=password, client_name="tool", decode_responses=True)
    found = {"ping": client.ping(), "set": client.set("k", "v", px=60_000), "get": client.get("k")}
    found |= {
        "none": client.get("none"),
        "several": client.mget("k", "none"),
        "exists": client.exists("k", "none"),
    }
    found |= {"ttl": client.ttl("k"), "type": client.type("k"), "deleted": client.delete("k", "none")}
    found |= {"name": client.client_getname(), "protocol": client.client_info()["resp"]}
    found |= {
        "listed": [one["name"] for one in client.client_list()],
        "settings": client.config_get("databases"),
    }
    found |= {"count": client.command_count(), "commands": len(client.command())}
    pipeline = client.pipeline(transaction=False)
    found["pipeline"] = pipeline.set("k", 1).get("k").execute()
    subscription = client.pubsub()
    subscription.subscribe(channel)
    subscription.get_message(timeout=60)
    client.publish(channel, "REMOTE_SERVER_UP redis-py")
    found["message"] = subscription.get_message(timeout=60)["data"]
    subscription.close()
    found["reset"] = client.reset()
    client.close()
    return found


def main() -> None:
    """Use both."""
    port, channel, password = int(sys.argv[1]), sys.argv[2], (*sys.argv[3:], None)[0]
    found = use(port, channel, password)
    found["asyncio"] = asyncio.run(use_asyncio(port, channel, password))
    print(json.dumps(found))  # the purpose of this program


if __name__ == "__main__":
    main()
