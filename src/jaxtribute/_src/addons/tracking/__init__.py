"""Trackers behind one protocol: TensorBoard, Weights & Biases, MLflow, CSV and JSON lines."""
