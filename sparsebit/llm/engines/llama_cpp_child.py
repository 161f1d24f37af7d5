"""Run by llama_cpp.py as a script of its own: an engine that aborts must not take the user's process with it.

Reads {"path", "size", "threads", "prompts"} from standard input and writes the log-probabilities after each prompt.
"""

import json
import sys
from typing import Any

import xllamacpp


def main() -> None:
    """Answer the one request."""
    request: dict[str, Any] = json.load(sys.stdin)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = request["path"]
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = request["threads"]
    longest = max(map(len, request["prompts"]))
    parameters.n_ctx, parameters.n_parallel, parameters.warmup = max(512, longest + 8), 1, False
    server = xllamacpp.Server(parameters)
    rows = []
    for prompt in request["prompts"]:
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": 1,
                "n_probs": request["size"],
                "temperature": 0.0,
                "cache_prompt": False,
            }
        )
        found = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        rows.append([[one["id"], one["logprob"]] for one in found])
    print(json.dumps({"rows": rows}), flush=True)


if __name__ == "__main__":
    main()
