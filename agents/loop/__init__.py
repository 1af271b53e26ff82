"""The agent loop without I/O: frozen states, the events that drive them, the conversation and the finished path."""
