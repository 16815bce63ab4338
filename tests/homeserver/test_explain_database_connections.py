"""What the system, PostgreSQL and PgBouncer say where a connection is made, refused or lost."""

import pytest

from synrepl.homeserver.explanation import Passage, explain

PSQL = "psql: error: "
AT = 'connection to server at "localhost" (127.0.0.1), port 6432 failed: '


def told(text: str) -> Passage:
    """Return the only passage of a text."""
    [passage] = explain(text).passages
    return passage


@pytest.mark.parametrize(
    ("text", "means", "do"),
    [
        # psycopg/psycopg2#356
        (
            "psycopg2.DatabaseError: SSL SYSCALL error: Operation timed out",
            "forgot the connection",
            "keepalives_idle",
        ),
        (
            "psycopg2.OperationalError: SSL SYSCALL error: Connection timed out",
            "no fault of the statement",
            "tcp_keepalives_idle",
        ),
        (
            "psycopg2.OperationalError: could not receive data from server: Connection timed out",
            "no answer",
            "keepalives_count",
        ),
        (
            "psycopg2.OperationalError: could not receive data from server: Connection reset by peer",
            "reset",
            "signal 9",
        ),
        (
            "psycopg.OperationalError: consuming input failed: SSL SYSCALL error: Connection reset by peer",
            "reset",
            "signal 9",
        ),
        ("psycopg2.OperationalError: SSL SYSCALL error: EOF detected", "without a word", "signal 9"),
        (
            "psycopg2.OperationalError: could not send data to server: Broken pipe",
            "ended before",
            "the first such line",
        ),
        ("psycopg2.OperationalError: SSL SYSCALL error: No route to host", "no way to", "ip route"),
        (
            "psycopg2.OperationalError: SSL SYSCALL error: Bad file descriptor",
            "in this process itself",
            "fork",
        ),
        (
            "could not receive data from server: Bad file descriptor",
            "in this process itself",
            "fork",
        ),
        ("could not receive data from server: Software caused connection abort", "cut", "log"),
    ],
)
def test_a_lost_connection_is_told_by_what_the_system_said(text: str, means: str, do: str) -> None:
    passage = told(text)

    assert (passage.kind, passage.severity) == ("db_lost", "look")
    assert means in passage.words[0]
    assert do in " | ".join(passage.advice)


def test_a_connection_used_by_two_processes_breaks_its_tls() -> None:
    passage = told("psycopg2.OperationalError: SSL error: decryption failed or bad record mac")

    assert passage.kind == "db_tls_broken"
    assert "forked" in passage.words[0]


@pytest.mark.parametrize(
    ("text", "means", "do"),
    [
        (f"{PSQL}{AT}Connection refused", "nothing listens", "listen_addresses"),
        (f"{PSQL}{AT}Connection timed out", "no answer", "firewall"),
        (f"{PSQL}{AT}timeout expired", "no answer", "firewall"),
        (f"{PSQL}{AT}No route to host", "no way to", "ip route"),
        ("could not connect to server: Operation timed out", "no answer", "firewall"),
        (
            (
                'connection to server on socket "/var/run/postgresql/.s.PGSQL.5432" failed: No such file or'
                " directory"
            ),
            "no socket",
            "unix_socket_directories",
        ),
        (
            'connection to server on socket "/run/postgresql/.s.PGSQL.5432" failed: Permission denied',
            "may not use",
            "rights",
        ),
    ],
)
def test_a_server_that_was_not_reached_is_told_by_what_the_system_said(
    text: str, means: str, do: str
) -> None:
    passage = told(text)

    assert passage.kind == "db_unreachable"
    assert means in passage.words[0]
    assert do in " | ".join(passage.advice)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{PSQL}{AT}FATAL:  unsupported startup parameter: x", "db_pooler_parameter"),
        (f'psycopg2.OperationalError: {AT}FATAL:  database "a" does not exist', "db_password"),
        (f"{AT}server closed the connection unexpectedly", "db_lost"),
        ("could not connect to server: FATAL:  the database system is starting up", "db_starting"),
        (
            'connection to server on socket "/run/.s.PGSQL.6432" failed: FATAL:  no such database: synapse',
            "db_pooler_name",
        ),
        # Several addresses, one after the other.
        (
            (
                'psql: error: connection to server at "localhost" (::1), port 6432 failed: Connection refused'
                "\n\tIs the server running on that host and accepting TCP/IP connections?\n"
                f"{AT}FATAL:  unsupported startup parameter: x"
            ),
            "db_pooler_parameter",
        ),
        (
            (
                'psycopg2.OperationalError: connection to server at "db" (10.0.0.1), port 5432 failed: FATAL:'
                '  no pg_hba.conf entry for host "10.0.0.2", user "a", database "b", SSL encryption\n'
                'connection to server at "db" (10.0.0.1), port 5432 failed: FATAL:  no pg_hba.conf entry for'
                ' host "10.0.0.2", user "a", database "b", no encryption'
            ),
            "db_password",
        ),
    ],
)
def test_what_a_server_says_decides_and_not_the_address_before_it(text: str, kind: str) -> None:
    assert told(text).kind == kind


