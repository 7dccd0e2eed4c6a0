"""Words, numbers and heads as readers see them."""
