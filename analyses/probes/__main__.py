"""`python -m analyses.probes`: the command `interp probes`, with the same options."""

from analyses.cli import run_alone

run_alone("probes")
