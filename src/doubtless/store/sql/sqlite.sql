-- The SQLite store's schema and queries. `{{…}}` is filled from the closed sets and columns in events.py.
-- Alternatives are written with OR: IN builds a temporary b-tree each time it is evaluated (+7 % an append).

-- name: schema
-- Run in one transaction with the meta row: a store is there whole or not at all.
-- store_seq and store_hash: the last row of the store's own task, which has no head.
CREATE TABLE meta (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  store_id BLOB NOT NULL CHECK (length(store_id) = 16),
  namespace BLOB NOT NULL,
  generation INTEGER NOT NULL,
  suspect INTEGER NOT NULL CHECK (suspect = 0 OR suspect = 1),
  created_at INTEGER NOT NULL,
  blobs TEXT,
  store_seq INTEGER NOT NULL DEFAULT 0,
  store_hash BLOB CHECK (length(store_hash) = 32)
) STRICT;
CREATE TABLE events (
  task_id TEXT NOT NULL,
  event_seq INTEGER NOT NULL CHECK (event_seq > 0),
  step_seq INTEGER CHECK (step_seq > 0),
  path TEXT,
  step_name TEXT,
  kind TEXT NOT NULL CHECK ({{kinds}}),
  status TEXT,
  attempt INTEGER CHECK (attempt > 0),
  effect_class TEXT CHECK (effect_class IS NULL OR {{effects}}),
  idempotency_key BLOB CHECK (length(idempotency_key) = 32),
  input_hash BLOB CHECK (length(input_hash) = 32),
  input_ref ANY CHECK ({{input_ref}}),
  output_ref ANY CHECK ({{output_ref}}),
  error TEXT,
  data ANY CHECK (data IS NULL OR typeof(data) = 'text' OR (typeof(data) = 'blob' AND length(data) = 32)),
  started_at INTEGER,
  finished_at INTEGER,
  boot_at INTEGER NOT NULL,
  epoch INTEGER,
  format INTEGER NOT NULL CHECK (format > 0),
  prev_hash BLOB CHECK (length(prev_hash) = 32),
  PRIMARY KEY (task_id, event_seq),
  CHECK ((event_seq = 1) = (prev_hash IS NULL)),
  CHECK (started_at IS NOT NULL OR finished_at IS NOT NULL),
  CHECK (
    status IS NULL
    OR (NOT ({{task_kinds}}) AND ({{step_statuses}}))
    OR (({{task_kinds}}) AND ({{task_statuses}}))
  )
) STRICT, WITHOUT ROWID;
CREATE TRIGGER events_no_update
  BEFORE UPDATE ON events
  BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER events_no_delete
  BEFORE DELETE ON events
  BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
-- Gapless; and INSERT OR REPLACE, which would pass the two triggers above, meets this one first.
CREATE TRIGGER events_gapless
  BEFORE INSERT ON events
  WHEN NEW.event_seq IS NOT 1 + coalesce((SELECT max(event_seq) FROM events WHERE task_id = NEW.task_id), 0)
  BEGIN SELECT RAISE(ABORT, 'moved'); END;
CREATE TABLE blobs (
  digest BLOB NOT NULL PRIMARY KEY CHECK (length(digest) = 32),
  content BLOB NOT NULL
) STRICT;
CREATE TRIGGER blobs_no_update
  BEFORE UPDATE ON blobs
  BEGIN SELECT RAISE(ABORT, 'content never changes'); END;
CREATE TRIGGER blobs_no_delete
  BEFORE DELETE ON blobs
  BEGIN SELECT RAISE(ABORT, 'content never changes'); END;
CREATE TRIGGER blobs_no_replace
  BEFORE INSERT ON blobs
  WHEN EXISTS (SELECT 1 FROM blobs WHERE digest = NEW.digest)
  BEGIN SELECT RAISE(ABORT, 'content never changes'); END;
