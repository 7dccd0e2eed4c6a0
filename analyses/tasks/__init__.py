"""Minimal pairs that ask one question of a model, and the share of the answer that each head carries."""
