"""vLLM as a policy: in this process, in a server of its own, and what the server loads into the workers of vLLM.

Modules that vLLM imports in its workers must import nothing else of envgym.
"""
