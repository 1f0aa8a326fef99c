"""How worker processes are connected where they cannot share an arena (macOS, Windows)."""
