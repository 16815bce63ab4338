"""The upstream's side of replicas: admission, leases and the relays that send them the log.

`relay` and `handshake` are imported on use: most daemons have no replicas.
"""
