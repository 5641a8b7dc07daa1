"""Words every other module uses: events, ids, time, payload rules, retry policy, errors. Imports nothing of ours."""
