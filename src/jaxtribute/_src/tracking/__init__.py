"""Where the figures of a training go: TensorBoard, Weights & Biases, MLflow, CSV and JSON lines behind one protocol."""
