"""How is text written, a token at a time? `generate` writes, `written` edits and captures on the way."""
