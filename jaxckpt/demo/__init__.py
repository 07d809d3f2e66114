"""A real training run that is killed and goes on: ``jaxckpt demo``."""
