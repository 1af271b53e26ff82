"""Pages in a real browser, and worlds that look like them."""
