-- What code receives of an event whose stream shows it redacted: the body before redaction, if it differs.
ALTER TABLE penstock.events ADD COLUMN original json;
ALTER TYPE penstock.new_event ADD ATTRIBUTE original json;
DROP FUNCTION IF EXISTS penstock.append_events(bigint, text[], text[], json[], boolean, bigint[]);
