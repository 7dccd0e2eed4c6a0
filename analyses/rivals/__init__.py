"""The simplest rules that a head may follow instead: which word each names, and whether a head does more."""
