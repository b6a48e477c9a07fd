"""Releases in a registry or an OCI layout: publish, pull, list, inspect."""
