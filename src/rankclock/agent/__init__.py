"""The per-node service: metrics, health, page."""
