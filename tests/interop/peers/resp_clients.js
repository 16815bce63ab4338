// node-redis and ioredis with their defaults at a RESP port: PORT CHANNEL [PASSWORD]. Prints one JSON object.
const [port, channel, password] = [Number(process.argv[2]), process.argv[3], process.argv[4]];
const { createClient } = require("redis");
const Redis = require("ioredis");

async function nodeRedis() {
  const client = createClient({ socket: { host: "127.0.0.1", port }, password, name: "tool" });
  const failed = new Promise((_, reject) => client.on("error", reject));
  return Promise.race([failed, (async () => {
    await client.connect();
    const found = {
      ping: await client.ping(), set: await client.set("k", "v", { PX: 60000 }), get: await client.get("k"),
      none: await client.get("none"), several: await client.mGet(["k", "none"]), exists: await client.exists("k"),
      ttl: await client.ttl("k"), type: await client.type("k"), deleted: await client.del("k"),
      name: await client.clientGetName(), protocol: (await client.clientInfo()).resp,
      listed: (await client.clientList()).map((one) => one.name), settings: await client.configGet("databases"),
      commands: (await client.commandList()).length === await client.commandCount(),
      arity: (await client.commandInfo(["get"]))[0].arity,
    };
    const message = new Promise((resolve) => { found.subscribed = client.subscribe(channel, resolve); });
    found.subscribed = (await found.subscribed) === undefined;
    found.meanwhile = await client.ping();
    await client.publish(channel, "REMOTE_SERVER_UP node-redis");
    found.message = await message;
    await client.close();
    return found;
  })()]);
}

async function io() {
  const client = new Redis({ host: "127.0.0.1", port, password });
  const subscriber = client.duplicate();
  const failed = new Promise((_, reject) => [client, subscriber].forEach((one) => one.on("error", reject)));
  return Promise.race([failed, (async () => {
    const found = {
      ping: await client.ping(), set: await client.set("k", "v", "PX", 60000), get: await client.get("k"),
      none: await client.get("none"), several: await client.mget("k", "none"), deleted: await client.del("k"),
    };
    const message = new Promise((resolve) => subscriber.on("message", (_, text) => resolve(text)));
    await subscriber.subscribe(channel);
    await client.publish(channel, "REMOTE_SERVER_UP ioredis");
    found.message = await message;
    subscriber.disconnect();
    await client.quit();
    return found;
  })()]);
}

(async () => {
  console.log(JSON.stringify({ "node-redis": await nodeRedis(), ioredis: await io() }));
})().catch((error) => { console.error(error); process.exit(1); });
