"""`envgym serve-retriever`: a corpus behind HTTP, for environments on this machine or another."""

import argparse
import contextlib
from pathlib import Path

from envgym.cli.common import Subparsers, add_command

_EXAMPLES = """  envgym serve-retriever wiki.jsonl --port 8000
  curl -d '{"queries": ["deepest lake"], "topk": 3}' http://127.0.0.1:8000/retrieve"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    summary = "serve a corpus over HTTP, in the protocol of Search-R1's retrieval servers"
    parser = add_command(subparsers, "serve-retriever", summary=summary, examples=_EXAMPLES)
    parser.add_argument("corpus", metavar="CORPUS", type=Path, help="JSONL file of {id, title, text} or {id, contents}")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 takes a free one (default: 8000)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Index the corpus, say where it is served, and serve it until interrupted."""
    from envgym.retrieval import Bm25, Cached
    from envgym.retrieval.corpus import open_corpus
    from envgym.retrieval.server import RetrievalServer

    corpus = open_corpus(args.corpus)
    with RetrievalServer(Cached(Bm25(corpus)), name="bm25", host=args.host, port=args.port) as server:
        print(f"{len(corpus)} documents at {server.url}/retrieve; Ctrl-C stops.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0
