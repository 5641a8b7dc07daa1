-- A job's row is written three times, when it is added, claimed and finished, and each time it is entered in these two indexes
-- anew, beside its older self: full pages were searched for what may go, and split. New ones are left with room for it, and end
-- up a little larger than those did. Pages that are there already stay as they are.

ALTER INDEX penstock.jobs_pkey SET (fillfactor = 40);
ALTER INDEX penstock.jobs_id_key SET (fillfactor = 40);
