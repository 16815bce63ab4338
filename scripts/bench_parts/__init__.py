"""The benchmarks of `scripts/bench.py`: a module for each kind of work."""
