"""Run the model on example inputs and record what it does."""
