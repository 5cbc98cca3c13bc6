"""Archipel: personalised, mixture-based and routing-enabled federated learning."""
