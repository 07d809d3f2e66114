"""Speed and memory of jaxckpt beside its peers and the disk's own limit."""
