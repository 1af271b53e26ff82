"""Wire formats in which programs call the model: a request body as a `Call`, and a `CallReply` as a response. Pure."""