-- tail_seq and tail_hash: the last row when this head changed, or something was added from outside, so that loss or damage at a
-- parked log's end shows.
CREATE TABLE tasks (
  task_id TEXT NOT NULL PRIMARY KEY,
  task_name TEXT NOT NULL,
  status TEXT NOT NULL CHECK ({{task_statuses}}),
  input_hash BLOB NOT NULL CHECK (length(input_hash) = 32),
  owner TEXT,
  epoch INTEGER,
  wake_at INTEGER,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  why TEXT,
  claimed_at INTEGER,
  awaits TEXT,
  queue TEXT NOT NULL,
  priority INTEGER NOT NULL,
  tail_seq INTEGER NOT NULL,
  tail_hash BLOB NOT NULL CHECK (length(tail_hash) = 32),
  CHECK ((owner IS NULL) = (epoch IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX tasks_by_status ON tasks (status, created_at);
CREATE INDEX tasks_by_wake ON tasks (wake_at) WHERE wake_at IS NOT NULL;
CREATE TABLE cases (
  case_id TEXT NOT NULL PRIMARY KEY,
  task_id TEXT NOT NULL,
  event_seq INTEGER NOT NULL,
  path TEXT,
  kind TEXT NOT NULL CHECK ({{case_kinds}}),
  opened_at INTEGER NOT NULL,
  settled_seq INTEGER,
  settled_at INTEGER,
  settled_by TEXT,
  notified_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX cases_by_task ON cases (task_id, event_seq);
CREATE INDEX cases_open ON cases (opened_at) WHERE settled_seq IS NULL;
CREATE TABLE freezes (
  step TEXT NOT NULL PRIMARY KEY,
  why TEXT NOT NULL
) STRICT, WITHOUT ROWID;
-- Business keys, each with its newest holder: `once` is unique, and a turn is taken only after the turn before it. `state`:
-- open (in flight or in doubt), done (done_at, done_boot: when), failed (it may stand), freed (it did not happen).
CREATE TABLE keys (
  once TEXT NOT NULL PRIMARY KEY,
  turn INTEGER NOT NULL CHECK (turn > 0),
  task_id TEXT NOT NULL,
  path TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state = 'open' OR state = 'done' OR state = 'failed' OR state = 'freed'),
  window_us INTEGER CHECK (window_us > 0),
  done_at INTEGER,
  done_boot INTEGER,
  CHECK ((state = 'done') = (done_at IS NOT NULL)),
  CHECK ((done_at IS NULL) = (done_boot IS NULL))
) STRICT, WITHOUT ROWID;
-- A cache of folds: deleting all of them changes nothing but speed. Each says which row of the log it stands on.
CREATE TABLE snapshots (
  task_id TEXT NOT NULL,
  event_seq INTEGER NOT NULL CHECK (event_seq > 0),
  row_hash BLOB NOT NULL CHECK (length(row_hash) = 32),
  format INTEGER NOT NULL CHECK (format > 0),
  content TEXT NOT NULL,
  digest BLOB NOT NULL CHECK (length(digest) = 32),
  PRIMARY KEY (task_id, event_seq)
) STRICT, WITHOUT ROWID;

-- name: create_meta
-- Atomic with the schema.
INSERT INTO meta (one, store_id, namespace, generation, suspect, created_at)
VALUES (1, ?1, ?2, ?3, ?4, ?5)

-- name: meta
-- One read.
SELECT store_id, namespace, generation, suspect, created_at, blobs
FROM meta

-- name: place_blobs
-- In a transaction that reads it back: of two places written down at the same moment one stands.
UPDATE meta
SET blobs = ?1
WHERE blobs IS NULL

-- name: naming
-- One read of the whole log: everything in it that can name content.
SELECT input_ref, output_ref, data, error
FROM events
UNION ALL
SELECT NULL, NULL, content, NULL
FROM snapshots

-- name: bump
-- In the transaction of a claim, a park or an end; the mark is raised to it after the commit.
UPDATE meta
SET generation = generation + 1
RETURNING generation

-- name: set_suspect
-- In the transaction of the StoreRecovered row.
UPDATE meta
SET suspect = ?1

-- name: renew
-- In the transaction of recover's StoreRecovered row: a new identity, so that the old mark no longer fits.
UPDATE meta
SET suspect = 1, store_id = ?1, generation = ?2

-- name: append
-- One autocommitted statement: the epoch is checked and the row is written at one moment (I4).
-- Refused by the gap trigger, to which a row without a place is a gap: moved, or stale epoch.
-- VALUES and not SELECT … WHERE: beside a trigger that reads the same table, SQLite would copy the row to a temporary one.
INSERT INTO events ({{columns}})
VALUES (
  ?1,
  CASE WHEN (SELECT epoch FROM tasks WHERE task_id = ?1) = ?19 THEN ?2 END,
  {{values_after_seq}}
)

-- name: append_unfrozen
-- The same while nothing at all is frozen, checked at that moment. Refused also: something is frozen.
INSERT INTO events ({{columns}})
VALUES (
  ?1,
  CASE WHEN (SELECT epoch FROM tasks WHERE task_id = ?1) = ?19 AND NOT EXISTS (SELECT 1 FROM freezes) THEN ?2 END,
  {{values_after_seq}}
)

-- name: append_shared
-- One autocommitted statement for rows of many tasks, {{row}} as often as there are rows: each is checked as `append` does, and
-- as `append_unfrozen` where it has a guard. One that is refused takes all of them back. A row without a task is none.
INSERT INTO events ({{columns}})
SELECT
  column1,
  CASE
    WHEN (SELECT epoch FROM tasks WHERE task_id = column1) = column19
      AND (column22 IS NULL OR NOT EXISTS (SELECT 1 FROM freezes))
    THEN column2
  END,
  {{columns_after_seq}}
FROM (VALUES {{row}})
WHERE column1 IS NOT NULL

-- name: append_guarded
-- The same while this step is not frozen, checked at that moment. Refused also: frozen.
INSERT INTO events ({{columns}})
VALUES (
  ?1,
  CASE
    WHEN (SELECT epoch FROM tasks WHERE task_id = ?1) = ?19
      AND NOT EXISTS (SELECT 1 FROM freezes WHERE step = ?22 OR step = '*')
    THEN ?2
  END,
  {{values_after_seq}}
)

-- name: insert
-- One of several rows, in a transaction that has checked epoch and freeze.
INSERT INTO events ({{columns}})
VALUES ({{values}})

-- name: begin_rows
-- The first two rows of many tasks, {{new_row}} as often as there are rows, in the transaction that has written their heads.
INSERT INTO events ({{columns}})
SELECT *
FROM (VALUES {{new_row}})
WHERE column1 IS NOT NULL

-- name: put_blob
-- In the transaction of the event that names it; content that is there already stays as it is.
INSERT INTO blobs (digest, content)
SELECT ?1, ?2
WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE digest = ?1)

-- name: blob
-- One read.
SELECT content
FROM blobs
WHERE digest = ?1

-- name: has_blob
-- One read.
SELECT 1
FROM blobs
WHERE digest = ?1

-- name: blobs
-- One read of all content, for verify.
SELECT digest, content
FROM blobs

-- name: rows
-- One read: a consistent prefix of the log.
SELECT {{columns}}
FROM events
WHERE task_id = ?1
  AND event_seq > ?2
ORDER BY event_seq

-- name: next_rows
-- One read: the rows after a place, so many of them at most; a log is read in such pieces, each behind the one before.
SELECT {{columns}}
FROM events
WHERE task_id = ?1
  AND event_seq > ?2
ORDER BY event_seq
LIMIT ?3

-- name: rows_of_kinds
-- One read: a consistent prefix of the log.
SELECT {{columns}}
FROM events
WHERE task_id = ?1
  AND kind IN (SELECT value FROM json_each(?2))
ORDER BY event_seq

-- name: links
-- One read of so many rows at most: of each row its place, the hash that it has of the one before, and the text that its own hash is of.
SELECT event_seq, prev_hash, CAST(concat(
  {{whole_row}}
) AS BLOB)
FROM events
WHERE task_id = ?1
  AND event_seq > ?2
ORDER BY event_seq
LIMIT ?3

-- name: rows_of_step
-- One read: a consistent prefix of the log.
SELECT {{columns}}
FROM events
WHERE task_id = ?1
  AND event_seq > ?2
  AND path = ?3
ORDER BY event_seq

-- name: rows_at
-- One read; rows never change.
SELECT {{columns}}
FROM events
WHERE task_id = ?1
  AND event_seq IN (SELECT value FROM json_each(?2))
ORDER BY event_seq

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
FROM events
WHERE task_id = ?1
  AND event_seq > ?2
ORDER BY event_seq
LIMIT ?3

-- name: first
-- One read: the first row, and the one that is chained to it.
SELECT {{columns}}
FROM events
WHERE task_id = ?1
  AND event_seq <= 2
ORDER BY event_seq

-- name: last
-- One read; inside a transaction that seals rows, nothing can come after it.
SELECT {{columns}}
FROM events
WHERE task_id = ?1
ORDER BY event_seq DESC
LIMIT 1

-- name: all_rows
-- One read of the whole log, for verify.
SELECT {{columns}}
FROM events
ORDER BY task_id, event_seq

-- name: create_head
-- In the transaction of the TaskAccepted row.
INSERT INTO tasks (
  task_id, task_name, status, input_hash, created_at, updated_at, tail_seq, tail_hash, queue, priority, wake_at
)
VALUES (?1, ?2, ?3, ?4, ?5, ?5, 1, ?6, ?7, ?8, ?9)

-- name: begin_head
-- In the transaction of the TaskAccepted row and the TaskClaimed row behind it; the columns of a head, and the second row's hash.
INSERT INTO tasks ({{head}}, tail_hash, claimed_at, tail_seq)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, 2)

-- name: begin_heads
-- The same for many tasks, {{new_head}} as often as there are heads. Refused: one of them exists.
INSERT INTO tasks ({{head}}, tail_hash, claimed_at, tail_seq)
SELECT
  {{new_head_columns}},
  2
FROM (VALUES {{new_head}})
WHERE column1 IS NOT NULL

-- name: head
-- One read.
SELECT {{head}}
FROM tasks
WHERE task_id = ?1

-- name: heads
-- One read.
SELECT {{head}}
FROM tasks
ORDER BY created_at, task_id
LIMIT ?1

-- name: heads_of
-- One read.
SELECT {{head}}
FROM tasks
WHERE status IN (SELECT value FROM json_each(?2))
ORDER BY created_at, task_id
LIMIT ?1

-- name: heads_due
-- One read.
SELECT {{head}}
FROM tasks
WHERE status IN (SELECT value FROM json_each(?2))
  AND (
    (wake_at IS NULL AND status <> 'needs_human' AND NOT (status = 'waiting' AND coalesce(why, '') IN ({{idle}})))
    OR wake_at <= ?3
    OR (awaits IS NOT NULL AND EXISTS (SELECT 1 FROM keys WHERE once = tasks.awaits AND state <> 'open'))
  )
ORDER BY created_at, task_id
LIMIT ?1

-- name: due_free
-- One read: what is due and nobody has; `why` tells of the two kinds that wait for no time and have nothing to do.
SELECT {{head}}
FROM tasks
WHERE owner IS NULL
  AND status IN ('ready', 'running', 'waiting', 'compensating', 'needs_human')
  AND task_name IN (SELECT value FROM json_each(?1))
  AND (?2 IS NULL OR queue IN (SELECT value FROM json_each(?2)))
  AND (
    (wake_at IS NULL AND status <> 'needs_human')
    OR wake_at <= ?4
    OR (awaits IS NOT NULL AND EXISTS (SELECT 1 FROM keys WHERE once = tasks.awaits AND state <> 'open'))
  )
  AND instr(task_id, '/') = 0
  AND NOT (status = 'waiting' AND coalesce(why, '') IN (SELECT value FROM json_each(?3)))
  AND NOT (
    (coalesce(why, '') LIKE 'frozen: %' OR coalesce(why, '') LIKE 'child %frozen: %')
    AND EXISTS (
      SELECT 1
      FROM freezes
      WHERE step = '*'
        OR instr(substr(tasks.why, instr(tasks.why, 'frozen: ')), 'frozen: step ' || step || ' is ') = 1
    )
  )
ORDER BY priority, created_at, task_id
LIMIT ?5

-- name: due_others
-- One read: what is due and has an owner, who may be dead; and children that are due, for whom their root is run.
SELECT {{head}}
FROM tasks
WHERE (owner IS NOT NULL OR instr(task_id, '/') > 0)
  AND status IN ('ready', 'running', 'waiting', 'compensating', 'needs_human')
  AND (instr(task_id, '/') > 0 OR task_name IN (SELECT value FROM json_each(?1)))
  AND (?2 IS NULL OR instr(task_id, '/') > 0 OR queue IN (SELECT value FROM json_each(?2)))
  AND (
    (wake_at IS NULL AND status <> 'needs_human')
    OR wake_at <= ?3
    OR (awaits IS NOT NULL AND EXISTS (SELECT 1 FROM keys WHERE once = tasks.awaits AND state <> 'open'))
  )
ORDER BY priority, created_at, task_id

-- name: next_due
-- One read of an index.
SELECT min(wake_at)
FROM tasks
WHERE wake_at > ?1
  AND owner IS NULL

-- name: strangers
-- One read.
SELECT {{head}}
FROM tasks
WHERE owner IS NULL
  AND status IN ('ready', 'running', 'waiting', 'compensating', 'needs_human')
  AND task_name NOT IN (SELECT value FROM json_each(?1))
  AND (?2 IS NULL OR queue IN (SELECT value FROM json_each(?2)))
  AND instr(task_id, '/') = 0
ORDER BY created_at, task_id
LIMIT ?3

-- name: tails
-- One read, for verify.
SELECT task_id, task_name, status, input_hash, wake_at, why, awaits, queue, priority, tail_seq, tail_hash
FROM tasks

-- name: tail
-- One read: of the store's own task, which has no head, the meta row says it.
SELECT tail_seq, tail_hash
FROM tasks
WHERE task_id = ?1
UNION ALL
SELECT store_seq, store_hash
FROM meta
WHERE ?1 = '$store'
  AND store_hash IS NOT NULL

-- name: set_tail
-- In the transaction of rows of which the last one is not the one that changed the head.
UPDATE tasks
SET tail_seq = ?2, tail_hash = ?3
WHERE task_id = ?1

-- name: store_tail
-- In the transaction of a row of the store's own task.
UPDATE meta
SET store_seq = ?1, store_hash = ?2

-- name: claimed_at
-- One read.
SELECT claimed_at
FROM tasks
WHERE task_id = ?1

-- name: claim
-- In the transaction that has found the task without a living owner; the next append by an old epoch is refused (I4).
UPDATE tasks
SET owner = ?2, epoch = ?3, claimed_at = ?4
WHERE task_id = ?1

-- name: release
-- One statement: nothing happens unless the epoch is the current one.
UPDATE tasks
SET owner = NULL, epoch = NULL, claimed_at = NULL
WHERE task_id = ?1
  AND epoch = ?2

-- name: change_head
-- In the transaction of the row that changes it; ?8 is a JSON list of the statuses that it applies to, or null.
UPDATE tasks
SET status = ?2, wake_at = ?3, why = ?4, updated_at = ?5, tail_seq = ?6, tail_hash = ?7, awaits = ?9
WHERE task_id = ?1
  AND (?8 IS NULL OR status IN (SELECT value FROM json_each(?8)))

-- name: end_heads
-- `change_head` and `release` for many tasks that their owners let go, {{old_head}} as often as there are heads; behind their
-- rows, which were checked against the epoch.
UPDATE tasks
SET
  status = column2, wake_at = column3, why = column4, updated_at = column5, tail_seq = column6, tail_hash = column7,
  awaits = column8, owner = NULL, epoch = NULL, claimed_at = NULL
FROM (VALUES {{old_head}})
WHERE task_id = column1

-- name: open_case
-- In the transaction of the CaseOpened row.
INSERT INTO cases (case_id, task_id, event_seq, path, kind, opened_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)

-- name: close_case
-- In the transaction of the CaseSettled row: compare-and-set (I8). No row changed: settled already, or no such case.
UPDATE cases
SET settled_seq = ?2, settled_at = ?3, settled_by = ?4
WHERE case_id = ?1
  AND settled_seq IS NULL

-- name: case
-- One read.
SELECT {{case}}
FROM cases
WHERE case_id = ?1

-- name: notified
-- One statement; no event: a hook that was called twice has called nobody new.
UPDATE cases
SET notified_at = ?2
WHERE case_id = ?1

-- name: cases_open
-- One read.
SELECT {{case}}
FROM cases
WHERE settled_seq IS NULL
ORDER BY opened_at, task_id, event_seq

-- name: cases_all
-- One read.
SELECT {{case}}
FROM cases
ORDER BY opened_at, task_id, event_seq

-- name: cases_of_task
-- One read.
SELECT {{case}}
FROM cases
WHERE task_id = ?1
ORDER BY event_seq

-- name: freeze
-- In the transaction of the StoreFrozen row.
INSERT INTO freezes (step, why)
VALUES (?1, ?2)
ON CONFLICT (step) DO UPDATE SET why = excluded.why

-- name: thaw
-- In the transaction of the StoreThawed row.
DELETE FROM freezes
WHERE step = ?1

-- name: frozen
-- One read.
SELECT step, why
FROM freezes
ORDER BY step

-- name: frozen_step
-- In the transaction of a guarded append of several rows.
SELECT step, why
FROM freezes
WHERE step = ?1
  OR step = '*'
LIMIT 1

-- name: take_key
-- In the transaction of the row that takes it: unique, and only after the turn that its taker has seen let go.
-- No row changed: somebody else has it.
INSERT INTO keys (once, turn, task_id, path, state, window_us)
VALUES (?1, ?2, ?3, ?4, 'open', ?5)
ON CONFLICT (once) DO UPDATE SET
  turn = excluded.turn,
  task_id = excluded.task_id,
  path = excluded.path,
  state = 'open',
  window_us = excluded.window_us,
  done_at = NULL,
  done_boot = NULL
WHERE keys.turn = excluded.turn - 1
  AND (keys.state = 'freed' OR keys.state = 'done')

-- name: move_key
-- In the transaction of the row that settles its holder.
UPDATE keys
SET state = ?4, done_at = ?5, done_boot = ?6
WHERE once = ?1
  AND task_id = ?2
  AND path = ?3
  AND state = 'open'

-- name: key
-- One read.
SELECT {{key}}
FROM keys
WHERE once = ?1

-- name: keys
-- One read, for verify.
SELECT {{key}}
FROM keys

-- name: snapshot
-- One read.
SELECT {{snapshot}}
FROM snapshots
WHERE task_id = ?1
  AND (?2 IS NULL OR event_seq < ?2)
ORDER BY event_seq DESC
LIMIT 1

-- name: snapshots
-- One read of all of them, for verify.
SELECT {{snapshot}}
FROM snapshots
ORDER BY task_id, event_seq

-- name: prune_snapshots
-- In the transaction of the snapshot that follows: of the others only the one at ?2 stays.
DELETE FROM snapshots
WHERE task_id = ?1
  AND (?2 IS NULL OR event_seq <> ?2)

-- name: put_snapshot
-- After the pruning, in one transaction.
INSERT OR REPLACE INTO snapshots ({{snapshot}})
VALUES (?1, ?2, ?3, ?4, ?5, ?6)

-- name: drop_snapshots
-- One statement: a cache.
DELETE FROM snapshots
WHERE ?1 IS NULL
  OR task_id = ?1
