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

_NEEDED: Final = {
    "attr": "attrs",
    "bcrypt": "bcrypt",
    "bleach": "bleach",
    "canonicaljson": "canonicaljson",
    "cryptography": "cryptography",
    "frozendict": "frozendict",
    "idna": "idna",
    "ijson": "ijson",
    "immutabledict": "immutabledict",
    "jinja2": "jinja2",
    "jsonschema": "jsonschema",
    "matrix_common": "matrix_common",
    "msgpack": "msgpack",
    "nacl": "pynacl",
    "netaddr": "netaddr",
    "OpenSSL": "pyopenssl",
    "packaging": "packaging",
    "phonenumbers": "phonenumbers",
    "PIL": "Pillow",
    "prometheus_client": "prometheus_client",
    "pyasn1": "pyasn1",
    "pydantic": "pydantic",
    "pymacaroons": "pymacaroons",
    "service_identity": "service_identity",
    "signedjson": "signedjson",
    "sortedcontainers": "sortedcontainers",
    "treq": "treq",
    "twisted": "Twisted",
    "typing_extensions": "typing_extensions",
    "unpaddedbase64": "unpaddedbase64",
    "yaml": "PyYAML",
}
"""Packages that Synapse itself needs, by the name of their module, as pip has them."""

_ALWAYS: Final = frozenset(("synapse.app", "synapse.app.homeserver", "synapse.app.generic_worker"))
"""Modules that each release since 1.11 has."""
_WHOLE: Final = re.compile(r"[A-Za-z_][\w.]{0,99}", re.ASCII)

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
            " install Synapse with its extras and modules. Of an image it was built wrong: pull it again, or"
            " start the release of before"
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
    if (package := _NEEDED.get(top)) is not None:
        words = (
            f"The Python package {printable(top)} is not installed, which each process of Synapse needs: the"
            " installation is not whole, or another Python was started than that of Synapse."
        )
        return [words], [
            (
                "see that the right Python is started, and install what is missing into it: pip install"
                f" {package}; then pip check. After an upgrade of the system make the environment anew"
            )
        ]
    if name in _ALWAYS:
        words = (
            f"What was started has a part of Synapse alone, and no {name}: an image or a package that was"
            " built wrong, or a folder named synapse before Synapse itself in Python's path."
        )
        return [words], [
            (
                "of an image: pull it again, or start the release of before (the images of Synapse itself are"
                " matrixdotorg/synapse and ghcr.io/element-hq/synapse). Else start in another folder, or"
                " install Synapse again, as a whole"
            )
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
    if not _WHOLE.fullmatch(name):
        return None
    words = (
        f"The Python module {name} is not installed for this process, or is too old to have it: a module of"
        " modules: in the configuration, or what such a module or a package needs."
    )
    return [words], [
        (
            "install it into the Python environment of each process, workers too (in a container: into the"
            " image; an update of the image drops it), or take it out of the configuration. What asks for it"
            " stands in the traceback"
        )
    ]
