"""coredis with its defaults at a RESP port: PORT CHANNEL [PASSWORD]. Prints one JSON object."""

import json
import sys

import anyio
import coredis


async def main():
    port, channel, password = int(sys.argv[1]), sys.argv[2], (sys.argv[3:] + [None])[0]
    client = coredis.Redis(host="127.0.0.1", port=port, password=password, decode_responses=True)
    async with client:
        found = {"ping": await client.ping(), "set": bool(await client.set("k", "v", px=60000))}
        found["get"] = await client.get("k")
        found["none"] = await client.get("none")
        found["several"] = list(await client.mget(["k", "none"]))
        found["deleted"] = await client.delete(["k"])
        found["protocol"] = [one["resp"] for one in await client.client_list()][-1]
        async with client.pubsub() as subscription:
            await subscription.subscribe(channel)
            await subscription.get_message(timeout=60)
            await client.publish(channel, "REMOTE_SERVER_UP coredis")
            found["message"] = (await subscription.get_message(timeout=60))["data"]
    print(json.dumps(found))


anyio.run(main)
