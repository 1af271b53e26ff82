"""MCP servers that run in sandboxes, standard library only; one class and one list of tools each."""
