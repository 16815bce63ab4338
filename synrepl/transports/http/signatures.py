"""Signed requests between daemons: each side proves to the other that it knows a secret, and sends none.

A secret sent as ``Authorization: Bearer`` belongs to whoever listens at the address, and a daemon learns
addresses from its peers. A signature is worth nothing to a listener: it is valid for one request, to one
daemon, for some seconds. The exchange is that of RFC 9110::

    GET /v1/replication          401  WWW-Authenticate: Bearer, Synrepl nonce="N"
    Authorization: Synrepl

    POST /v1/claim               200  Synrepl-Proof: P2
    Authorization: Synrepl nonce="N", cnonce="C", asker="U", address="A", proof="P1"

P1 is an HMAC with the secret over the request and over both daemons: the asker's uuid, and the address as
the asker wrote it. The daemon refuses a signature for another address than its own, so that no peer can pass
on what it was asked. The address is empty if the asker's operator configured it; it may be that of a proxy.
P2 is an HMAC over P1 and the answer.
"""

import hmac
import re
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final, Self
from urllib.parse import quote

import msgspec

from synrepl.ports.access import prove
from synrepl.replication.relay.handshake import nonce

SCHEME: Final = "Synrepl"
PROOF_HEADER: Final = "synrepl-proof"
REQUEST_PROOF: Final = "synrepl request"
ANSWER_PROOF: Final = "synrepl answer"

NONCE_SECONDS: Final = 10.0
"""How long a nonce of a daemon is valid."""

MAX_SPENT: Final = 10_000
"""How many nonces may be spent in `NONCE_SECONDS`. Only signed requests of known peers spend any."""

_URL_CHARACTERS: Final = "!#$%&'()*+,/:;=?@[]~"
_parameter: Final = re.compile(r'(\w+)="([^"]*)"', re.ASCII)
_challenge: Final = re.compile(rf'\b{SCHEME} nonce="([^"]*)"', re.ASCII)


class SignedContent(msgspec.Struct, frozen=True):
    """What a request says: `target` is its path with the query, `digest` the Content-Digest of its body."""

    method: str
    target: str
    digest: str


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """The signature of a request. `nonce` is that of the answering daemon, `cnonce` the asker's."""

    nonce: str
    cnonce: str
    asker: str
    address: str
    proof: str = ""

    @classmethod
    def sign(cls, secret: str, content: SignedContent, *, nonce_: str, asker: str, address: str) -> Self:
        """Sign a request to the daemon at `address` (empty: our operator configured it)."""
        unsigned = cls(nonce=nonce_, cnonce=nonce(), asker=asker, address=quoted(address))
        return msgspec.structs.replace(unsigned, proof=unsigned._prove(secret, content))

    def is_signed_with(self, secret: str, content: SignedContent) -> bool:
        """Whether this is the signature of this request with this secret. Runs in constant time."""
        return hmac.compare_digest(self.proof.encode(), self._prove(secret, content).encode())

    def _prove(self, secret: str, content: SignedContent) -> str:
        said = (content.method, content.target, content.digest)
        texts = (*said, self.nonce, self.cnonce, self.asker, self.address)
        return prove(secret, REQUEST_PROOF, *(text.encode() for text in texts)).hex()

    def answer_proof(self, secret: str, status: int, body: bytes) -> str:
        """Return the proof of the answering daemon, for this status and body."""
        texts = (self.proof, str(status), sha256(body).hexdigest())
        return prove(secret, ANSWER_PROOF, *(text.encode() for text in texts)).hex()

    @property
    def header(self) -> str:
        """The value of the header Authorization."""
        fields = msgspec.structs.asdict(self)
        return f"{SCHEME} " + ", ".join(f'{name}="{value}"' for name, value in fields.items())

    @classmethod
    def parse(cls, header: str) -> Self | None:
        """Parse the value of Authorization; None if it has no signature."""
        fields = dict(_parameter.findall(header))
        try:
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError:
            return None


class SignedRequest(msgspec.Struct, frozen=True):
    """A request whose signature was verified, with the secret that signed it."""

    signature: Signature
    secret: str

    def answer_proof(self, status: int, body: bytes) -> str:
        """Return the proof for this answer."""
        return self.signature.answer_proof(self.secret, status, body)


def quoted(address: str) -> str:
    """Return an address as ASCII without quotation marks, for a header."""
    return quote(address.rstrip("/"), safe=_URL_CHARACTERS)


def challenge(nonce: str) -> str:
    """Return the value of WWW-Authenticate that asks for a signature."""
    return f'{SCHEME} nonce="{nonce}"'


def find_nonce(values: list[str] | None) -> str | None:
    """Find the nonce in values of WWW-Authenticate; None if they ask for no signature."""
    found = _challenge.search(", ".join(values or ()))
    return None if found is None else found[1]


class Nonces:
    """Makes nonces that are valid once, for `NONCE_SECONDS`.

    A nonce carries its own time and a proof that it was made here: those that nobody uses take no memory, so
    that peers without a key cannot crowd out others. `seconds` is a monotonic clock: the time of day jumps.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._key = secrets.token_bytes(32)
        self._spent: dict[str, float] = {}

    def make(self) -> str:
        """Return a new nonce."""
        text = f"{round((self._seconds() + NONCE_SECONDS) * 1000):x}.{nonce()}"
        return f"{text}.{self._mac(text)}"

    def spend(self, nonce: str) -> str:
        """Spend a nonce; return why it is not valid, or an empty text if it was."""
        text, _, mac = nonce.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(text).encode()):
            return "the nonce is not of this daemon, or from before its start"
        now, until = self._seconds(), int(text.partition(".")[0], 16) / 1000
        for old in [old for old, ends in self._spent.items() if ends <= now]:
            del self._spent[old]
        if until <= now:
            return f"the nonce is older than {NONCE_SECONDS:g} seconds"
        if nonce in self._spent:
            return "the nonce was used before"
        if len(self._spent) >= MAX_SPENT:
            return f"more than {MAX_SPENT} requests were signed in {NONCE_SECONDS:g} seconds"
        self._spent[nonce] = until
        return ""

    def _mac(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), "sha256").hexdigest()
