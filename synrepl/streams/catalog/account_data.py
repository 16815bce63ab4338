"""Account data of users, global or for one room."""

from synrepl.streams.stream import Gone, Stream, row

__all__ = ["ACCOUNT_DATA", "AccountData"]


@row
class AccountData:
    """Account data changed; `room_id` is null for global data."""

    user_id: str
    room_id: str | None
    data_type: str


ACCOUNT_DATA = Stream(
    "account_data",
    AccountData,
    key=("user_id", "room_id", "data_type"),
    any_writer=True,
    gone=[Gone("data", after="data_type", until="1.7", default=None, kept=True)],
)
