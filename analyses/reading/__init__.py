"""How does a model read a corpus once for several questions? In windows and batches; with examples to show."""
