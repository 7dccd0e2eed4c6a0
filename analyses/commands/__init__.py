"""What each `interp` command takes and does; `analyses.cli` puts them together."""
