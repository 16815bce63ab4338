"""The primary's side of replicas: admission, leases and the relays that send them the log.

`relay` and `handshake` are imported when the first replica connects: most daemons have none.
"""
