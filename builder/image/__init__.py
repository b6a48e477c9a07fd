"""Images without a daemon: deterministic layers, config and manifest over a base that is never pulled; releases."""
