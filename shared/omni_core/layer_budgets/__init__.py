"""How many cells each layer keeps: scores by sensitivity, whole numbers that sum to the budget."""

from omni_core.layer_budgets.allocation import allocate
from omni_core.layer_budgets.gradient_norms import GradientNorms
from omni_core.layer_budgets.importance import Blend, dynamic_utility, importance
from omni_core.layer_budgets.rule import LayerBudgets
from omni_core.layer_budgets.sensitivity_file import document, read_sensitivity
from omni_core.layer_budgets.signals import attention_entropy, feature_magnitude

__all__ = [
    "Blend",
    "GradientNorms",
    "LayerBudgets",
    "allocate",
    "attention_entropy",
    "document",
    "dynamic_utility",
    "feature_magnitude",
    "importance",
    "read_sensitivity",
]
