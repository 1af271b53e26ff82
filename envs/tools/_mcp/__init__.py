"""What `tools/mcp-v0` is made of: MCP servers, their processes, the client, and the generators of tasks."""
