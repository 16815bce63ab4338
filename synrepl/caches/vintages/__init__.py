"""The vintages of Synapse releases, one file each."""
