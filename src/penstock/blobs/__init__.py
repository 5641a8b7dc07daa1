"""Blob stores: memory, a folder, and the buckets of S3, Google and Azure, by one URL."""
