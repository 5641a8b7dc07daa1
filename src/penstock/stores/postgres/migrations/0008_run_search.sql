-- Runs are found by what their first event says: input and tags. A text with a null in it, which jsonb refuses, is kept with
-- another character there; so is what is looked for, and who looks compares the text itself in the end.
-- Not in SQL, which would be written into the statements that use it: the planner is to know what a row costs.

CREATE FUNCTION penstock.searchable(body json) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE COST 200 AS $$
BEGIN
  RETURN replace(body::text, '\u0000', '\u0001')::jsonb;
END $$;

CREATE INDEX events_begun ON penstock.events USING gin (penstock.searchable(body) jsonb_path_ops) WHERE seq = 1;
