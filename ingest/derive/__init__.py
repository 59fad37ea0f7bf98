"""Tables computed from recorded ones at ingest: requests, misses, costs, the ledger, tiers, owners."""
