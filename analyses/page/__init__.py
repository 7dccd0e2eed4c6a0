"""A page as data: blocks of text, tables and figures, and what keeps a page safe to open."""
