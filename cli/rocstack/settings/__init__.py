"""Settings: flag > ROCSTACK_* variable > rocstack.yml > default."""
