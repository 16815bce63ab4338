"""Changes of push rules."""

from synrepl.streams.stream import Stream, row

__all__ = ["PUSH_RULES", "PushRules"]


@row
class PushRules:
    """The push rules of a user changed."""

    user_id: str


PUSH_RULES = Stream("push_rules", PushRules, key="user_id", any_writer=True)
