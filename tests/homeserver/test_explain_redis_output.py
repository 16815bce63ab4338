"""What redis-cli prints of settings, lists and figures, as people paste it."""

import pytest

from synrepl.homeserver.explanation import Passage, explain

CLIENT = (
    "id=3 addr=172.18.0.5:46548 fd=8 name= age=108 idle=0 flags={flags} db=0 sub={sub} psub=0 multi=-1 qbuf=0"
    " obl=0 oll=633405 omem={omem} tot-mem=2 events=rw cmd={cmd} user=default"
)
SLOWLOG = """\
127.0.0.1:6379> slowlog get 2
1) 1) (integer) 14
   2) (integer) 1309448221
   3) (integer) 150000
   4) 1) "KEYS"
      2) "*"
   5) "127.0.0.1:5555"
   6) ""
2) 1) (integer) 13
   2) (integer) 1309448200
   3) (integer) 20000
   4) 1) "PUBLISH"
"""
ACL_LOG = """\
> ACL LOG
1)  1) "count"
    2) (integer) 1
    3) "reason"
    4) "channel"
    5) "object"
    6) "example.org"
    7) "username"
    8) "synapse"
"""


def only(text: str) -> Passage:
    found = explain(text)
    assert found.unrecognized == 0
    [passage] = found.passages
    return passage


def config(name: str, value: str) -> str:
    return f'127.0.0.1:6379> CONFIG GET {name}\n1) "{name}"\n2) "{value}"\n'


def assert_told(text: str, severity: str, said: str, do: str) -> None:
    """The only passage of this text is of this severity, and has these words and this advice in it."""
    passage = only(text)

    assert severity == passage.severity
    assert any(said in one for one in passage.words)
    assert do in " | ".join(passage.advice)


@pytest.mark.parametrize(
    ("text", "severity", "said", "do"),
    [
        (config("timeout", "300"), "", "but none with a subscription", ""),
        (config("timeout", "10"), "look", "timeout is 10", "raise it above 60"),
        (config("maxmemory-policy", "noeviction"), "", "Synapse keeps nothing there that it needs", ""),
        (config("save", ""), "", "save is empty", ""),
        (
            config("stop-writes-on-bgsave-error", "yes"),
            "look",
            "refuses writes and PING",
            "CONFIG SET save ''",
        ),
        (config("cluster-enabled", "yes"), "look", "a node of a Redis Cluster", "no cluster"),
        (config("hz", "10"), "", "Settings of a Redis: hz", ""),
        ('redis-cli config get timeout\n1# "timeout" => "0"', "", "timeout is 0", ""),
        ("tcp-keepalive 60\ntimeout 20\nmaxmemory 100mb\n", "look", "timeout is 20", "raise it above 60"),
        ("client-output-buffer-limit pubsub 32mb 8mb 60", "", "is pubsub 32mb 8mb 60", ""),
        (SLOWLOG, "look", "the longest: KEYS, 150.0 ms", "CLIENT LIST"),
        (
            ACL_LOG,
            "error",
            "synapse of Redis may not use the channel example.org",
            "ACL SETUSER synapse allchannels",
        ),
        (ACL_LOG.replace("channel", "auth"), "error", "refused a login as synapse", "redis: password"),
        (
            '> ROLE\n1) "slave"\n2) "10.0.0.1"\n3) (integer) 6379\n',
            "look",
            "its master is 10.0.0.1:6379",
            "primary",
        ),
        ('> ROLE\n1) "master"\n2) (integer) 0\n', "", "This Redis is a master", ""),
        ('> PUBSUB CHANNELS\n1) "example.org"\n', "", "Channels that somebody hears: example.org", "NUMSUB"),
        ("> PUBSUB CHANNELS\n", "look", "Nobody is subscribed to any channel", "inspect --files"),
        ("> PUBLISH example.org x\n(integer) 0\n", "look", "Nobody received it", "server_name"),
        ("> PUBLISH example.org x\n(integer) 3\n", "", "3 connections received it", ""),
        (
            "# Memory\nused_memory:990\nmaxmemory:1000\n",
            "look",
            "used_memory is 990 of 1000",
            "raise maxmemory",
        ),
        ("# Memory\nused_memory:990\nmaxmemory:0\n", "", "nothing that is looked at here is odd", ""),
        ("connected_clients:95\nmaxclients:100\n", "look", "connected_clients is 95 of 100", "maxclients"),
        ("client_longest_output_list:633405\n", "look", "does not read: they take Redis' memory", "MONITOR"),
        (
            "# Errorstats\nerrorstat_NOPERM:count=12\n",
            "look",
            "NOPERM was answered since Redis started (12 in all)",
            "ACL LOG",
        ),
        ("rdb_last_bgsave_status:err\n", "look", "the last save failed", "CONFIG SET save ''"),
        ("cluster_state:fail\n", "look", "lacks a part", "no cluster"),
    ],
)
def test_what_redis_cli_printed_is_told_with_what_it_means(
    text: str, severity: str, said: str, do: str
) -> None:
    assert_told(text, severity, said, do)


def test_a_monitor_that_is_left_open_is_found() -> None:
    hears = CLIENT.format(flags="P", sub=1, omem=0, cmd="subscribe")
    watches = CLIENT.format(flags="O", sub=0, omem=24_000_000_000, cmd="monitor")

    passage = only(f"{hears}\n{watches}")

    assert ("look", True) == (
        passage.severity,
        passage.words[0].startswith("A MONITOR is open, and 24000000000"),
    )


def test_passwords_are_not_shown() -> None:
    assert "hunter2" not in str(explain(config("requirepass", "hunter2") + config("hz", "10")))


