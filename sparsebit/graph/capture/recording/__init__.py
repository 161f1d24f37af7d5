"""Run the model on example inputs and write down what it did."""
