-- What code receives of an event whose stream shows it redacted.
ALTER TABLE events ADD COLUMN original BLOB;