def test_words_of_commands_in_a_log_are_no_commands() -> None:
    """A line of a program that has the word publish, or ends with the word role."""
    found = explain("Failed to publish message\nuser has no role\nplease config get it\ntimeout 300")

    assert (4, []) == (found.unrecognized, found.passages)


NODE = "{id:040x} 10.1.0.{id}:7001@17001 {flags} {of} 0 1445584840139 {epoch} {link}"


def test_nodes_of_a_cluster_are_told_by_who_is_gone_and_how_often_masters_changed() -> None:
    """redis/redis#2820."""
    lines = [
        NODE.format(id=1, flags="myself,master", of="-", epoch=853, link="connected 0-5460"),
        NODE.format(id=2, flags="slave", of=f"{1:040x}", epoch=818, link="connected"),
        NODE.format(id=3, flags="master,fail", of="-", epoch=818, link="disconnected"),
    ]
    passage = only("\n".join(lines))

    assert ("redis_nodes", "look") == (passage.kind, passage.severity)
    assert passage.words[0] == "Nodes that this one does not reach: 1, as 10.1.0.3:7001."
    assert "2 masters, and 1 that copy one" in passage.words[1]
    assert any("epoch 853" in one for one in passage.words)
    assert any("cluster-node-timeout" in step for step in passage.advice)


def test_nodes_that_are_all_there_are_only_counted() -> None:
    passage = only(NODE.format(id=1, flags="myself,master", of="-", epoch=1, link="connected 0-16383"))

    assert "" == passage.severity
    assert 1 == len(passage.words)


@pytest.mark.parametrize(
    ("text", "severity", "said", "do"),
    [
        (
            """127.0.0.1:6379> acl list
1) "user default on nopass ~* &* +@all"
2) "user synapse on #abc ~* resetchannels -@all +publish"
""",
            "look",
            "synapse may use no channel",
            "&SERVER_NAME",
        ),
        (
            '1) "user admin on #1 ~* &* +@all"\n2) "user bot on #2 resetchannels &example.org* -@all"\n',
            "",
            "bot may use only channels as example.org*",
            "",
        ),
        ('127.0.0.1:6379> acl list\n1) "user synapse on #abc ~* &* +@all"\n', "", "Users of a Redis", ""),
        (
            """127.0.0.1:26379> sentinel masters
1) 1) "name"
   2) "m"
   3) "flags"
   4) "s_down,master"
   5) "num-other-sentinels"
   6) "0"
   7) "quorum"
   8) "2"
""",
            "look",
            "It knows of 0 other Sentinels",
            "CKQUORUM",
        ),
        (
            """127.0.0.1:6379> latency latest
1) 1) "fork"
   2) (integer) 1405067976
   3) (integer) 900
   4) (integer) 2000
""",
            "look",
            "up to 2000 ms",
            'save ""',
        ),
        (
            """127.0.0.1:6379> memory stats
1) "total.allocated"
2) (integer) 6000000000
3) "clients.normal"
4) (integer) 5000000000
""",
            "look",
            "Most of it is clients.normal",
            "CLIENT LIST",
        ),
        (
            '127.0.0.1:6379> memory stats\n1) "total.allocated"\n2) (integer) 6000\n',
            "",
            "Memory of a Redis",
            "",
        ),
        # As a program shows it.
        (
            "maxmemory: 2147483648\nused_memory: 2137516200\nrejected_connections: 5\n",
            "look",
            "maxclients",
            "",
        ),
    ],
)
def test_lists_and_figures_of_a_server_are_told_with_what_they_mean(
    text: str, severity: str, said: str, do: str
) -> None:
    assert_told(text, severity, said, do)


def test_one_connection_alone_is_not_taken_for_all() -> None:
    passage = only(CLIENT.format(flags="N", sub=0, omem=0, cmd="client"))

    assert passage.words[0].startswith("No connection here is subscribed: if this is the whole list,")


def test_info_of_a_cluster_tells_of_parts_that_are_not_reached() -> None:
    """bitnami/charts#4252."""
    passage = only(
        "cluster_state:fail\ncluster_slots_assigned:16384\ncluster_slots_ok:5461\ncluster_slots_pfail:10923\n"
        "cluster_known_nodes:6\ncluster_size:3\ncluster_stats_messages_received:0"
    )

    assert any(word.startswith("cluster_slots_pfail:10923") for word in passage.words)
    assert any("cluster-announce-ip" in step for step in passage.advice)


@pytest.mark.parametrize(
    ("figures", "said", "do"),
    [
        (
            "used_memory:2221690616\nused_memory_overhead:1994692380\nmem_cluster_links:1990000000",
            "to each of which every PUBLISH goes",
            "cluster-link-sendbuf-limit",
        ),
        ("used_memory:2221690616\nused_memory_overhead:1994692380", "1.9 GiB is no data", "MEMORY STATS"),
        ("used_memory:594230864\nused_memory_peak:4567655040", "It had 4.3 GiB at most", "largest omem"),
        ("used_memory:594230864\nused_memory_rss:439468032", "swapped out", "maxmemory well below"),
    ],
)
def test_memory_is_told_by_its_figures_together(figures: str, said: str, do: str) -> None:
    """redis/redis#3073, redis/redis#14310."""
    passage = only(figures)

    assert "look" == passage.severity
    assert any(said in one for one in passage.words)
    assert any(do in step for step in passage.advice)


def test_what_a_client_sent_is_memory_too() -> None:
    """redis/redis#3423."""
    line = CLIENT.format(flags="P", sub=1, omem=0, cmd="subscribe").replace("qbuf=0", "qbuf=46251984")
    passage = only(line)

    assert ("look", True) == (passage.severity, passage.words[0].startswith("A client has sent 46251984"))
