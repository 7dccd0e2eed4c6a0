"""How a model reads a corpus once for several questions: windows, batches, collectors, examples."""
