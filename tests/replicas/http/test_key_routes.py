"""Issued keys over HTTP: who may make them, and what they then allow."""

import json
from urllib.parse import quote

from synrepl.base.access import Key, Keyring, Right
from tests.http.builders import Answer
from tests.replicas.http.test_replica_routes import CopiesCase

ADMIN = Key(name="admin", secret="admin", rights=frozenset({Right.READ, Right.WRITE, Right.ADMINISTER}))
LIMITED = Key(name="limited", secret="limited", streams=frozenset({"receipts"}))
WORKER = Key(name="worker", secret="worker", instances=frozenset({"w1", "w2"}))


class KeyTests(CopiesCase):
    """A primary with a shared secret, and three keys that may administer."""

    def setUp(self) -> None:
        super().setUp()
        keys = Keyring("shared", [ADMIN, LIMITED, WORKER])
        self.registry.keys = self.registry.issued.keyring = keys
        keys.use(self.registry.issued)
        self.site = self.make_site(**self.served(), keys=keys)

    def as_(self, secret: str, method: str, path: str, body: bytes = b"") -> Answer:
        """Ask with this secret."""
        return self.ask(method, path, body, f"Authorization: Bearer {secret}")

    def make(self, body: bytes, secret: str = "shared") -> Answer:
        """Make a key."""
        return self.as_(secret, "POST", "/v1/keys", body)

    def test_a_key_is_made_used_listed_and_revoked(self) -> None:
        made = self.make(b'{"name":"laptop","rights":["read"],"streams":["receipts"]}').json()
        listed = self.as_("shared", "GET", "/v1/keys").json()
        secret = made["secret"]
        seen = self.as_(secret, "GET", "/v1/changelog?streams=receipts").status
        hidden = self.as_(secret, "GET", "/v1/changelog?streams=events").json()["message"]
        written = self.as_(secret, "POST", "/v1/streams/receipts/facts", b'{"facts":[]}').json()["message"]
        revoked = self.as_("shared", "DELETE", "/v1/keys/laptop").json()
        after = self.as_(secret, "GET", "/v1/replication")
        again = self.as_("shared", "DELETE", "/v1/keys/laptop").json()

        assert made["key"] == listed["keys"][0] | {"revoked": None}
        assert (made["key"]["name"], made["key"]["rights"]) == ("laptop", ["read"])
        assert secret.startswith("laptop.")
        assert secret not in str(listed)
        assert seen == 200
        assert hidden == "the key laptop may not see the stream events: make another with synrepl keys add"
        assert written == "the key laptop lacks the right write: make another with synrepl keys add"
        assert revoked["revoked"] is not None
        assert (after.status, after.json()["error"]) == (401, "unauthorized")
        assert again["error"] == "unknown_key"

    def test_a_key_has_no_more_rights_than_that_of_its_maker(self) -> None:
        """Nor more streams or instances."""
        cases = [
            ("admin", b'{"name":"x","rights":["replicate"]}', "rights of one's own: not replicate"),
            ("admin", b'{"name":"x"}', "rights of one's own: not replicate"),
            ("limited", b'{"name":"x"}', "for streams that one's own key may see"),
            ("limited", b'{"name":"x","streams":["events"]}', "for streams that one's own key may see"),
            ("worker", b'{"name":"x"}', "for instances that one's own key may publish as"),
            ("worker", b'{"name":"x","instances":["w1","w3"]}', "that one's own key may publish as"),
        ]
        for secret, body, why in cases:
            answer = self.make(body, secret)
            assert (answer.status, answer.json()["error"]) == (403, "no_rights"), body
            assert why in answer.json()["message"]
        assert self.make(b'{"name":"x","streams":["receipts"]}', "limited").status == 200
        assert self.make(b'{"name":"y","rights":["read"]}', "admin").status == 200
        assert self.make(b'{"name":"z","instances":["w1"]}', "worker").status == 200

    def test_who_could_not_have_made_a_key_neither_sees_nor_revokes_it(self) -> None:
        """Each key by each maker: what may be made, is listed and revoked, and nothing else."""
        bodies = {
            name: (rights, streams, instances)
            for rights in (["read"], ["read", "replicate"], ["administer"])
            for streams in (None, ["receipts"], ["events"])
            for instances in (None, ["w1"])
            if (name := f"{'-'.join(rights)}.{streams}.{instances}".replace("'", "").replace(" ", ""))
        }
        for secret in ("admin", "limited", "worker", "shared"):
            made = {}
            for name, (rights, streams, instances) in bodies.items():
                fields = {"name": name, "rights": rights, "streams": streams, "instances": instances}
                body = json.dumps(fields).encode()
                may = self.make(body, secret).status == 200
                if not may:
                    assert self.make(body).status == 200
                made[name] = may
            listed = self.as_(secret, "GET", "/v1/keys").json()["keys"]
            seen = {one["name"] for one in listed if one["revoked"] is None}
            assert {name for name, may in made.items() if may} == seen, secret
            assert 0 < len(seen) < len(made) or secret == "shared"
            for name, may in made.items():
                answer = self.as_(secret, "DELETE", f"/v1/keys/{quote(name)}")
                assert answer.status == (200 if may else 404), (secret, name)
                if not may:
                    assert self.as_("shared", "DELETE", f"/v1/keys/{quote(name)}").status == 200

    def test_a_key_publishes_under_the_names_that_it_was_made_with(self) -> None:
        """Without any, or with null, under every name."""
        bodies = (b'{"name":"x","instances":["w2","w1"]}', b'{"name":"y"}', b'{"name":"z","instances":null}')
        made = [self.make(body).json() for body in bodies]
        listed = self.as_("shared", "GET", "/v1/keys").json()["keys"]
        granted = []
        for one in made:
            key = self.registry.keys.find(one["secret"].encode())
            assert key is not None
            granted.append(self.registry.keys.access(key).instances)
        revoked = self.as_("shared", "DELETE", "/v1/keys/x").json()

        assert [["w1", "w2"], None, None] == [one["key"]["instances"] for one in made]
        assert [one["key"] for one in made] == listed
        assert [frozenset({"w1", "w2"}), None, None] == granted
        assert ["w1", "w2"] == revoked["instances"]

    def test_a_bad_key_is_refused(self) -> None:
        cases = [
            (b'{"name":"admin"}', "key_refused", "there is a key admin already"),
            (b'{"name":""}', "key_refused", "a key needs a name"),
            (b'{"name":"x","rights":[]}', "bad_request", "a key needs a right"),
            (b'{"name":"x","rights":["fly"]}', "bad_request", "fly"),
            (b'{"name":"x","extra":1}', "bad_request", "extra"),
            (b'{"name":"x","instances":["w1",""]}', "key_refused", "instances must be names of 1 to 255"),
            (b'{"name":"x","streams":["a b"]}', "key_refused", "streams must be names of 1 to 255"),
            (b'{"name":"x","instances":"w1"}', "bad_request", "instances"),
        ]
        for body, code, why in cases:
            answer = self.make(body).json()
            assert answer["error"] == code, answer
            assert why in answer["message"]

    def test_who_replicates_may_also_read(self) -> None:
        """As in the keys file."""
        made = self.make(b'{"name":"x","rights":["replicate"]}').json()

        assert made["key"]["rights"] == ["read", "replicate"]

    def test_in_doubt_a_key_may_only_read_and_replicate(self) -> None:
        """The message says why."""
        secret = self.make(b'{"name":"x"}').json()["secret"]
        self.registry.issued.doubt = lambda: "this replica has not heard from its upstream for 75 seconds"
        written = self.as_(secret, "POST", "/v1/streams/receipts/facts", b'{"facts":[]}')

        assert written.status == 403
        assert written.json()["message"] == (
            "this replica has not heard from its upstream for 75 seconds, and the key x may have been revoked"
            " meanwhile: for now it may only read and replicate"
        )
        assert self.as_(secret, "GET", "/v1/replication").status == 200

    def test_only_administrators_are_told_of_revoked_keys(self) -> None:
        """The digest, with which replicas compare, says nothing."""
        self.make(b'{"name":"x"}')
        self.as_("shared", "DELETE", "/v1/keys/x")
        told = self.as_("shared", "GET", "/v1/replication").json()
        reader = self.make(b'{"name":"y","rights":["read"]}').json()["secret"]

        assert list(told["revoked"].values()) == ["x"]
        assert "revoked" not in self.as_(reader, "GET", "/v1/replication").json()

    def test_keys_are_in_nothing_that_readers_are_sent(self) -> None:
        """Not in the changelog, the rows, the recent changes, the status or the metrics."""
        secret = self.make(b'{"name":"hidden-name"}').json()["secret"]
        (key,) = self.registry.issued.all
        told = [
            self.as_("shared", "GET", path).body
            for path in (
                "/v1/changelog?epoch_starts=true&receipts=true",
                "/v1/changelog/extent",
                "/v1/recent",
                "/v1/status",
                "/v1/replication",
                "/metrics",
                "/v1/streams",
            )
        ]

        for text in (secret, key.record.sha256, "hidden-name"):
            assert text.encode() not in b"".join(told)
