"""Where the parts meet: interfaces, metrics, owned coroutines."""
