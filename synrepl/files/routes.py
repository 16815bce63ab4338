"""The routes of files."""

from typing import Final

from synrepl.http_api.route import Parameter, Route, Seconds, Text, WholeNumber
from synrepl.http_api.routes import (
    COPY_ERRORS,
    MAX_WAIT,
    OCTETS,
    READ_YOUR_WRITES,
    refused_example,
)

NAME_HEADER: Final = "Synrepl-Name"
"""The name of the file in an answer, percent-encoded: a proxy may have made another name of the request's."""

_FILE: Final = ("no_such_file", "file_not_here", "range_not_satisfiable", "not_ready", "filtered")

PUT_FILE: Final = Route(
    "file.put",
    "PUT",
    "/v1/files/sha256/{sha256}",
    "Store a file under its checksum.",
    query=(Parameter("hops", WholeNumber(0), "how many daemons have forwarded the file"),),
    right="write",
    stream="files",
    errors=(
        *("bad_checksum", "checksum_mismatch", "too_large", "disk_full"),
        *("upstream_away", "upstream_refused", "upstream_unreachable", "fenced", "stopped"),
    ),
)
GET_FILE: Final = Route(
    "file.get",
    "GET",
    "/v1/files/sha256/{sha256}",
    "Read a file, or a range of it, by its checksum.",
    query=(
        Parameter("wait", Seconds(10.0, highest=MAX_WAIT), "at a replica: how long to wait for the bytes"),
    ),
    content_type=OCTETS,
    stream="files",
    errors=("bad_checksum", *_FILE),
    examples=(
        refused_example(f"/v1/files/sha256/{'0' * 64}", "not_found", message="this daemon stores no files"),
    ),
)
GET_FILE_BY_NAME: Final = Route(
    "file.get_by_name",
    "GET",
    "/v1/files/by-name/{name:path}",
    "Read the file to which a name refers now, or a range of it; slashes of the name are those of the path.",
    query=(
        Parameter("wait", Seconds(10.0, highest=MAX_WAIT), "at a replica: how long to wait for the bytes"),
        *READ_YOUR_WRITES,
    ),
    content_type=OCTETS,
    stream="files",
    errors=(*_FILE, *COPY_ERRORS),
    examples=(refused_example("/v1/files/by-name/media/hello.txt", "not_found", message=...),),
)
LIST_FILES: Final = Route(
    "file.list_names",
    "GET",
    "/v1/files",
    "List names of files, in order, each with its file.",
    query=(
        Parameter("prefix", Text(), "only names that begin with this text"),
        Parameter("after", Text(), "only names after this one: the last name of the page before"),
        Parameter("limit", WholeNumber(1_000, lowest=1, highest=10_000), "the maximum number of names"),
        *READ_YOUR_WRITES,
    ),
    stream="files",
    errors=("not_ready", "filtered", *COPY_ERRORS),
    examples=(refused_example("/v1/files?prefix=media/", "not_found", message=...),),
    answer={"files": [{"name": str, "sha256": str, "size": int, "serial": int}], "limited": bool},
)

ROUTES: Final = (PUT_FILE, GET_FILE, GET_FILE_BY_NAME, LIST_FILES)
