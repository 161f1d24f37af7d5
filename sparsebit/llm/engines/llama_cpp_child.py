"""Run by llama_cpp.py as a separate script, so that an engine that aborts does not end the user's process.

Reads {"path", "threads"} from standard input, with "prompts", "size" and "spoken" for the log-probabilities after each
prompt ("rows"), or "texts" for their tokens ("ids"). "spoken" is the token that the engine is forced to answer with. It
returns no probabilities with an answer that is not text, such as the end or one byte of a letter. The returned
probabilities are those before forcing.
"""

import json
import sys
import urllib.request
from typing import Any

import xllamacpp


def main() -> None:
    """Answer the one request."""
    request: dict[str, Any] = json.load(sys.stdin)
    prompts = request.get("prompts", [])
    parameters = xllamacpp.CommonParams()
    parameters.model.path = request["path"]
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = request["threads"]
    parameters.n_ctx = max([512, *(len(prompt) + 8 for prompt in prompts)])
    parameters.n_parallel, parameters.warmup, parameters.port = 1, False, 0
    server = xllamacpp.Server(parameters)
    rows = []
    for prompt in prompts:
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": 1,
                "n_probs": request["size"],
                "temperature": 0.0,
                "cache_prompt": False,
                "logit_bias": [[request["spoken"], 1e6]],
            }
        )
        if "choices" not in answer:
            raise RuntimeError(f"error of llama.cpp: {answer.get('message') or answer}")
        found = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        rows.append([[one["id"], one["logprob"]] for one in found])
    ids = [tokens_of(server.listening_address, text) for text in request.get("texts", [])]
    print(json.dumps({"rows": rows, "ids": ids}), flush=True)


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
