"""A homeserver's tables whose ids come from sequences: their layout, positions, writers and problems."""
