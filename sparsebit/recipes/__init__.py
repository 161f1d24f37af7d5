"""Recipes: everything done to a model as one file, and the search for the one that meets given goals."""

from sparsebit.recipes.compression import compress
from sparsebit.recipes.goals import Goals, Measured
from sparsebit.recipes.recipe import Recipe, apply_recipe
from sparsebit.recipes.result import Compressed, GoalsNotMet
from sparsebit.recipes.trial import Trial

__all__ = ["Compressed", "Goals", "GoalsNotMet", "Measured", "Recipe", "Trial", "apply_recipe", "compress"]
