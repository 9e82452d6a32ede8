"""Where a run's rows go besides its folder: Weights & Biases, TensorBoard, MLflow.

check.py        is the package there, without importing it
feed.py         follows the rows of a run and hands them to one tracker, from the parent process
point.py        what a tracker is given, and what it must be able to do
local.py        nothing besides the folder
wandb.py, tensorboard.py, mlflow.py     one tracker each; the only places that import those packages, when asked for

Ranks know nothing of trackers: they write rows, as always.
"""
