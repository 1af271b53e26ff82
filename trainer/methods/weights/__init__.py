"""Token weights: advantages spread anew over the tokens of all rows, after credit and before the updates."""
