"""The jobs of ``synrepl pipeline``, one module per job."""
