"""Run by llama_cpp.py as a separate script, so that an engine that aborts does not end the user's process.

Reads {"path", "threads"} from standard input, with "prompts", "size" and "spoken" for the log-probabilities after each
prompt ("rows"), or "texts" for their tokens ("ids"). "spoken" is the token that the engine is forced to answer with. It
returns no probabilities with an answer that is not text, such as the end or one byte of a letter. The returned
probabilities are those before forcing.
"""

import json
import os
import sys
import traceback
import urllib.request
from typing import Any, NoReturn

import xllamacpp


def main() -> NoReturn:
    """Answer the one request, and end the process without destroying the server.

    The destructor stops a thread and waits for it. On a busy machine the thread may start after that, and never ends.
    """
    request: dict[str, Any] = json.load(sys.stdin)
    server = start(request)
    status = 1
    try:
        print(json.dumps(answer(server, request)), flush=True)
        status = 0
    except Exception:
        traceback.print_exc()
    os._exit(status)


def start(request: dict[str, Any]) -> xllamacpp.Server:
    """A server of the one model, which answers one prompt at a time."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = request["path"]
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = request["threads"]
    parameters.n_ctx = max([512, *(len(prompt) + 8 for prompt in request.get("prompts", []))])
    parameters.n_parallel, parameters.warmup, parameters.port = 1, False, 0
    return xllamacpp.Server(parameters)


def answer(server: xllamacpp.Server, request: dict[str, Any]) -> dict[str, Any]:
    """The rows and ids that were asked for."""
    rows = []
    for prompt in request.get("prompts", []):
        completion = server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": 1,
                "n_probs": request["size"],
                "temperature": 0.0,
                "cache_prompt": False,
                "logit_bias": [[request["spoken"], 1e6]],
            }
        )
        if "choices" not in completion:
            raise RuntimeError(f"error of llama.cpp: {completion.get('message') or completion}")
        found = completion["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        rows.append([[one["id"], one["logprob"]] for one in found])
    ids = [tokens_of(server.listening_address, text) for text in request.get("texts", [])]
    return {"rows": rows, "ids": ids}


def tokens_of(address: str, text: str) -> list[int]:
    """The tokens of a text, from a local server, because the package has no function for it."""
    body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
    sent = urllib.request.Request(f"{address}/tokenize", body, {"Content-Type": "application/json"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(sent, timeout=60) as answer:
        found: list[int] = json.load(answer)["tokens"]
    return found


if __name__ == "__main__":
    main()
