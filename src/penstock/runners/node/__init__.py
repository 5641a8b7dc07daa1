"""Runs TypeScript and JavaScript worker files in Node."""
