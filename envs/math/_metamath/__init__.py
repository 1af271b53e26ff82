"""Metamath: databases, proofs, terms, and the statements that `math/metamath-v0` asks for."""
