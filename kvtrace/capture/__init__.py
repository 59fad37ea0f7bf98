"""The capture log's writing side: what runs inside vLLM's processes."""
