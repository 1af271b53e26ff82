"""`envgym serve-retriever`: a corpus behind HTTP, for environments on this machine or another."""

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from envgym.cli.common import add_set_argument, echo, env_kwargs, server_token
from envgym.errors import InvalidInput

if TYPE_CHECKING:
    from envgym.retrieval import Corpus, Retriever

_INDICES = ("bm25", "dense", "hybrid")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    help_corpus = "JSONL file of {id, title, text} or {id, contents}, or the id of a search environment"
    parser.add_argument("corpus", metavar="CORPUS", help=help_corpus)
    parser.add_argument("--index", choices=_INDICES, default="bm25", help="retrieval method (default: bm25)")
    parser.add_argument("--model", metavar="DIR", help="sentence-transformers directory or hub name, unless bm25")
    parser.add_argument("--device", help="device of the model, such as cuda:0 (default: the fastest available)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0: any free one (default: 8000)")
    add_set_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Index the corpus, say where it is served, and serve it until interrupted."""
    from envgym.retrieval.http_client import TOKEN_VARIABLE
    from envgym.retrieval.server import make_server
    from envgym.runtime.event_loop import run_coroutine

    token = server_token(args.host, TOKEN_VARIABLE)
    server = make_server(_retriever(args), name=args.index, token=token)

    def announce(url: str) -> None:
        echo(f"{args.corpus} at {url}/retrieve; Ctrl-C stops.", flush=True)

    with contextlib.suppress(KeyboardInterrupt):
        run_coroutine(server.serve(args.host, args.port, announce))
    return 0


def _retriever(args: argparse.Namespace) -> "Retriever":
    from envgym.retrieval import Bm25, Cached

    corpus = _corpus(args)
    if args.index == "bm25":
        return Cached(Bm25(corpus))
    do = "pass a sentence-transformers directory"
    InvalidInput.unless(args.model, "--model", "be given", "none", where=f"--index {args.index}", do=do)
    from envgym.retrieval.base import Hybrid
    from envgym.retrieval.dense import Dense

    dense = Dense(corpus, args.model, device=args.device)
    return Cached(dense if args.index == "dense" else Hybrid(Bm25(corpus), dense))


def _corpus(args: argparse.Namespace) -> "Corpus":
    import envgym
    from envgym.retrieval.corpus import open_corpus

    if args.corpus not in envgym.list_ids():
        return open_corpus(Path(args.corpus))
    env = envgym.make(args.corpus, **env_kwargs(args.settings))
    corpus: Corpus | None = getattr(env.unwrapped, "corpus", None)
    if corpus is None:
        do = "name a search environment, or a JSONL file"
        raise InvalidInput.of(args.corpus, "have pages to search", "none", where="CORPUS", do=do)
    return corpus
