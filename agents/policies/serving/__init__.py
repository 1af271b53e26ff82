"""Policy servers: the protocol (vLLM's routes), a server around the transformers policy, the client, the weights."""
