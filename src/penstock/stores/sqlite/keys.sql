-- What format 3 brought: keys by which jobs stand for each other, and queues that are held.

CREATE TABLE dedupes (
  queue TEXT NOT NULL,
  key   TEXT NOT NULL,
  job   TEXT NOT NULL,            -- the job that holds the key
  until INTEGER,                  -- until when it does; NULL: until it has ended
  PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX dedupes_by_job ON dedupes (job);

CREATE TABLE holds (              -- queues of which nobody is handed a job
  queue TEXT PRIMARY KEY,
  until INTEGER NOT NULL
) WITHOUT ROWID;
