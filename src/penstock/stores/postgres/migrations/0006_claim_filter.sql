-- A claim may be limited to some runs and jobs; null means any.
ALTER TYPE penstock.claim_request ADD ATTRIBUTE only_runs text[], ADD ATTRIBUTE only_jobs text[];
