"""One importer per source: a file, or a folder where a source needs several."""
