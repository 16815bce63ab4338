"""The upstream's side of replicas: admission, leases and the relays that send them the log.

`relay` is imported on use, with what only it needs: most daemons have no replicas.
"""
