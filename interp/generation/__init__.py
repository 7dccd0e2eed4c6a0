"""Writing text, a token at a time: `generate` writes, `written` edits and captures along the way."""
