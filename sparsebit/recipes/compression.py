"""``compress``: find a recipe that makes a model small or fast enough at an acceptable loss."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from sparsebit.analysis.accuracy import has_labels, measure
from sparsebit.batches import Call, ModelInputs, example_call, example_from, read_batches
from sparsebit.config import SConfig, load_sconfig
from sparsebit.errors import SparsebitError
from sparsebit.graph.capture.unwrap import unwrap
from sparsebit.progress import waiting
from sparsebit.recipes.candidates import PRUNE, Candidates
from sparsebit.recipes.goals import Goals
from sparsebit.recipes.limits import find_limits
from sparsebit.recipes.recipe import Finetune
from sparsebit.recipes.result import Compressed
from sparsebit.recipes.search import Metric, Search
from sparsebit.recipes.space import RATIOS
from sparsebit.recipes.trial import Trial, best_trials
from sparsebit.storage import working_in
from sparsebit.targets import TARGETS

_FUNCTIONS = {
    "metric": "from a model to a number, where higher is better",
    "latency": "from a model to the seconds of one call",
    "finetune": "that trains a model in place",
    "on_trial": "of a trial",
}


def compress(
    model: nn.Module,
    data: Iterable[Any],
    *,
    target: str = "onnxruntime",
    max_drop: float = 0.01,
    speedup: float | None = None,
    size: float | None = None,
    metric: Metric | None = None,
    validation: Iterable[Any] | None = None,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    latency: Callable[[nn.Module], float] | None = None,
    finetune: Finetune | None = None,
    prune: Mapping[str, Any] | SConfig | None = None,
    ratios: Sequence[float] = RATIOS,
    time_budget: float = 600.0,
    exhaustive: bool = False,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    on_trial: Callable[[Trial], None] | None = None,
    progress: bool | None = None,
) -> Compressed:
    """Try recipes, cheapest first, until one meets the goals or the time limit is reached.

    What is tried: how much is pruned, which bits the weights get (8, 4, or mixed within the size), how ranges are
    found, where quantizers are placed, and which steps recover accuracy. Each stage starts from the best recipes of
    the stage before, and only the most promising reach the expensive ones.

    If no recipe reaches the goals, the result is the nearest one, ``met`` is False, and ``verdict`` says by how
    much each goal is missed and why.

    Args:
        model: in evaluation mode; not changed.
        data: calibration batches, a few hundred samples, as ``QuantModel.calibrate`` takes them; kept in memory.
        target: the runtime: ``onnxruntime``, ``openvino``, ``tensorrt``, or ``virtual``, which simulates any widths.
        max_drop: the largest allowed loss of the metric, in its own units.
        speedup: how many times as fast as float a call must be, measured in the target's runtime on the example inputs.
        size: of the parameters: a fraction of the float model's (1 or less), or bytes.
        metric: a function from a model to a number, the higher the better. By default accuracy on ``validation``.
        validation: batches of (inputs, labels) for that; by default ``data``.
        example_inputs: positional inputs of one call; by default the first batch's. Of a batch that is a dict, what
            ``model.forward`` has arguments for.
        example_kwargs: keyword inputs of that call.
        latency: a function from a model to the seconds of one call, instead of the target's own runtime.
        finetune: trains a pruned model in place; without it, pruning is followed only by batch norm re-estimation.
        prune: a pruning config whose RATIO is replaced; by default channels, scored by activation_norm, as a fraction
            of all multiply-accumulates. A criterion that needs gradients cannot be used here.
        ratios: fractions to prune.
        time_budget: seconds for all trials together, including earlier runs in ``folder``. At least one trial is run.
        exhaustive: continue after the goals are met, for a complete Pareto front.
        folder: where every trial is written; after an interruption, the same call resumes from there. The result is
            written there as well: ``recipe.yaml``, ``result.json`` and the models.
        seed: determines recipes, metrics and sizes; times are measured.
        on_trial: called with every trial.
        progress: show what is being tried and the time left or not; by default on a terminal.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
        >>> x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
        >>> found = compress(net, [(x, net(x).argmax(1))], max_drop=0.05, size=0.4)
        >>> found.met, found.best.name
        (True, '8-bit weights')
    """
    target = TARGETS[target].name  # an unknown name raises an error that lists the names
    model = unwrap(model)
    if model.training:
        raise SparsebitError(
            f"the {type(model).__name__} is in training mode",
            hint="call model.eval() first: dropout would distort the metric",
        )
    goals = Goals(max_drop=max_drop, speedup=speedup, size=size)
    if metric is None:
        goals.require_share()
    functions = {"metric": metric, "latency": latency, "finetune": finetune, "on_trial": on_trial}
    _require_arguments(model, functions, ratios, time_budget, seed)
    batches = list(read_batches(data))
    if example_inputs is None and example_kwargs is None:
        examples = example_from(model, batches[0])
    else:
        examples = example_call(example_inputs, example_kwargs)
    metric = metric or accuracy_on(
        batches if validation is None else list(read_batches(validation)), examples
    )
    with working_in(folder):
        candidates = Candidates(
            model=model,
            batches=batches,
            example=examples,
            target=target,
            finetune=finetune,
            prune=load_sconfig(prune or PRUNE),
            ratios=ratios,
            folder=Path(folder) if folder is not None else None,
            seed=seed,
        )
        search = Search(
            candidates,
            goals=goals,
            metric=metric,
            latency=latency,
            time_budget=time_budget,
            exhaustive=exhaustive,
            on_trial=on_trial,
        )
        left = max(1.0, time_budget - sum(trial.seconds for trial in search.state.trials.values()))
        with waiting("searching", seconds=left, shown=progress) as say:
            search.run(say)
            best = search.best()
            say(f"finishing: {best.name}")
            float_model, qmodel = search.built(best)
            limits = find_limits(search, best, qmodel)
        result = Compressed(
            model=qmodel,
            float_model=float_model,
            best=best,
            base=search.base,
            goals=goals,
            trials=tuple(search.reached.values()),
            pareto=best_trials(search.reached.values()),
            limits=limits,
            stopped=search.stopped,
        )
        if folder is not None:
            result.save(folder)
    return result


def _require_arguments(
    model: nn.Module, functions: Mapping[str, object], ratios: Sequence[float], time_budget: float, seed: int
) -> None:
    """Raise for what would only be found out in the middle of a search."""
    if next(model.parameters(), None) is None:
        raise SparsebitError(f"the {type(model).__name__} has no parameters to compress")
    for name, function in functions.items():
        if function is not None and not (callable(function) and _takes_one(function)):
            raise SparsebitError(f"{name} is a function {_FUNCTIONS[name]}", got=f"{function!r:.80}")
    fractions = list(ratios) if isinstance(ratios, Sequence) else []
    if not fractions or not all(isinstance(ratio, int | float) and 0 <= ratio < 1 for ratio in fractions):
        raise SparsebitError(
            "ratios: expected a list of fractions to prune, each at least 0 and less than 1",
            got=f"{ratios!r:.80}",
        )
    if not isinstance(time_budget, int | float) or not time_budget >= 0:
        raise SparsebitError("time_budget: expected a number of seconds", got=f"{time_budget!r:.80}")
    if not isinstance(seed, int):
        raise SparsebitError("seed: expected a whole number", got=f"{seed!r:.80}")


def _takes_one(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # code without a signature
        pass
    return True


def accuracy_on(batches: Sequence[Any], examples: Call) -> Metric:
    """A function from a model to its accuracy; refused if the batches have no class labels."""
    inputs = ModelInputs(None, *examples)
    if not has_labels(batches[0] if batches else None, inputs):
        raise SparsebitError(
            "there is no way to measure a model on this data",
            expected="batches of (inputs, class labels), dicts with 'labels' in them, or a metric",
            hint="pass metric=, a function from a model to a number, where higher is better",
        )
    return lambda model: measure(model, batches, shown=False, inputs=inputs)
