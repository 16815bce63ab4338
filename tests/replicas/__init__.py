"""Tests of the room of replicas."""
