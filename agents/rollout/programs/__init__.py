"""Episodes in which an agent program plays: it calls the model over HTTP, and its calls become the rows of a tree."""