def test_a_refusal_that_is_not_known_is_no_server_that_was_not_reached() -> None:
    passage = told(f"{PSQL}{AT}FATAL:  the moon is full")

    assert passage.kind == "db_unreachable"
    assert "the moon is full" in passage.words[0]
    assert "answered" in passage.words[0]
    assert "listens" not in " ".join([*passage.words, *passage.advice])


def test_two_addresses_without_an_answer_are_one_failure() -> None:
    passage = told(
        'psycopg2.OperationalError: connection to server at "localhost" (::1), port 5432 failed: Connection'
        " refused\n\tIs the server running on that host and accepting TCP/IP connections?\n"
        'connection to server at "localhost" (127.0.0.1), port 5432 failed: Connection refused\n'
        "\tIs the server running on that host and accepting TCP/IP connections?\n"
    )

    assert passage.kind == "db_unreachable"


@pytest.mark.parametrize(
    "text",
    [
        # pgbouncer/pgbouncer#907
        "unsupported startup parameter in options: statement_timeout",
        "FATAL: unsupported startup parameter in options: statement_timeout",
        f"{PSQL}{AT}FATAL:  unsupported startup parameter in options: statement_timeout",
        "unsupported startup parameter: statement_timeout",
        (
            "2026-01-02 10:00:00.000 UTC [1] WARNING C-0x55: db/ada@10.0.0.1:46936 pooler error:"
            " unsupported startup parameter: statement_timeout"
        ),
    ],
)
def test_a_parameter_that_a_pooler_does_not_take_is_named(text: str) -> None:
    passage = told(text)
    said = " | ".join([*passage.words, *passage.advice])

    assert passage.kind == "db_pooler_parameter"
    assert "statement_timeout" in passage.words[0]
    assert "ignore_startup_parameters = extra_float_digits, statement_timeout" in said
    assert "is not set" in said
    assert "ALTER ROLE" in said
    assert ("1.20.0" in said) == ("in options" in text)
    assert "pool_mode" not in said


@pytest.mark.parametrize(
    "text",
    [
        "WARNING C-0x55: synapse/ada@10.0.0.1:46936 pooler error: auth failed",
        "WARNING C-0x55: synapse/ada@10.0.0.1:46936 pooler error: no such user: ada",
        "FATAL:  no such user: ada",
        "FATAL:  password authentication failed",
        "psycopg2.OperationalError: FATAL:  SASL authentication failed",
    ],
)
def test_a_login_that_a_pooler_refused_is_told_as_its_own(text: str) -> None:
    passage = told(text)

    assert (passage.kind, passage.severity) == ("db_pooler_auth", "error")
    assert "userlist.txt" in passage.advice[0]
    assert "auth_query" in passage.advice[0]


def test_a_file_of_pgbouncer_is_told_where_it_is_read() -> None:
    passage = told("; a comment\n[databases]\nsynapse = host=db\n\n[pgbouncer]\npool_mode = session\n")

    assert passage.kind == "db_pooler_file"
    assert (
        "synrepl inspect --files --homeserver homeserver.yaml --homeserver pgbouncer.ini" in passage.advice[0]
    )


def test_a_line_of_a_container_named_pgbouncer_is_no_file_of_it() -> None:
    assert explain("[pgbouncer] something that is not known").passages == []


def test_an_address_behind_another_line_is_no_part_of_that() -> None:
    found = explain(f'FATAL:  password authentication failed for user "x"\n{AT}Connection refused')

    assert {one.kind for one in found.passages} == {"db_password", "db_unreachable"}
