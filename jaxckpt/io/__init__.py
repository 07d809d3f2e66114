"""Effects: files, memory, threads, other processes. Knows nothing of jax."""
