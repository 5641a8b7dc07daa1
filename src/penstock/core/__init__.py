"""What every other package uses: events, ids, time, payload rules, retry policy, errors. Imports nothing of ours."""
