"""Every cell of a site patched, exactly: `sweep`, and the plain way beside it, `sweep_by_forward`."""
