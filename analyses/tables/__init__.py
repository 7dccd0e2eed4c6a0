"""Tables of heads: their rows, their columns, and which rows are findings."""
