"""The status page: everything is on it, nothing on it is taken for HTML, and it stays bounded."""

import copy
import re
from base64 import b64encode
from hashlib import sha256
from typing import Any

from synrepl.declarations import all_routes
from synrepl.replicas.relay.replica_registry import REPLICA_STATES
from synrepl.replication.status import states
from synrepl.transports.http.status_page import KINDS, POLICY, page
from tests.http.builders import NOW, SiteCase

HOSTILE = "<img src=x onerror=alert(1)>\"'&"

REPLICA: dict[str, Any] = {
    "uuid": "6b1f",
    "name": "paris",
    "state": "live",
    "registered": True,
    "relay": "live",
    "serial": 1_200,
    "sent": 1_200,
    "lag_rows": 0,
    "lag_seconds": 0.0,
    "seen": NOW - 3.0,
    "address": "tcp:10.0.0.2:9092 http://10.0.0.2:9093",
    "why": "",
}
LEASE: dict[str, Any] = {
    "uuid": "6b1f",
    "name": "paris",
    "registered": True,
    "serial": 1_200,
    "held_bytes": 5_000_000,
    "used": 0.85,
    "ends_after_seconds": 604_800.0,
    "ended": None,
    "reason": "",
}
BACKUP: dict[str, Any] = {
    "uuid": "backup:9c40",
    "name": "nightly",
    "serial": 1_190,
    "age_seconds": 9_000.0,
    "is_connected": False,
}
UPSTREAM: dict[str, Any] = {
    "address": "tcp:berlin:9092 -",
    "state": "snapshot",
    "means": "joining",
    "why": "",
    "since": NOW - 20.0,
    "heard_seconds_ago": 0.4,
    "serial": 60_000,
    "epoch": 2,
    "instance": "master",
    "primary": "tcp:berlin:9092 http://berlin:9093",
    "refusal": None,
    "join": {"done": 15_000, "total": 60_000, "rows_per_second": 1_500.0, "eta_seconds": 30.0},
    "only_here": ["synrepl.db.only-here-1-201-207.ndjson"],
}


def status(**changed: Any) -> dict[str, Any]:
    """A daemon that has some of everything."""
    made: dict[str, Any] = {
        "role": "replica",
        "state": "joining",
        "warnings": [],
        "errors": [{"what": "the upstream is away", "since": NOW - 125.0}],
        "server_name": "example.org",
        "instance": "master",
        "epoch": 2,
        "serial": 1_234,
        "digest": "ab" * 32,
        "trimmed_upto": 100,
        "history": "3a70c7e2-c3c1-4d3a-a2a2-5cd1d9c6ef59",
        "uuid": "5d040061",
        "lag_rows": 58_766,
        "lag_seconds": 20.0,
        "why": "",
        "name": "rome",
        "address": "tcp:127.0.0.1:9092 http://127.0.0.1:9093",
        "primary": "tcp:berlin:9092 http://berlin:9093",
        "upstream": copy.deepcopy(UPSTREAM),
        "replicas": [dict(REPLICA)],
        "leases": [dict(LEASE)],
        "backups": [dict(BACKUP)],
        "epoch_starts": [
            {"epoch": 2, "serial": 900, "digest": "d", "at_ms": (NOW - 60) * 1000, "why": "promoted"}
            | {"stream": "", "token": 0}
        ],
        "unnotified": [],
        "files": {
            "rule": "eager",
            "stored": 3,
            "stored_bytes": 60_000,
            "wanted": 2,
            "in_flight": 1,
            "failing": [
                {"name": "media/1.png", "sha256": "cd" * 32, "why": "404", "tries": 3, "next_at": NOW + 90.0}
            ],
            "oldest_seconds": 75.0,
            "missing": 2,
            "quarantined": 1,
        },
        "followers": [
            {
                "name": "pusher1",
                "dialect": "current",
                "connected_seconds": 4_000.0,
                "behind": False,
                "lag_rows": 0,
                "lag_seconds": 0.0,
                "serial": 1_234,
            }
        ],
        "streams": {
            "receipts": {"writers": {"worker1": 7, "worker2": 9}, "kept": True},
            "typing": {"writers": {}, "kept": False},
        },
        "recent": [
            {"serial": 1_234, "stream": "receipts", "writer": "worker2", "token": 9, "rows": 2, "at": NOW - 7}
        ],
        "tables": [],
        "writers": [],
        "redis": None,
        "resp": None,
        "following": [],
        "stuck": [],
        "version": "26.11.0",
        "uptime_seconds": 7_500.0,
    }
    return made | changed


