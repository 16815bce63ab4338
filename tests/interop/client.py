"""A user of a homeserver: the client API, one method for each thing that leaves rows in the streams."""

import hashlib
import hmac
import itertools
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import Any, Final, Self

from tests.interop.homeserver import MAIN, WORKER, Homeserver

ANSWER_SECONDS: Final = 30.0
PATIENCE_SECONDS: Final = 90.0
"""For how long a request is repeated, while a process is away or in trouble."""
STEP_SECONDS: Final = 0.2
PASSWORD: Final = "password-of-the-tests"

CLIENT: Final = "/_matrix/client/v3"
ADMIN: Final = "/_synapse/admin/v1"
STICKY: Final = "org.matrix.msc4354.sticky_duration_ms"

Answer = dict[str, Any]


class Refused(Exception):
    """The homeserver said no, and will say no again."""

    def __init__(self, what: str, code: int, body: str) -> None:
        super().__init__(f"{what}: {code} {body}")
        self.code = code


class Client:
    """One device of one user. A request goes to the process that serves it, `at` where there is a choice.

    Without `at`, what only writers of a stream serve goes to the first of them.
    """

    def __init__(self, homeserver: Homeserver, user: str, device: str, token: str) -> None:
        self.user = user
        self.device = device
        self._homeserver = homeserver
        self._urls = homeserver.urls
        self._token = token
        self._numbers = itertools.count(1)
        self._since: dict[str, str] = {}

    @classmethod
    def register(cls, homeserver: Homeserver, name: str, *, admin: bool = False) -> Self:
        """A new user."""
        asking = cls(homeserver, "", "", "")
        nonce = asking.request(MAIN, "GET", f"{ADMIN}/register")["nonce"]
        words = [nonce, name, PASSWORD, "admin" if admin else "notadmin"]
        mac = hmac.new(homeserver.registration_secret.encode(), "\0".join(words).encode(), hashlib.sha1)
        body = {"nonce": nonce, "username": name, "password": PASSWORD, "admin": admin}
        said = asking.request(MAIN, "POST", f"{ADMIN}/register", body | {"mac": mac.hexdigest()})
        return cls(homeserver, said["user_id"], said["device_id"], said["access_token"])

    def log_in(self, device: str, at: str = WORKER) -> "Client":
        """The same user, with another device."""
        body = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": self.user},
            "password": PASSWORD,
            "device_id": device,
        }
        said = self.request(at, "POST", f"{CLIENT}/login", body)
        return Client(self._homeserver, self.user, device, said["access_token"])

    @property
    def token(self) -> str:
        """What it shows to be let in."""
        return self._token

    def who_am_i(self, at: str = WORKER) -> Answer:
        """Whom this process takes it for."""
        return self.request(at, "GET", f"{CLIENT}/account/whoami")

    def log_out(self) -> None:
        """Forget this device."""
        self.request(MAIN, "POST", f"{CLIENT}/logout", {})

    # Rooms

    def create_room(self, at: str = WORKER, **settings: Any) -> str:
        """A new room: its id."""
        room: str = self.request(at, "POST", f"{CLIENT}/createRoom", settings)["room_id"]
        return room

    def join(self, room: str, at: str = WORKER) -> None:
        """Be in it."""
        self.request(at, "POST", f"{CLIENT}/join/{_quoted(room)}", {})

    def leave(self, room: str, at: str = WORKER) -> None:
        """Be out of it."""
        self.request(at, "POST", f"{CLIENT}/rooms/{_quoted(room)}/leave", {})

    def invite(self, room: str, user: str, at: str = WORKER) -> None:
        """Ask another user in."""
        self.request(at, "POST", f"{CLIENT}/rooms/{_quoted(room)}/invite", {"user_id": user})

    def send(
        self, room: str, text: str, *, thread: str | None = None, is_sticky: bool = False, at: str = WORKER
    ) -> str:
        """A message, perhaps in a thread, perhaps one that sticks for a minute: its id."""
        content: Answer = {"msgtype": "m.text", "body": text}
        if thread is not None:
            content["m.relates_to"] = {"rel_type": "m.thread", "event_id": thread}
        path = f"{CLIENT}/rooms/{_quoted(room)}/send/m.room.message/{self._transaction()}"
        return self._event(at, path + (f"?{STICKY}=60000" if is_sticky else ""), content)

    def react(self, room: str, event: str, with_what: str, at: str = WORKER) -> str:
        """A reaction: its id."""
        relation = {"rel_type": "m.annotation", "event_id": event, "key": with_what}
        path = f"{CLIENT}/rooms/{_quoted(room)}/send/m.reaction/{self._transaction()}"
        return self._event(at, path, {"m.relates_to": relation})

    def redact(self, room: str, event: str, at: str = WORKER) -> str:
        """Take an event back: the id of the redaction."""
        path = f"{CLIENT}/rooms/{_quoted(room)}/redact/{_quoted(event)}/{self._transaction()}"
        return self._event(at, path, {"reason": "said too much"})

    def set_state(self, room: str, type: str, content: Answer, at: str = WORKER) -> str:
        """The name, the topic and the like: the id of the event."""
        return self._event(at, f"{CLIENT}/rooms/{_quoted(room)}/state/{type}", content)

    # What is told in passing

    def type(self, room: str, is_typing: bool) -> None:
        """Begin or end to type."""
        path = f"{CLIENT}/rooms/{_quoted(room)}/typing/{_quoted(self.user)}"
        self.request(self._writer("typing"), "PUT", path, {"typing": is_typing, "timeout": 30_000})

    def read(
        self,
        room: str,
        event: str,
        *,
        kind: str = "m.read",
        thread: str | None = None,
        at: str | None = None,
    ) -> None:
        """A receipt, perhaps within a thread."""
        path = f"{CLIENT}/rooms/{_quoted(room)}/receipt/{kind}/{_quoted(event)}"
        body = {} if thread is None else {"thread_id": thread}
        self.request(at or self._writer("receipts"), "POST", path, body)

    def be(self, presence: str, message: str = "") -> None:
        """Be `online`, `unavailable` or `offline`."""
        path = f"{CLIENT}/presence/{_quoted(self.user)}/status"
        self.request(WORKER, "PUT", path, {"presence": presence, "status_msg": message})

    def sync(self, at: str = WORKER) -> Answer:
        """What is new to this device, at once."""
        query = {"timeout": "0", "set_presence": "online"}
        if at in self._since:
            query["since"] = self._since[at]
        said = self.request(at, "GET", f"{CLIENT}/sync?{urllib.parse.urlencode(query)}")
        self._since[at] = said["next_batch"]
        return said

    # What is kept for the user

    def set_account_data(self, type: str, content: Answer, room: str | None = None) -> None:
        """Data of the user's clients, of one room if it is given."""
        position = "" if room is None else f"/rooms/{_quoted(room)}"
        self.request(WORKER, "PUT", f"{self._own()}{position}/account_data/{type}", content)

    def tag(self, room: str, tag: str, order: float | None = None) -> None:
        """Put a tag on a room, or move it; without an order, take it off."""
        path = f"{self._own()}/rooms/{_quoted(room)}/tags/{_quoted(tag)}"
        if order is None:
            self.request(WORKER, "DELETE", path)
        else:
            self.request(WORKER, "PUT", path, {"order": order})

    def set_push_rule(self, name: str, word: str | None) -> None:
        """Be told of this word; without it, no longer."""
        path = f"{CLIENT}/pushrules/global/content/{_quoted(name)}"
        at = self._writer("push_rules")
        if word is None:
            self.request(at, "DELETE", path)
        else:
            self.request(at, "PUT", path, {"pattern": word, "actions": ["notify"]})

    def set_pusher(self, key: str, *, is_wanted: bool = True) -> None:
        """Register a pusher, which nothing is ever pushed to, or take it back."""
        body: Answer = {"app_id": "test.app", "pushkey": key, "kind": "http" if is_wanted else None}
        if is_wanted:
            body |= {
                "app_display_name": "Test",
                "device_display_name": "Test",
                "lang": "en",
                "data": {"url": "http://127.0.0.1/_matrix/push/v1/notify"},
            }
        self.request(MAIN, "POST", f"{CLIENT}/pushers/set", body)

    def set_display_name(self, name: str, at: str = WORKER) -> None:
        """Be called this, in every room."""
        path = f"{CLIENT}/profile/{_quoted(self.user)}/displayname"
        self.request(at, "PUT", path, {"displayname": name})

    def subscribe(self, room: str, thread: str, *, is_wanted: bool = True, at: str | None = None) -> None:
        """Follow a thread, or no longer."""
        position = "/_matrix/client/unstable/io.element.msc4306/rooms"
        path = f"{position}/{_quoted(room)}/thread/{_quoted(thread)}/subscription"
        at = at or self._writer("thread_subscriptions")
        if is_wanted:
            self.request(at, "PUT", path, {})
        else:
            self.request(at, "DELETE", path)

    # Devices

    def name_device(self, name: str, at: str | None = None) -> None:
        """What the user calls this device."""
        at = at or self._writer("device_lists")
        self.request(at, "PUT", f"{CLIENT}/devices/{_quoted(self.device)}", {"display_name": name})

    def upload_keys(self, at: str | None = None) -> None:
        """New keys of this device. Nobody checks the signature but those who would write to it."""
        key = f"{next(self._numbers):043d}"
        keys = {
            "user_id": self.user,
            "device_id": self.device,
            "algorithms": ["m.olm.v1.curve25519-aes-sha2"],
            "keys": {f"curve25519:{self.device}": key, f"ed25519:{self.device}": key},
            "signatures": {self.user: {f"ed25519:{self.device}": "none"}},
        }
        at = at or self._writer("device_lists")
        self.request(at, "POST", f"{CLIENT}/keys/upload", {"device_keys": keys})

    def send_to_devices(self, users: Iterable[str], content: Answer) -> None:
        """A message to every device of these users."""
        path = f"{CLIENT}/sendToDevice/test.message/{self._transaction()}"
        body = {"messages": {user: {"*": content} for user in users}}
        self.request(self._writer("to_device"), "PUT", path, body)

    # Media, and what only administrators may do

    def upload(self, content: bytes, at: str | None = None) -> str:
        """A file: its id."""
        at = at or self._homeserver.media
        said = self._ask(at, "POST", "/_matrix/media/v3/upload?filename=test.txt", content, "text/plain")
        media: str = said["content_uri"].rpartition("/")[2]
        return media

    def quarantine(self, media: str, *, is_wanted: bool = True, at: str | None = None) -> None:
        """Hide a file of this homeserver from everybody, or show it again."""
        at = at or self._homeserver.media
        verb = "quarantine" if is_wanted else "unquarantine"
        server = self.user.partition(":")[2]
        self.request(at, "POST", f"{ADMIN}/media/{verb}/{_quoted(server)}/{_quoted(media)}", {})

    def delete_room(self, room: str) -> None:
        """Put everybody out, and forget that it ever was; returns when it is done."""
        path = f"/_synapse/admin/v2/rooms/{_quoted(room)}"
        task = self.request(MAIN, "DELETE", path, {"purge": True})["delete_id"]
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            said = self.request(MAIN, "GET", f"/_synapse/admin/v2/rooms/delete_status/{task}")
            if said["status"] == "complete":
                return
            assert said["status"] != "failed", said
            assert time.monotonic() < until, said
            time.sleep(STEP_SECONDS)

    # Requests

    def request(self, at: str, method: str, path: str, body: Answer | None = None) -> Answer:
        """What this process answers. Raises Refused."""
        encoded = None if body is None else json.dumps(body).encode()
        return self._ask(at, method, path, encoded, "application/json")

    def _ask(self, at: str, method: str, path: str, body: bytes | None, content_type: str) -> Answer:
        headers = {"Content-Type": content_type}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._urls[at] + path, body, headers, method=method)
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                    said: Answer = json.load(answer)
                    return said
            except urllib.error.HTTPError as error:
                text = error.read().decode(errors="replace")
                if error.code < 500 or time.monotonic() > until:
                    raise Refused(f"{method} {path} at {at}", error.code, text) from error
            except OSError:
                if time.monotonic() > until:
                    raise
            time.sleep(STEP_SECONDS)

    def _event(self, at: str, path: str, content: Answer) -> str:
        event: str = self.request(at, "PUT", path, content)["event_id"]
        return event

    def _writer(self, stream: str) -> str:
        return self._homeserver.writers_of(stream)[0]

    def _own(self) -> str:
        return f"{CLIENT}/user/{_quoted(self.user)}"

    def _transaction(self) -> str:
        return f"{self.device}-{next(self._numbers)}"


def _quoted(word: str) -> str:
    return urllib.parse.quote(word, safe="")
