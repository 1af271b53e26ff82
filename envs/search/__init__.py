"""Search: questions whose answers lie in a corpus."""
