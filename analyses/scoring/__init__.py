"""One scorer: what heads and the simplest rules choose, and whether a head does more than a rule."""
