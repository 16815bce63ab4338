"""What the releases of Synapse mean by their aliases, a file each."""
