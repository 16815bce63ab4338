"""The contract of the HTTP API: its routes as values, for the server, its clients, the manual and OpenAPI.

It imports neither Twisted nor msgspec, so that every client can use it.
"""
