"""How is text written, a token at a time? `generate` writes, `sampling` chooses, `while_writing` edits and captures."""
