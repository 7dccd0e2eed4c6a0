"""Which set of parts is enough for a task? Nodes and edges kept alone, everything else as in a reference."""
