"""The parts of code/sql-v0: databases, questions, and the process that runs queries."""
