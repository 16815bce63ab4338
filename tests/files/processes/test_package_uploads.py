"""Packages uploaded at a replica while the primary is killed: a row, a name and an archive in one append."""

import hashlib
import random
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from tests.processes.loading import Asker, Refused, Unanswered, report, size
from tests.processes.replicas import Cluster, Member

KILLS = size(4, 50)
PACKAGES: dict[str, Any] = {
    "name": "packages",
    "key": ["name"],
    "columns": {"name": "str", "archive": "file"},
}


class Upload(threading.Thread):
    """Puts an archive and appends its row and its name, at this member.

    Without an answer, once more with the same key.
    """

    def __init__(self, member: Member, number: int) -> None:
        super().__init__(daemon=True)
        self.name = f"package{number}"
        self.data = f"archive of {number} ".encode() * 20_000
        self.sha256 = hashlib.sha256(self.data).hexdigest()
        self.is_answered = False
        self._member = member
        row = [self.name, {"sha256": self.sha256, "size": len(self.data)}]
        named = ["create", f"archives/{self.name}", self.sha256, len(self.data)]
        self._body = msgspec.json.encode(
            {
                "appends": [
                    {"stream": "packages", "facts": [[row]]},
                    {"stream": "files", "facts": [[named]]},
                ],
                "atomic": True,
                "idempotency_key": self.name,
            }
        )

    def run(self) -> None:
        for _ in range(2):
            try:
                with Asker(self._member.url) as asker:
                    asker.ask("PUT", f"/v1/files/sha256/{self.sha256}", self.data)
                    asker.ask("POST", "/v1/facts?files=here&timeout=5", self._body)
            except (Unanswered, Refused):
                time.sleep(0.05)
            else:
                self.is_answered = True
                return

    def found(self, member: Member) -> tuple[bool, bool, bool]:
        """Whether the member has the row, the name of the archive, and the bytes to which they refer.

        Bytes to which no row refers are nobody's; they are deleted after a day.
        """
        rows: dict[str, list[Any]] = {"packages": [], "files": []}
        for fact in member.facts():
            if fact.stream in rows:
                rows[fact.stream] += msgspec.json.decode(fact.rows)
        with Asker(member.url) as asker:
            try:
                has_file = asker.ask("GET", f"/v1/files/sha256/{self.sha256}?wait=5") == self.data
            except Refused:
                has_file = False
        has_row = self.name in [row[0] for row in rows["packages"]]
        has_name = f"archives/{self.name}" in [row[1] for row in rows["files"]]
        return has_row, has_name, has_file and (has_row or has_name)


def test_a_package_has_its_row_and_its_archive_or_neither_everywhere(tmp_path: Path) -> None:
    """At the primary, at the replica, and at a replica of that; what was answered is there."""
    chance = random.Random(7)
    uploads: list[Upload] = []
    with Cluster(tmp_path) as cluster:
        primary = cluster.add("n0")
        replica = cluster.add("n1", upstream=primary.front)
        cluster.add("n2", upstream=replica.front)
        primary.ask("POST", "/v1/streams", PACKAGES)
        cluster.wait_until_same()
        for number in range(KILLS):
            upload = Upload(replica, number)
            uploads.append(upload)
            upload.start()
            threading.Event().wait(chance.random() * 0.15)
            primary.kill()
            primary.start()
            upload.join(60)
            assert not upload.is_alive()
        cluster.wait_until_same()
        for upload in uploads:
            found = {upload.found(member) for member in cluster.members.values()}
            assert found in ({(True, True, True)}, {(False, False, False)}), (upload.name, found)
            assert not upload.is_answered or found == {(True, True, True)}
        answered = sum(upload.is_answered for upload in uploads)
        kept = sum(upload.found(primary)[0] for upload in uploads)
    report(f"{KILLS} kills during uploads: {kept} packages whole everywhere, {answered} answered, 0 in part")
