"""Deprecated name of what `interp.model` holds."""

from interp.model import matching, sites, sites_of

__all__ = ["matching", "sites", "sites_of"]
