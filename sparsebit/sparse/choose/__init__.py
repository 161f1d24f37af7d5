"""What goes: scores, budgets, costs, and the two kinds of pruner that put them together."""
