"""Patches that travel along chosen paths alone: `path_patch`, and the plain way beside it, `path_patch_by_forward`."""
