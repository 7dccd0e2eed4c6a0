"""Linguists' test suites: reading them, scoring sentences, and what a model knows of a contrast."""
