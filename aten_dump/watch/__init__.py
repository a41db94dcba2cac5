"""Statistics of a run, live: `Watch` measures every so many steps, and nothing of it is active in the steps between.

In: modules that are called, gradients and parameters where optimizers step.
Out: numbers for TensorBoard, W&B or a file of JSON lines; alerts, which can have the next step recorded whole.
"""
