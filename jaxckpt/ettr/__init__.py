"""The time that counts: a run's journal, what it adds up to, and how that is shown."""
