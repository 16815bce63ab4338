"""Signed requests between daemons: each side proves to the other that it knows a secret, and sends none.

A secret sent as ``Authorization: Bearer`` belongs to whoever listens at the address, and a daemon learns
addresses from its peers. A signature is worth nothing to a listener: it is valid for one request, to one
daemon, for some seconds. The exchange is that of RFC 9110::

    GET /v1/replication          401  WWW-Authenticate: Bearer, Synrepl nonce="N"
    Authorization: Synrepl

    POST /v1/claim               200  Synrepl-Proof: P2
    Authorization: Synrepl nonce="N", cnonce="C", asker="U", address="A", proof="P1"

P1 is a proof (`ports.proofs`) over the request and over both daemons: the asker's uuid, and the address as
the asker wrote it. The daemon refuses a signature for another address than its own, so that no peer can pass
on what it was asked. The address is empty if the asker's operator configured it; it may be that of a proxy.
P2 is a proof over P1 and the answer.

With a secret that both know, these are HMACs with it. The holder of an issued key names it in its first
request (``Synrepl key="K"``), is answered with the salt of the key, and signs with both names, ``key`` and
``salt`` left out. A daemon that has only the record of the asked daemon's key signs with ``key`` and
``salt``: that proves to the holder that it asks a daemon of its own log, and no more.
"""

import hmac
import re
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final, Self
from urllib.parse import quote, unquote

import msgspec

from synrepl.ports.proofs import IProofs, KeyRecord, RecordProofs, own_proofs, split_issued
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
_challenge: Final = re.compile(rf'\b{SCHEME} nonce="([^"]*)"(?:, salt="([0-9a-f]*)")?', re.ASCII)


class SignedContent(msgspec.Struct, frozen=True):
    """What a request says: `target` is its path with the query, `digest` the Content-Digest of its body."""

    method: str
    target: str
    digest: str


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """The signature of a request. `nonce` is that of the answering daemon, `cnonce` the asker's.

    `key` is the issued key, quoted, with which it was signed; empty: with another secret. With `salt`, by a
    daemon that has its record; else by its holder.
    """

    nonce: str
    cnonce: str
    asker: str
    address: str
    key: str = ""
    salt: str = ""
    proof: str = ""

    @classmethod
    def sign(
        cls,
        proofs: IProofs,
        content: SignedContent,
        *,
        nonce_: str,
        asker: str,
        address: str,
        key: str = "",
        salt: str = "",
    ) -> Self:
        """Sign a request to the daemon at `address` (empty: our operator configured it)."""
        unsigned = cls(
            nonce=nonce_,
            cnonce=nonce(),
            asker=asker,
            address=quoted(address),
            key=_quoted_name(key),
            salt=salt,
        )
        shown = proofs.prove(REQUEST_PROOF, *unsigned._texts(content)).hex()
        return msgspec.structs.replace(unsigned, proof=shown)

    def is_signed_with(self, proofs: IProofs, content: SignedContent) -> bool:
        """Whether this is the signature of this request by the other side. Runs in constant time."""
        return _is_proof(proofs, self.proof, REQUEST_PROOF, self._texts(content))

    def _texts(self, content: SignedContent) -> list[bytes]:
        said = (content.method, content.target, content.digest)
        return [text.encode() for text in (*said, self.nonce, self.cnonce, self.asker, self.address)]

    def answer_proof(self, proofs: IProofs, status: int, body: bytes) -> str:
        """Return the proof of the answering daemon, for this status and body."""
        return proofs.prove(ANSWER_PROOF, *self._answer_texts(status, body)).hex()

    def is_answer_proof(self, shown: str, proofs: IProofs, status: int, body: bytes) -> bool:
        """Whether this is the proof of the answering daemon. Runs in constant time."""
        return _is_proof(proofs, shown, ANSWER_PROOF, self._answer_texts(status, body))

    def _answer_texts(self, status: int, body: bytes) -> list[bytes]:
        return [self.proof.encode(), str(status).encode(), sha256(body).hexdigest().encode()]

    @property
    def header(self) -> str:
        """The value of the header Authorization."""
        fields = msgspec.structs.asdict(self).items()
        shown = (f'{name}="{value}"' for name, value in fields if value or name not in ("key", "salt"))
        return f"{SCHEME} {', '.join(shown)}"

    @classmethod
    def parse(cls, header: str) -> Self | None:
        """Parse the value of Authorization; None if it has no signature."""
        fields = dict(_parameter.findall(header))
        try:
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError:
            return None


class SignedRequest(msgspec.Struct, frozen=True):
    """A request whose signature was verified, with what proves the answer."""

    signature: Signature
    proofs: IProofs

    def answer_proof(self, status: int, body: bytes) -> str:
        """Return the proof for this answer."""
        return self.signature.answer_proof(self.proofs, status, body)


class Signer(msgspec.Struct, frozen=True):
    """What a daemon signs requests with: its own secret, or the record of the asked daemon's issued key."""

    secret: str = ""
    key: str = ""
    record: KeyRecord | None = None

    def __repr__(self) -> str:
        return f"<Signer {self.key}>"

    @classmethod
    def of(cls, secret: str) -> Self:
        """Sign with a secret, which may be an issued key."""
        return cls(secret=secret, key=split_issued(secret)[0])

    @property
    def question(self) -> str:
        """The value of the header Authorization that asks for a nonce."""
        is_holder = self.key and self.record is None
        return f'{SCHEME} key="{_quoted_name(self.key)}"' if is_holder else SCHEME

    def sign(
        self, content: SignedContent, challenge: "SignatureChallenge", *, asker: str, address: str
    ) -> SignedRequest:
        """Sign a request for a daemon that sent this challenge. Raises `ValueError` for a bad salt."""
        key, salt, proofs = "", "", own_proofs(self.secret, challenge.salt)
        if self.record is not None:
            key, salt, proofs = self.key, self.record.salt, RecordProofs(self.record)
        elif challenge.salt:
            key = self.key
        signature = Signature.sign(
            proofs, content, nonce_=challenge.nonce, asker=asker, address=address, key=key, salt=salt
        )
        return SignedRequest(signature, proofs)


def quoted(address: str) -> str:
    """Return an address as ASCII without quotation marks, for a header."""
    return quote(address.rstrip("/"), safe=_URL_CHARACTERS)


class SignatureChallenge(msgspec.Struct, frozen=True):
    """What a signature must contain: a nonce, and the salt of the asker's issued key (empty without one)."""

    nonce: str
    salt: str = ""

    @property
    def header(self) -> str:
        """The value of WWW-Authenticate that asks for a signature."""
        salt = f', salt="{self.salt}"' if self.salt else ""
        return f'{SCHEME} nonce="{self.nonce}"{salt}'

    @classmethod
    def find(cls, values: list[str] | None) -> Self | None:
        """Find the challenge in values of WWW-Authenticate; None if they ask for no signature."""
        found = _challenge.search(", ".join(values or ()))
        return None if found is None else cls(found[1], found[2] or "")


def named_key(header: str) -> str:
    """Return the issued key that the value of an Authorization names; empty without one."""
    return unquote(dict(_parameter.findall(header)).get("key", ""))


def _quoted_name(name: str) -> str:
    return quote(name, safe="")


def _is_proof(proofs: IProofs, shown: str, label: str, texts: list[bytes]) -> bool:
    try:
        return proofs.is_proof(bytes.fromhex(shown), label, *texts)
    except ValueError:
        return False


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
