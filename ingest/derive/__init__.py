"""Tables computed from recorded ones at ingest: requests, misses, costs, tiers, owners."""
