"""Retrieval: a corpus on disk, retrievers over it, and the HTTP protocol between the two sides of a machine.

`base` says what a retriever is, `corpus` keeps documents, `bm25` finds them by words, `dense` by vectors, `Hybrid` by
both, `http_client` asks a server and `server` is one; the last four are imported from their modules. Nothing here
knows an environment, and only the model of `dense` brings torch, in the process that serves it.
"""

from envgym.retrieval.base import MAX_QUERY_CHARS, BadQuery, Cached, Document, Hit, Retriever
from envgym.retrieval.bm25 import Bm25
from envgym.retrieval.corpus import Corpus

__all__ = ["MAX_QUERY_CHARS", "BadQuery", "Bm25", "Cached", "Corpus", "Document", "Hit", "Retriever"]
