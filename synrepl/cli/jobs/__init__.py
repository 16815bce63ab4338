"""The jobs of ``synrepl pipeline``, a module for each."""
