"""Adapters of KV connectors, a file each. See docs/add-a-connector.md."""
