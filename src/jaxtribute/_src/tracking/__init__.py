"""Trackers of the figures of a training: TensorBoard, Weights & Biases, MLflow, CSV and JSON lines behind one protocol."""
