"""What each `interp` command takes and does; `analyses.cli.app` puts them together."""
