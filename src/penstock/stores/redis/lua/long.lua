return commit_long, claim_long
