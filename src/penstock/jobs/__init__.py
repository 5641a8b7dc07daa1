"""Plain jobs: the job engine, job trees and dead letters. Imports nothing of flows."""
