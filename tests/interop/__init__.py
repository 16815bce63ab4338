"""synrepl against real Synapse releases. Run by scripts/interop; see README.md here."""
