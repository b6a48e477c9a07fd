"""Sealed artifacts by key, on a local disk."""

from builder.store.digests import DigestCache, FileDigest, HashingWriter, hash_file
from builder.store.local import Artifact, FileEntry, LocalStore, Workspace, default_store_root

__all__ = [
    "Artifact",
    "DigestCache",
    "FileDigest",
    "FileEntry",
    "HashingWriter",
    "LocalStore",
    "Workspace",
    "default_store_root",
    "hash_file",
]
