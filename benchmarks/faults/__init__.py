"""What becomes of damaged files, kills, full disks and writers at once? `python -m benchmarks.faults` counts."""
