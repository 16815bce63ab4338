"""Programs that use the RESP port as clients with their defaults do: PROGRAM PORT CHANNEL [PASSWORD].

Each prints one JSON object: what it was answered, and the message that it got of what it published.
"""
