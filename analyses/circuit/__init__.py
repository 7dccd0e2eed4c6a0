"""Circuits of a model, as others write them and as a person asks for them."""
