"""What serving engines run and load, kept apart from this project's own kernels: one module an engine."""
