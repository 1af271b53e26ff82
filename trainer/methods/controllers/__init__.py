"""Controllers: what may change, between two train steps, how a run goes on."""
