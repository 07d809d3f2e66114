"""Between device arrays and host memory."""
