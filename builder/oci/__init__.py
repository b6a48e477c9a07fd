"""OCI descriptors, manifests and references, and the repositories that hold them: a layout directory or a registry."""
