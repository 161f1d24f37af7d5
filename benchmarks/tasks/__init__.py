"""The evaluation tasks on real data that every benchmark shares: model, inputs and metric behind one interface."""

from benchmarks.tasks.agreement import agreement
from benchmarks.tasks.catalog import TASKS, open_task
from benchmarks.tasks.data import data_folder
from benchmarks.tasks.task import Call, Predict, Result, Scores, Task

__all__ = ["TASKS", "Call", "Predict", "Result", "Scores", "Task", "agreement", "data_folder", "open_task"]
