"""Pages in a real browser, and an online store that needs none."""
