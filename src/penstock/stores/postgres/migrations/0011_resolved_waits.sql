-- A wait that the last unit of a run has resolved is stored as resolved: the run's other waits are cancelled after the
-- unit's own are written, not before. Only two places of the function change, so it is changed where it stands.

DO $migration$
DECLARE
  before text := pg_get_functiondef(to_regproc('penstock.transact'));
  without text := replace(before, $part$        IF r_closed[r] THEN
          UPDATE penstock.waits SET state = 'cancelled' WHERE run = r_ids[r] AND state = 'pending';
        END IF;
$part$, '');
  after text := replace(without, $part$          INSERT INTO penstock.once (key, at) VALUES (u_once[i], now);
        END IF;
      END IF;
$part$, $part$          INSERT INTO penstock.once (key, at) VALUES (u_once[i], now);
        END IF;
      END IF;
      -- After its own waits: one that the last unit of a run has resolved is not cancelled.
      IF u_expect[i] IS NOT NULL AND u_flags[i] & 1 <> 0 THEN
        UPDATE penstock.waits SET state = 'cancelled' WHERE run = r_ids[r] AND state = 'pending';
      END IF;
$part$);
BEGIN
  IF without = before OR after = without THEN
    RAISE EXCEPTION 'penstock.transact is not the function that migration 9 made: it cannot be changed by migration 11';
  END IF;
  EXECUTE after;
END
$migration$;
