-- The PostgreSQL store's queries, by the names that the SQLite store uses. What SQLite does with several statements of one
-- transaction is one function here (postgres/0001.sql). Lists are given as JSON, as in SQLite.

-- name: meta
-- One read.
SELECT store_id, namespace, suspect, created_at, blobs
FROM {{schema}}.meta

-- name: place_blobs
-- One statement, which may run twice: of two places written down at the same moment one stands.
UPDATE {{schema}}.meta
SET blobs = $1
WHERE blobs IS NULL

-- name: naming
-- One read of the whole log: everything in it that can name content.
SELECT input_ref, output_ref, data, error
FROM {{schema}}.events
UNION ALL
SELECT NULL, NULL, content, NULL
FROM {{schema}}.snapshots

-- name: create_meta
-- In the transaction of the first migration; a second one finds it there.
INSERT INTO {{schema}}.meta (one, store_id, namespace, suspect, created_at)
VALUES (1, $1, $2, $3, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
ON CONFLICT DO NOTHING

-- name: append
-- One statement, one round trip: epoch, freeze and place are checked and the row is written (I4).
SELECT {{schema}}.append_1({{values}}, $22, $23::bytea[], $24::bytea[])

-- name: append_direct
-- One statement, one round trip: the row of `append` where all holds that `append_1` and `check_row` ask, and nothing where
-- something does not: then `append` says what. Prepared, it costs the server half of what a function and a trigger cost.
INSERT INTO {{schema}}.events ({{columns}}, checked_1)
SELECT {{values}}, true
FROM {{schema}}.tasks AS task, {{schema}}.events AS before
WHERE task.task_id = {{its_task_id}}
  AND task.epoch = {{its_epoch}}
  AND before.task_id = {{its_task_id}}
  AND before.event_seq = {{its_event_seq}} - 1
  AND {{its_prev_hash}} IS NOT NULL
  AND coalesce({{its_started_at}}, {{its_finished_at}}) IS NOT NULL
  AND {{its_kind}} NOT IN ({{task_kinds}})
  AND ({{its_status}} IN ({{step_statuses}})) IS NOT FALSE
  AND {{durable}}

-- name: append_direct_unfrozen
-- The end of `append_direct` for an attempt: its step is not frozen. FOR SHARE: such a statement locks the table as it begins,
-- before it takes its snapshot, and until its commit; so that a freeze, whose lock is EXCLUSIVE, waits for those that have begun,
-- and is seen by those that begin after it. A dump or a reader, who locks less, keeps no freeze waiting.
  AND NOT EXISTS (SELECT 1 FROM {{schema}}.freezes WHERE step IN ($22, '*') FOR SHARE)

-- name: append_shared
-- One statement, one round trip, one commit for rows of many tasks: each is checked as `append` does, and left out where it
-- would be refused. Gives the store's clock, and which were written: null is all of them.
SELECT now_at, written
FROM {{schema}}.append_shared_1($1::json, $2, $3, $4::bytea[], $5::bytea[])

-- name: append_shared_direct
-- One statement, one commit: the rows of `append_shared` for which all holds that `append_shared_1` asks; gives their places. Of a
-- task's rows that stand the last one is looked at: it is the one before, so that this place is free. Prepared, and with columns
-- as arrays (`arrays`), it costs the server three fifths of what the function costs. OFFSET: each element is taken out once.
INSERT INTO {{schema}}.events ({{columns}}, checked_1)
SELECT {{columns}}, true
FROM (
  SELECT {{elements}}
  FROM unnest({{arrayed_task_id}}) WITH ORDINALITY AS listed (task_id, i)
  OFFSET 0
) AS given
WHERE {{durable}}
  AND (SELECT task.epoch FROM {{schema}}.tasks AS task WHERE task.task_id = given.task_id) = given.epoch
  AND (
    SELECT before.event_seq
    FROM {{schema}}.events AS before
    WHERE before.task_id = given.task_id
      AND before.event_seq >= given.event_seq - 1
    ORDER BY before.event_seq DESC
    LIMIT 1
  ) = given.event_seq - 1
  AND given.prev_hash IS NOT NULL
  AND coalesce(given.started_at, given.finished_at) IS NOT NULL
  AND given.kind NOT IN ({{task_kinds}})
  AND (given.status IN ({{step_statuses}})) IS NOT FALSE

-- name: append_shared_direct_unfrozen
-- Goes on with `append_shared_direct` where there are attempts: their steps are not frozen. FOR SHARE: `append_direct_unfrozen`.
  AND (
    given.guard IS NULL
    OR NOT EXISTS (SELECT 1 FROM {{schema}}.freezes)
    OR NOT EXISTS (SELECT 1 FROM {{schema}}.freezes WHERE step IN (given.guard, '*') FOR SHARE)
  )

-- name: append_shared_direct_places
-- The end of `append_shared_direct`: which rows were written.
RETURNING task_id, event_seq

-- name: append_rows
-- One statement, one round trip: several rows, or rows that change projections.
SELECT {{schema}}.append_rows_1($1, $2, $3, $4::json, $5::json, $6, $7::bytea[], $8::bytea[], $9)

-- name: append_several
-- One statement, one commit for rows of many tasks that change projections: each task's as `append_rows` writes them, or none of
-- them. Gives the store's clock, and the tasks whose rows were refused.
SELECT now_at, refused
FROM {{schema}}.append_several_1($1::json, $2::bytea[], $3::bytea[])

-- name: append_heads
-- One statement, one commit for rows of many tasks that change their heads and nothing else. Gives the store's clock, and the
-- tasks whose rows were refused.
SELECT now_at, refused
FROM {{schema}}.append_heads_1($1::json, $2::json, $3, $4::bytea[], $5::bytea[])

-- name: append_heads_direct
-- One statement, one commit: what `append_heads_1` does where no step's freeze is asked and nobody is told; gives the task of each row
-- that was written. Prepared, and with columns as arrays (`arrays`): the rows' first, then the heads'. Heads are locked in one order
-- for all writers, and their epochs are asked of what is locked. Of a task's rows that stand the last one is looked at: it is the one before. A row that this cannot judge,
-- `check_row` does.
WITH own AS MATERIALIZED (
  SELECT given.*
  FROM (
    SELECT
      listed.task_id,
      ($17::bigint[])[listed.i * 6 - 5] AS epoch,
      ($17::bigint[])[listed.i * 6 - 4] AS place,
      ($17::bigint[])[listed.i * 6 - 3] = 1 AS release,
      nullif(($17::bigint[])[listed.i * 6 - 2], {{no_number}}) AS wake_at,
      ($17::bigint[])[listed.i * 6 - 1] AS at,
      ($17::bigint[])[listed.i * 6] AS seq,
      ($18::text[])[listed.i] AS status,
      ($19::text[])[listed.i] AS why,
      ($20::text[])[listed.i] AS awaits,
      ($21::bytea[])[listed.i] AS hash
    FROM unnest($16::text[]) WITH ORDINALITY AS listed (task_id, i)
    OFFSET 0
  ) AS given
  JOIN {{schema}}.tasks AS task ON task.task_id = given.task_id
  WHERE {{durable}}
    AND task.epoch = given.epoch
    AND (
      SELECT before.event_seq
      FROM {{schema}}.events AS before
      WHERE before.task_id = given.task_id
        AND before.event_seq >= given.place - 1
      ORDER BY before.event_seq DESC
      LIMIT 1
    ) = given.place - 1
  ORDER BY given.task_id COLLATE "C"
  FOR UPDATE OF task
), changed AS (
  UPDATE {{schema}}.tasks AS task
  SET status = own.status, wake_at = own.wake_at, why = own.why, awaits = own.awaits, updated_at = own.at, tail_seq = own.seq,
    tail_hash = own.hash,
    owner = CASE WHEN NOT own.release THEN task.owner END,
    epoch = CASE WHEN NOT own.release THEN task.epoch END,
    lease_until = CASE WHEN NOT own.release THEN task.lease_until END,
    claimed_at = CASE WHEN NOT own.release THEN task.claimed_at END
  FROM own
  WHERE task.task_id = own.task_id
  RETURNING task.task_id, own.place
)
INSERT INTO {{schema}}.events ({{columns}}, checked_1)
SELECT
  {{given_columns}},
  {{fits}}
    AND given.prev_hash IS NOT NULL
    AND (given.event_seq = changed.place OR given.follows)
FROM (
  SELECT {{elements}},
  {{follows}}
  FROM unnest({{arrayed_task_id}}) WITH ORDINALITY AS listed (task_id, i)
  OFFSET 0
) AS given
JOIN changed ON changed.task_id = given.task_id
ORDER BY given.task_id COLLATE "C", given.event_seq
RETURNING task_id

-- name: begin
-- One statement: the first two rows and the heads of tasks, with this owner; those whose ids exist are left out. Gives the ids of
-- those that have these claims, and whether the store is still what it was.
SELECT begun, store_id, suspect
FROM {{schema}}.begin_1($1::json, $2::json, $3, $4, $5, $6::bytea[], $7::bytea[])

-- name: begin_direct
-- One statement: what `begin_1` does where all ids are free; says how many rows were written, and what the store is. Prepared, and
-- with columns as arrays (`arrays`): the rows' first, then the heads'. A row that this cannot judge, `check_row` does.
WITH made AS (
  INSERT INTO {{schema}}.tasks (
    task_id, task_name, status, input_hash, created_at, updated_at, tail_seq, tail_hash, queue, priority, owner, epoch,
    lease_until, claimed_at
  )
  SELECT
    task_id, task_name, status, input_hash, at, since, 2, tail, queue, priority::integer, $23::text, epoch, now + $24::bigint, now
  FROM (
    SELECT
      listed.task_id,
      ($17::text[])[listed.i] AS task_name,
      ($18::text[])[listed.i] AS status,
      ($19::bytea[])[listed.i] AS input_hash,
      ($20::bytea[])[listed.i] AS tail,
      ($21::text[])[listed.i] AS queue,
      ($22::bigint[])[listed.i * 4 - 3] AS at,
      ($22::bigint[])[listed.i * 4 - 2] AS since,
      ($22::bigint[])[listed.i * 4 - 1] AS priority,
      ($22::bigint[])[listed.i * 4] AS epoch
    FROM unnest($16::text[]) WITH ORDINALITY AS listed (task_id, i)
    OFFSET 0
  ) AS given
  CROSS JOIN (SELECT coalesce($25::bigint, {{schema}}.clock()) AS now OFFSET 0) AS clock
  WHERE {{durable}}
  ORDER BY task_id COLLATE "C"
  ON CONFLICT DO NOTHING
  RETURNING task_id
), written AS (
  INSERT INTO {{schema}}.events ({{columns}}, checked_1)
  SELECT
    {{given_columns}},
    {{fits}}
      AND CASE given.event_seq
        WHEN 1 THEN given.prev_hash IS NULL
        WHEN 2 THEN given.prev_hash IS NOT NULL AND given.follows
      END
  FROM (
    SELECT {{elements}},
    {{follows}}
    FROM unnest({{arrayed_task_id}}) WITH ORDINALITY AS listed (task_id, i)
    OFFSET 0
  ) AS given
  JOIN made ON made.task_id = given.task_id
  ORDER BY given.task_id COLLATE "C", given.event_seq
  RETURNING 1
)
SELECT (SELECT count(*) FROM written), store_id, suspect
FROM {{schema}}.meta

-- name: accept
-- One statement: the first row and the head, or nothing.
SELECT {{schema}}.accept_1($1, $2, $3, $4, $5, $6, $7::json, $8::bytea[], $9::bytea[], $10, $11, $12)

-- name: claim
-- One statement: compare-and-set on the claim that was looked at; the next append by an old epoch is refused (I4).
SELECT {{schema}}.claim_1($1, $2, $3, $4, $5, $6, $7::json, $8::json)

-- name: release
-- One statement: nothing happens unless the epoch is the current one.
UPDATE {{schema}}.tasks
SET owner = NULL, epoch = NULL, lease_until = NULL, claimed_at = NULL
WHERE task_id = $1
  AND epoch = $2

-- name: due
-- One round trip: what is due and nobody has is claimed, passing over rows that somebody else is claiming; with it come those
-- whose owner's lease has ended, and children that are due, which are not claimed.
SELECT {{head}}
FROM {{schema}}.due_1($1::text[], $2::text[], $3::text[], $4, $5, $6::bigint[], $7, $8)

-- name: taken
-- One read, after a lost connection: which claims of these stand.
SELECT {{head}}
FROM {{schema}}.tasks
WHERE owner = $1
  AND epoch = ANY($2::bigint[])

-- name: next_due
-- One read of an index.
SELECT min(wake_at)
FROM {{schema}}.tasks
WHERE wake_at > $1
  AND owner IS NULL

-- name: strangers
-- One read: from each name to the next in the index; only of those that are not wanted are there tasks to look at.
WITH RECURSIVE names (name) AS (
  SELECT min(task_name)
  FROM {{schema}}.tasks
  WHERE {{live}}
    AND strpos(task_id, '/') = 0
  UNION ALL
  SELECT (
    SELECT min(task_name)
    FROM {{schema}}.tasks
    WHERE {{live}}
      AND strpos(task_id, '/') = 0
      AND task_name > names.name
  )
  FROM names
  WHERE names.name IS NOT NULL
)
SELECT {{head}}
FROM {{schema}}.tasks
WHERE {{live}}
  AND task_name IN (SELECT name FROM names WHERE name <> ALL($1::text[]))
  AND ($2::text[] IS NULL OR queue = ANY($2::text[]))
  AND strpos(task_id, '/') = 0
ORDER BY created_at, task_id
LIMIT $3

-- name: renew_leases
-- One statement; a lease never gets shorter. What is not given back is not ours any more. In the order in which tasks that end
-- together are taken: in another one the two would wait for each other.
WITH own AS MATERIALIZED (
  SELECT task.task_id, task.epoch, held.granted
  FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS held (task_id, epoch, granted)
  JOIN {{schema}}.tasks AS task ON task.task_id = held.task_id AND task.epoch = held.epoch
  ORDER BY task.task_id
  FOR UPDATE OF task
)
UPDATE {{schema}}.tasks AS task
SET lease_until = greatest(task.lease_until, coalesce($4::bigint, {{schema}}.clock()) + own.granted)
FROM own
WHERE task.task_id = own.task_id
  AND task.epoch = own.epoch
RETURNING task.task_id, task.epoch

-- name: claimed
-- One read: who has the task, since when, until when; and whether the store is still what it was.
SELECT
  {{head}}, claimed_at, lease_until, coalesce($2::bigint, {{schema}}.clock()),
  (SELECT store_id FROM {{schema}}.meta),
  (SELECT suspect FROM {{schema}}.meta)
FROM {{schema}}.tasks
WHERE task_id = $1

-- name: owner_alive
-- One read: whether a lease of this owner lasts.
SELECT 1
FROM {{schema}}.tasks
WHERE owner = $1
  AND lease_until > coalesce($2::bigint, {{schema}}.clock())
LIMIT 1

-- name: living
-- One read, for recover: an owner whose lease lasts.
SELECT owner
FROM {{schema}}.tasks
WHERE lease_until > {{schema}}.clock()
LIMIT 1

-- name: clock
-- One read.
SELECT {{schema}}.clock()

-- name: put_blob
-- One statement: content above 1 MiB where no object store is given, before the row that names it.
SELECT {{schema}}.put_blobs_1(ARRAY[$1::bytea], ARRAY[$2::bytea])

-- name: blob
-- One read.
SELECT content
FROM {{schema}}.blobs
WHERE digest = $1

-- name: has_blob
-- One read.
SELECT 1
FROM {{schema}}.blobs
WHERE digest = $1

-- name: blobs
-- One read of all content, for verify.
SELECT digest, content
FROM {{schema}}.blobs

-- name: rows
-- One read: a consistent prefix of the log.
SELECT {{columns}}
FROM {{schema}}.events
WHERE task_id = $1
  AND event_seq > $2
ORDER BY event_seq

-- name: next_rows
-- One read: the rows after a place, so many of them at most; a log is read in such pieces, each behind the one before.
SELECT {{columns}}
FROM {{schema}}.events
WHERE task_id = $1
  AND event_seq > $2
ORDER BY event_seq
LIMIT $3

-- name: rows_of_kinds
-- One read: a consistent prefix of the log.
SELECT {{columns}}
FROM {{schema}}.events
WHERE task_id = $1
  AND kind IN (SELECT json_array_elements_text($2::json))
ORDER BY event_seq

-- name: rows_of_step
-- One read: a consistent prefix of the log.
SELECT {{columns}}
FROM {{schema}}.events
WHERE task_id = $1
  AND event_seq > $2
  AND path = $3
ORDER BY event_seq

-- name: rows_at
-- One read; rows never change.
SELECT {{columns}}
FROM {{schema}}.events
WHERE task_id = $1
  AND event_seq IN (SELECT json_array_elements_text($2::json)::bigint)
ORDER BY event_seq

-- name: rows_standing
-- One read: which rows stand at these places.
SELECT {{columns}}
FROM {{schema}}.events
WHERE (task_id, event_seq) IN (SELECT place, seq FROM unnest($1::text[], $2::bigint[]) AS asked (place, seq))

-- name: outline
-- One read of so many rows at most. Two kinds of rows are nearly all that a long task has; they are said in one letter:
-- an intent, and a step that was settled as done with nothing more to say.
SELECT
  event_seq,
  CASE
    WHEN kind = 'StepIntended' THEN 'I'
    WHEN kind = 'StepSettled' AND status = 'done' AND error IS NULL AND data IS NULL THEN 'D'
    ELSE kind
  END,
  path,
  step_name,
  input_hash,
  output_ref,
  step_seq,
  status,
  error
FROM {{schema}}.events
WHERE task_id = $1
  AND event_seq > $2
ORDER BY event_seq
LIMIT $3

-- name: tail
-- One read: of the store's own task, which has no head, the meta row says it.
SELECT tail_seq, tail_hash
FROM {{schema}}.tasks
WHERE task_id = $1
UNION ALL
SELECT store_seq, store_hash
FROM {{schema}}.meta
WHERE $1 = '$store'
  AND store_hash IS NOT NULL

-- name: first
-- One read: the first row, and the one that is chained to it.
SELECT {{columns}}
FROM {{schema}}.events
WHERE task_id = $1
  AND event_seq <= 2
ORDER BY event_seq

-- name: last
-- One read.
SELECT {{columns}}
FROM {{schema}}.events
WHERE task_id = $1
ORDER BY event_seq DESC
LIMIT 1

-- name: all_rows
-- One read of the whole log, for verify.
SELECT {{columns}}
FROM {{schema}}.events
ORDER BY task_id, event_seq

-- name: head
-- One read.
SELECT {{head}}
FROM {{schema}}.tasks
WHERE task_id = $1

-- name: heads
-- One read.
SELECT {{head}}
FROM {{schema}}.tasks
ORDER BY created_at, task_id
LIMIT nullif($1, -1)

-- name: heads_of
-- One read.
SELECT {{head}}
FROM {{schema}}.tasks
WHERE status IN (SELECT json_array_elements_text($2::json))
ORDER BY created_at, task_id
LIMIT nullif($1, -1)

-- name: heads_due
-- One read: what nobody has and has no time, what somebody has, what has a time that has come, what waits for a key that moved.
SELECT {{head}}
FROM (
  SELECT *
  FROM {{schema}}.tasks
  WHERE {{free}}
    AND strpos(task_id, '/') = 0
  UNION ALL
  SELECT *
  FROM {{schema}}.tasks
  WHERE {{free}}
    AND strpos(task_id, '/') > 0
  UNION ALL
  SELECT *
  FROM {{schema}}.tasks
  WHERE owner IS NOT NULL
    AND wake_at IS NULL
    AND status <> 'needs_human'
    AND NOT {{idle}}
  UNION ALL
  SELECT *
  FROM {{schema}}.tasks
  WHERE wake_at <= $3
  UNION ALL
  SELECT *
  FROM {{schema}}.tasks
  WHERE {{told}}
    AND (wake_at > $3 OR (wake_at IS NULL AND status = 'needs_human'))
) AS task
WHERE status IN (SELECT json_array_elements_text($2::json))
ORDER BY created_at, task_id
LIMIT nullif($1, -1)

-- name: tails
-- One read, for verify.
SELECT task_id, task_name, status, input_hash, wake_at, why, awaits, queue, priority, tail_seq, tail_hash
FROM {{schema}}.tasks

-- name: case
-- One read.
SELECT {{case}}
FROM {{schema}}.cases
WHERE case_id = $1

-- name: notified
-- One statement; no event: a hook that was called twice has called nobody new.
UPDATE {{schema}}.cases
SET notified_at = $2
WHERE case_id = $1

-- name: cases_open
-- One read.
SELECT {{case}}
FROM {{schema}}.cases
WHERE settled_seq IS NULL
ORDER BY opened_at, task_id, event_seq

-- name: cases_all
-- One read.
SELECT {{case}}
FROM {{schema}}.cases
ORDER BY opened_at, task_id, event_seq

-- name: cases_of_task
-- One read.
SELECT {{case}}
FROM {{schema}}.cases
WHERE task_id = $1
ORDER BY event_seq

-- name: frozen
-- One read.
SELECT step, why
FROM {{schema}}.freezes
ORDER BY step

-- name: frozen_step
-- One read, to say why a guarded append was refused.
SELECT step, why
FROM {{schema}}.freezes
WHERE step = $1
  OR step = '*'
LIMIT 1

-- name: key
-- One read.
SELECT {{key}}
FROM {{schema}}.keys
WHERE once = $1

-- name: keys
-- One read, for verify.
SELECT {{key}}
FROM {{schema}}.keys

-- name: snapshot
-- One read.
SELECT {{snapshot}}
FROM {{schema}}.snapshots
WHERE task_id = $1
  AND ($2::bigint IS NULL OR event_seq < $2)
ORDER BY event_seq DESC
LIMIT 1

-- name: snapshots
-- One read of all of them, for verify.
SELECT {{snapshot}}
FROM {{schema}}.snapshots
ORDER BY task_id, event_seq

-- name: put_snapshot
-- One statement: of the others only the one at $7 stays.
WITH pruned AS (
  DELETE FROM {{schema}}.snapshots
  WHERE task_id = $1
    AND event_seq <> $2
    AND ($7::bigint IS NULL OR event_seq <> $7)
)
INSERT INTO {{schema}}.snapshots ({{snapshot}})
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (task_id, event_seq) DO UPDATE SET
  row_hash = excluded.row_hash, format = excluded.format, content = excluded.content, digest = excluded.digest

-- name: drop_snapshots
-- One statement: a cache.
DELETE FROM {{schema}}.snapshots
WHERE $1::text IS NULL
  OR task_id = $1
RETURNING event_seq

-- name: triggers
-- One read, for verify: the triggers that protect the log and are enabled always.
SELECT tgname
FROM pg_trigger
WHERE tgrelid IN ('{{schema}}.events'::regclass, '{{schema}}.blobs'::regclass)
  AND tgenabled = 'A'

-- name: server
-- One read at each connection: what the server is, and whether a commit there is durable.
SELECT
  pg_is_in_recovery(),
  current_setting('synchronous_commit'),
  current_setting('fsync'),
  current_setting('synchronous_standby_names'),
  current_setting('default_transaction_isolation'),
  current_setting('server_encoding'),
  (SELECT system_identifier FROM pg_control_system()),
  CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END,
  (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
  pg_backend_pid()

-- name: schema_version
-- One read: the newest migration that has run, and what a program must know to use the store; null: none has run.
SELECT max(number), max(needs)
FROM {{schema}}.migrations

-- name: is_migrated
-- One read.
SELECT to_regclass($1) IS NOT NULL

-- name: migrations
-- In the transaction of the migrations.
CREATE TABLE IF NOT EXISTS {{schema}}.migrations (
  number integer PRIMARY KEY,
  needs integer NOT NULL CHECK (needs BETWEEN 1 AND number),
  at bigint NOT NULL
)

-- name: migrated
-- In the transaction of the migrations.
INSERT INTO {{schema}}.migrations (number, needs, at)
VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)

-- name: has_schema
-- One read.
SELECT 1
FROM pg_namespace
WHERE nspname = $1

-- name: create_schema
-- In the transaction of the migrations.
CREATE SCHEMA {{schema}}

-- name: patience
-- In the transaction of the migrations: whoever waits for a table lets nobody else have it meanwhile.
SELECT set_config('lock_timeout', $1, true)

-- name: lock_migrations
-- In the transaction of the migrations: one process at a time, and the next one finds them done.
SELECT pg_advisory_xact_lock(1684172402, hashtext($1))