def shown(made: dict[str, Any]) -> str:
    """The page, as text."""
    return page(made, NOW).decode()


class StatusPageTests(SiteCase):
    """What stands on it."""

    def test_it_has_all_that_an_operator_looks_for(self) -> None:
        """One page, no second question."""
        text = shown(status())

        for what in (
            "joining",
            states()["joining"].means,
            "the upstream is away",
            "for 2 min 5 s",
            "joining: 15,000 of 60,000 facts (25%)",
            "1,500 facts/s, about 30 s left",
            "synrepl.db.only-here-1-201-207.ndjson",
            "abababababab…",
            "ab" * 32,
            "paris",
            REPLICA_STATES["live"],
            "85%",
            "nightly",
            "2 h 30 min",
            "promoted",
            "pusher1",
            "worker1 7, worker2 9",
            "7.0 s ago",
            "up for 2 h 5 min",
            "26.11.0",
        ):
            self.assertIn(what, text)

    def test_it_links_to_the_same_in_other_forms(self) -> None:
        """Relative to the page, which a proxy may have under a prefix; the links lead to routes."""
        text = shown(status())

        self.assertTrue(text.startswith("<!DOCTYPE html>"), text[:20])
        links = re.findall(r'<a href="([^"]*)"', text)
        self.assertEqual({"v1/status", "metrics", "v1/openapi.json"}, set(links))
        self.assertLessEqual({f"/{one}" for one in links}, {route.path for route in all_routes()})

    def test_names_from_peers_are_escaped(self) -> None:
        """Names of replicas, writers and files come over the wire."""
        text = shown(_hostile(status()))

        self.assertNotIn("<img", text)
        self.assertIn("&lt;img", text)

    def test_the_status_page_is_bounded(self) -> None:
        """200 replicas and 5,000 writers still make a page that a phone can show, and it says so."""
        many = [REPLICA | {"name": f"replica{number}", "uuid": f"u{number}"} for number in range(200)]
        writers = {f"worker{number}": number for number in range(5_000)}
        made = status(
            replicas=many,
            leases=[LEASE | {"uuid": one["uuid"]} for one in many],
            streams={"events": {"writers": writers, "kept": True}},
        )

        text = shown(made)

        self.assertLess(len(text), 250_000)
        self.assertEqual(2, text.count("and 100 more"))
        self.assertIn("and 4,900 more", text)
        self.assertIn("5,000 writers, up to 4,999", text)

    def test_every_state_has_a_color_and_its_word(self) -> None:
        """Not color alone."""
        self.assertEqual(list(states()), list(KINDS))
        for word in states():
            self.assertIn(f"<span>{word}</span>", shown(status(state=word)))

    def test_green_means_that_all_is_well(self) -> None:
        """A lost replica shows in the headline, and in the title of the tab."""
        well = shown(status(state="serving"))
        warned = shown(
            status(state="serving", warnings=["1 replica lost, 1 behind", "1 lease nearly used up"])
        )

        self.assertIn('<p class="state good"><span>serving</span>', well)
        words = "; 1 replica lost, 1 behind; 1 lease nearly used up"
        self.assertIn(f'<p class="state busy"><span>serving</span><span>{words}</span>', warned)
        self.assertIn(f"<title>serving{words}: ", warned)

    def test_saved_facts_are_named(self) -> None:
        """An operator copies the path."""
        self.assertIn("<code>synrepl.db.only-here-1-201-207.ndjson</code>", shown(status()))

    def test_what_is_wrong_in_the_watched_homeserver(self) -> None:
        """With why, what to do, and what cannot be seen. A daemon that watches none has no such section."""
        finding = {
            "kind": "never_announced",
            "stream": "receipts",
            "writer": "w1",
            "process": "w1",
            "since_seconds": 75.0,
            "why": "w1 stored <receipts> up to 9",
            "remedy": "restart w1",
        }
        unseen = {"what": "Redis", "why": "connection refused"}
        watched = {"server_name": "example.org", "findings": [finding], "unseen": [unseen]}
        text = shown(status(homeserver=watched))

        self.assertIn("Homeserver example.org", text)
        self.assertIn("w1 stored &lt;receipts&gt; up to 9; restart w1", text)
        self.assertIn("not seen: Redis: connection refused", text)
        well = shown(status(homeserver={**watched, "findings": [], "unseen": []}))
        self.assertIn("Nothing is wrong.", well)
        self.assertNotIn("Homeserver", shown(status()))

    def test_the_status_page_reloads_without_a_script(self) -> None:
        """By asking again as a whole."""
        self.assertIn('<noscript><meta http-equiv="refresh" content="5"></noscript>', shown(status()))

    def test_the_policy_allows_this_style_and_this_script_alone(self) -> None:
        """Whatever got past the escaping would not run."""
        text = shown(status())

        for name in ("style", "script"):
            found = re.findall(f"<{name}>(.*?)</{name}>", text, re.DOTALL)
            self.assertEqual(1, len(found))
            digest = b64encode(sha256(found[0].encode()).digest()).decode()
            self.assertIn(f"{name}-src 'sha256-{digest}'", POLICY.decode())
        self.assertNotIn(" style=", text)
        self.assertNotIn("unsafe", POLICY.decode())
        self.assertEqual(POLICY.decode(), self.get("/status").headers["content-security-policy"])

    def test_a_stopped_replica_says_what_to_do(self) -> None:
        """The word alone leaves an operator with a search."""
        refusal = {"code": "ahead", "message": "paris is at serial 225, beyond the end of this log, 200"}
        stopped = UPSTREAM | {"state": "stopped", "join": None, "refusal": refusal, "serial": 200}

        text = shown(status(state="stopped", upstream=stopped, what_to_do=[states()["stopped"].what_to_do]))

        self.assertIn("synrepl resync", text)
        self.assertIn("ahead: paris is at serial 225, beyond the end of this log, 200", text)

    def test_the_headline_says_the_role_and_not_the_instance(self) -> None:
        """Most instances are called master, also those of replicas."""
        text = shown(status())

        self.assertIn("synrepl · rome, replica of example.org", text)
        self.assertNotIn("master of", text)
        self.assertIn("<dt>writes as</dt><dd>master</dd>", text)
        self.assertIn("rome, fenced daemon of example.org", shown(status(role="fenced", state="fenced")))

    def test_the_lag_of_a_lost_replica_is_unknown(self) -> None:
        """It had everything when it left; what it has now, nobody knows."""
        for state in ("lost", "never seen", "ended"):
            text = shown(status(replicas=[REPLICA | {"state": state}]))
            self.assertIn('<span class="dim">unknown</span>', text)
        self.assertNotIn('<span class="dim">unknown</span>', shown(status()))

    def test_the_status_page_begins_with_rate_last_fact_and_disk(self) -> None:
        """The rate, the last fact and the disk; digest and history are for comparisons."""
        disk = {"log_bytes": 3 << 20, "free_bytes": 5 << 30}
        text = shown(status(facts_per_second=12.5, last_fact_at=NOW - 7, disk=disk))

        parts = ("12.5 a second", "7.0 s ago", "3.0 MiB, 5.0 GiB free", "<dt>digest")
        found = [text.index(part) for part in parts]
        self.assertEqual(sorted(found), found)


def _hostile(value: Any, key: str = "") -> Any:
    """The same with all text replaced that is not a word of ours."""
    if isinstance(value, dict):
        return {
            (f"{HOSTILE}{name}" if key in ("streams", "writers") else name): _hostile(one, name)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [_hostile(one, key) for one in value]
    return HOSTILE if isinstance(value, str) and key not in ("state", "role", "rule") else value
