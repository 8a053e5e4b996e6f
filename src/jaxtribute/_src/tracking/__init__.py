"""Places that the figures of a training go to: TensorBoard, Weights & Biases, MLflow, CSV and JSON lines."""
