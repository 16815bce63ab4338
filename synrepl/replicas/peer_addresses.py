"""Which addresses of other daemons this one uses, and what it sends there."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from synrepl.base.access import Keyring
from synrepl.base.interfaces import IClock
from synrepl.base.problems import Problem
from synrepl.base.response_errors import NeverSent
from synrepl.http_api.route import public_url
from synrepl.key_rules import is_loopback_host
from synrepl.replication.addresses import Address
from synrepl.transports.credentials import Credentials, is_below
from synrepl.transports.endpoints import LOCAL_TYPES, host_of, split
from synrepl.wire.text import printable

TOLD_SECONDS: Final = 300.0
"""How long the status names an address that was not used, after it was last of use."""

MAX_TOLD: Final = 20
"""How many such addresses the status names at most; the oldest are dropped first."""

KIND: Final = "address_not_listed"
"""With this word begins the problem in the status that names these addresses."""


@dataclass(eq=False, repr=False)
class PeerAddresses:
    """Decides about addresses. Those in `--upstream` were chosen by an operator; others are told by peers.

    * An address in `configured` gets the key, as `credentials` allow it.
    * So does what a configured upstream tells of itself: its HTTP address, at the same host, and over TLS if
      the upstream is. `notes` are those of the log at the start, with what was `learned` before.
    * Any other address gets no key. It is used with the certificate of this daemon, over TLS that the
      configured CAs verify; or else not at all.

    A daemon without a secret and keys has none to lose, and uses every address.
    """

    configured: Sequence[Address]
    credentials: Credentials
    keys: Keyring
    clock: IClock
    _: KW_ONLY
    notes: Mapping[str, Any]

    def __post_init__(self) -> None:
        self._unused: dict[str, tuple[float, float]] = {}
        """Addresses that were not used: since when, and when last."""
        self._without_secret = self.credentials.without_secret()
        self._told = msgspec.json.decode(self.notes.get("told_http", "{}"), type=dict[str, str])

    def credentials_for(self, url: str, *, is_worth_telling: bool = True) -> Credentials:
        """Return the credentials for requests to this URL. Raises `NeverSent` if there may be none.

        If that `is_worth_telling`, the status says which address an operator must add.
        """
        if not self._is_guarded or self.is_listed(url):
            return self.credentials
        if url.startswith("https://") and self._has_certificate:
            return self._without_secret
        raise NeverSent(self._note(public_url(url), is_worth_telling=is_worth_telling))

    def secret_for(self, native: str) -> Credentials:
        """Return the credentials for a native connection to this endpoint. Raises `NeverSent`."""
        if not self._is_guarded or self._has_native(native):
            return self.credentials
        kind, words, named = split(native)
        # Nothing but host and port: a peer must not choose whom this daemon trusts.
        if kind == "tls" and len(words) == 2 and not named and self._has_certificate:
            return self._without_secret
        raise NeverSent(self._note(native, is_worth_telling=True))

    def is_listed(self, url: str) -> bool:
        """Whether an operator chose this URL, or a configured upstream has told it of itself."""
        return any(is_below(url, one.http) for one in self.listed)

    @property
    def listed(self) -> list[Address]:
        """The daemons that an operator chose, with an HTTP address that is listed, or that they have told."""
        found = [
            Address(one.native, one.http.rstrip("/") or self._told.get(one.native, ""))
            for one in self.configured
        ]
        return [one for one in found if one.http]

    def first_usable(self, *urls: str, is_worth_telling: bool = True) -> str:
        """Return the first of these URLs that may be used; empty without one. Empty ones are passed over.

        If that `is_worth_telling`, the status says which address an operator must add.
        """
        known = [url for url in urls if url]
        for url in known:
            try:
                self.credentials_for(url, is_worth_telling=False)
            except NeverSent:
                continue
            return url
        for url in known[:1]:
            self._note(public_url(url), is_worth_telling=is_worth_telling)
        return ""

    @property
    def told(self) -> str:
        """What was learned, as a note of the log."""
        return msgspec.json.encode(self._told).decode() if self._told else ""

    def learned(self, upstream: Address, http: str) -> None:
        """Take up the HTTP address that a configured upstream has told of itself, if it may get the key."""
        http = http.rstrip("/")
        if http and self._has_native(upstream.native) and _is_of(upstream.native, http):
            self._told = {native: one for native, one in self._told.items() if self._has_native(native)}
            self._told[upstream.native] = http
            self._unused.pop(public_url(http), None)

    def problems(self) -> list[Problem]:
        """The addresses that were of use, and were not used."""
        oldest = self.clock.seconds() - TOLD_SECONDS
        self._unused = {one: times for one, times in self._unused.items() if times[1] >= oldest}
        if not self._unused:
            return []
        named = ", ".join(printable(one) for one in self._unused)
        why = f"{KIND}: peers told of {named}, which no operator has listed, so that no key is sent there"
        remedy = "add it to --upstream, or use TLS with certificates (manual: howto/replicas)"
        return [Problem(f"{why}: {remedy}", min(since for since, _ in self._unused.values()))]

    @property
    def _is_guarded(self) -> bool:
        return self.credentials.secret is not None or self.keys.is_required

    @property
    def _has_certificate(self) -> bool:
        files = self.credentials.files
        return files is not None and files.ca_file is not None and files.cert_file is not None

    def _has_native(self, native: str) -> bool:
        return bool(native) and any(native == one.native for one in self.configured)

    def _note(self, address: str, *, is_worth_telling: bool) -> str:
        if is_worth_telling:
            now = self.clock.seconds()
            since, _ = self._unused.pop(address, (now, now))
            self._unused[address] = (since, now)
            while len(self._unused) > MAX_TOLD:
                del self._unused[next(iter(self._unused))]
        return f"{printable(address)} was told by a peer, and is not in --upstream: add it there to use it"


def _is_of(native: str, http: str) -> bool:
    """Whether this URL is at the host of a native endpoint, and over TLS if that is."""
    kind, _, _ = split(native)
    parts = urlsplit(http)
    if kind == "tls" and parts.scheme != "https":
        return False
    theirs, ours = parts.hostname or "", "localhost" if kind in LOCAL_TYPES else host_of(native)
    return theirs.lower() == ours.lower() or (is_loopback_host(theirs) and is_loopback_host(ours))
