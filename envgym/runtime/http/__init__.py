"""HTTP between the processes of a run: who may ask, servers, and the client."""
