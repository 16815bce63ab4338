"""What it means that Python does not find a module: by the module, what needs it, and where it comes from."""

import re
from typing import Final

from synrepl.wire.text import printable

_NAMED: Final = re.compile(r"No module named ['\"]?(?P<name>[\w.]{1,100})", re.ASCII)

_EXTRAS: Final = {
    "txredisapi": "redis",
    "hiredis": "redis",
    "psycopg2": "postgres",
    "authlib": "oidc",
    "jwt": "jwt",
    "ldap_auth_provider": "matrix-synapse-ldap3",
    "saml2": "saml2",
    "lxml": "url-preview",
    "sentry_sdk": "sentry",
    "opentracing": "opentracing",
    "jaeger_client": "opentracing",
    "icu": "user-search",
    "pympler": "cache-memory",
    "systemd": "systemd",
}
"""Modules that Synapse needs for a part of its options, and the extra that brings them."""

_TOLD: Final = {
    "synapse.synapse_rust": (
        "Synapse was installed without its compiled part (Rust, needed since 1.68).",
        (
            "install a wheel (pip install --only-binary matrix-synapse matrix-synapse), Synapse's package or"
            " image; from source: install Rust, then pip install . again, at each update too"
        ),
    ),
    "synapse": (
        "The Python that was started has no Synapse.",
        (
            "start that of Synapse's virtual environment. After an upgrade of the system its Python is"
            " another, and what was installed for the one before is not found: make the environment anew, and"
            " install Synapse with its extras and modules"
        ),
    ),
    "systemd": (
        "The log configuration has a handler for systemd's journal, and its Python package is not installed.",
        (
            "pip install 'matrix-synapse[systemd]', or take systemd.journal.JournalHandler out of the log"
            " configuration"
        ),
    ),
}
"""Modules of which more is to be said."""


def told_of_module(text: str) -> tuple[list[str], list[str]] | None:
    """Return what is said of a module that is missing, and what to do; None if nothing is known of it."""
    found = _NAMED.search(text)
    if found is None:
        return None
    name = found["name"].rstrip(".")
    top = name.partition(".")[0]
    if told := _TOLD.get(name) or (_TOLD["systemd"] if top == "systemd" else None):
        return [told[0]], [told[1]]
    if (extra := _EXTRAS.get(top)) is not None:
        words = f"The Python module {printable(top)} is not installed, which an option of Synapse needs."
        return [words], [
            f"install it into Synapse's environment, for each process: pip install 'matrix-synapse[{extra}]'"
        ]
    if name.startswith("synapse."):
        words = (
            f"This release of Synapse has no module {printable(name)}: it was moved or removed, or was"
            " never a kind of worker."
        )
        return [words], [
            (
                "worker_app: synapse.app.generic_worker is right for all workers; a module of others must fit"
                " the release: update it"
            )
        ]
    return None
