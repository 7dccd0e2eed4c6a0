"""What each `interp` command takes and does; `analyses.cli.app` puts them together."""

COLUMNS = 80  # of a terminal
