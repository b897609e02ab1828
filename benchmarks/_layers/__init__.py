"""Processor time of a running job by layer: of its JVM, its Python processes and their threads."""
