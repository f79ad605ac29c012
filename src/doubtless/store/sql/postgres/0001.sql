-- Migration 1: the tables, what makes them append-only, and one function for each transaction that writes.
-- A function is one round trip, needs no session state, and each of its statements sees what was committed before it.
-- Functions bear a number: one whose meaning changes gets a new name and the old one goes, so that old code is refused. So does
-- `checked_1`, by which statements of the program itself write a row.

-- store_seq and store_hash: the last row of the store's own task, which has no head.
CREATE TABLE {{schema}}.meta (
  one integer PRIMARY KEY CHECK (one = 1),
  store_id bytea NOT NULL CHECK (octet_length(store_id) = 16),
  namespace bytea NOT NULL,
  suspect boolean NOT NULL,
  created_at bigint NOT NULL,
  blobs text,
  store_seq bigint NOT NULL DEFAULT 0,
  store_hash bytea CHECK (octet_length(store_hash) = 32)
);

-- What a column may hold. Domains, because a CHECK of a table is read and prepared anew by each statement: those of this log
-- cost as much as the row itself. Refs and policies are text here: inline:…, or sha256:… in hex.
CREATE DOMAIN {{schema}}.counted AS bigint CHECK (VALUE > 0);
CREATE DOMAIN {{schema}}.digest AS bytea CHECK (octet_length(VALUE) = 32);
CREATE DOMAIN {{schema}}.ref AS text
  CHECK (left(VALUE, 7) = 'inline:' OR (left(VALUE, 7) = 'sha256:' AND length(VALUE) = 71));
CREATE DOMAIN {{schema}}.details AS text
  CHECK (left(VALUE, 1) = '{' OR (left(VALUE, 7) = 'sha256:' AND length(VALUE) = 71));
CREATE DOMAIN {{schema}}.kind AS text CHECK (VALUE IN ({{kinds}}));
CREATE DOMAIN {{schema}}.effect AS text CHECK (VALUE IN ({{effects}}));

-- What holds between the columns is `check_row`'s, which is a trigger for the same reason. `checked_1`: true where the statement
-- that wrote the row has looked itself at what `check_row` looks at (`append_direct`), as a part of its plan, which costs half as
-- much. Whoever else inserts leaves it out.
CREATE TABLE {{schema}}.events (
  task_id text COLLATE "C" NOT NULL,
  event_seq {{schema}}.counted NOT NULL,
  step_seq {{schema}}.counted,
  path text,
  step_name text,
  kind {{schema}}.kind NOT NULL,
  status text,
  attempt {{schema}}.counted,
  effect_class {{schema}}.effect,
  idempotency_key {{schema}}.digest,
  input_hash {{schema}}.digest,
  input_ref {{schema}}.ref,
  output_ref {{schema}}.ref,
  error text,
  data {{schema}}.details,
  started_at bigint,
  finished_at bigint,
  boot_at bigint NOT NULL,
  epoch bigint,
  format {{schema}}.counted NOT NULL,
  prev_hash {{schema}}.digest,
  checked_1 boolean,
  PRIMARY KEY (task_id, event_seq)
);

CREATE TABLE {{schema}}.blobs (
  digest bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
  content bytea NOT NULL
);

-- tail_seq and tail_hash: the last row when this head changed, or something was added from outside, so that loss or damage at a
-- parked log's end shows.
-- lease_until: microseconds of this server's clock; the claim of this epoch is alive until then.
CREATE TABLE {{schema}}.tasks (
  task_id text COLLATE "C" PRIMARY KEY,
  task_name text NOT NULL,
  status text NOT NULL CHECK (status IN ({{task_statuses}})),
  input_hash bytea NOT NULL CHECK (octet_length(input_hash) = 32),
  owner text,
  epoch bigint,
  lease_until bigint,
  wake_at bigint,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL,
  why text,
  claimed_at bigint,
  awaits text COLLATE "C",
  queue text COLLATE "C" NOT NULL,
  priority integer NOT NULL,
  tail_seq bigint NOT NULL,
  tail_hash bytea NOT NULL CHECK (octet_length(tail_hash) = 32),
  CHECK ((owner IS NULL) = (epoch IS NULL)),
  CHECK ((owner IS NULL) = (lease_until IS NULL))
) WITH (fillfactor = 70);
CREATE INDEX tasks_by_status ON {{schema}}.tasks (status, created_at);
CREATE INDEX tasks_by_wake ON {{schema}}.tasks (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX tasks_by_awaits ON {{schema}}.tasks (awaits) WHERE awaits IS NOT NULL;
CREATE INDEX tasks_by_owner ON {{schema}}.tasks (owner) WHERE owner IS NOT NULL;
-- What nobody has and has something to do now, in the order in which it is taken: what sleeps, waits between two openings of a
-- session, or has ended is not in it, however much that is. Of children there is no order to keep.
CREATE INDEX tasks_free ON {{schema}}.tasks (priority, created_at, task_id) WHERE {{free}} AND strpos(task_id, '/') = 0;
CREATE INDEX tasks_free_children ON {{schema}}.tasks (task_id) WHERE {{free}} AND strpos(task_id, '/') > 0;
-- How many children there are: without it a third of all tasks is guessed, and a look is planned (and compiled) for that many.
CREATE STATISTICS {{schema}}.tasks_children ON (strpos(task_id, '/')) FROM {{schema}}.tasks;
CREATE INDEX tasks_by_name ON {{schema}}.tasks (task_name) WHERE {{live}} AND strpos(task_id, '/') = 0;

CREATE TABLE {{schema}}.cases (
  case_id text COLLATE "C" PRIMARY KEY,
  task_id text COLLATE "C" NOT NULL,
  event_seq bigint NOT NULL,
  path text,
  kind text NOT NULL CHECK (kind IN ({{case_kinds}})),
  opened_at bigint NOT NULL,
  settled_seq bigint,
  settled_at bigint,
  settled_by text,
  notified_at bigint
);
CREATE INDEX cases_by_task ON {{schema}}.cases (task_id, event_seq);
CREATE INDEX cases_open ON {{schema}}.cases (opened_at) WHERE settled_seq IS NULL;

CREATE TABLE {{schema}}.freezes (
  step text COLLATE "C" PRIMARY KEY,
  why text NOT NULL
);

-- Business keys, each with its newest holder: `once` is unique, and a turn is taken only after the turn before it. `state`:
-- open (in flight or in doubt), done (done_at, done_boot: when), failed (it may stand), freed (it did not happen).
CREATE TABLE {{schema}}.keys (
  once text COLLATE "C" PRIMARY KEY,
  turn bigint NOT NULL CHECK (turn > 0),
  task_id text COLLATE "C" NOT NULL,
  path text NOT NULL,
  state text NOT NULL CHECK (state IN ('open', 'done', 'failed', 'freed')),
  window_us bigint CHECK (window_us > 0),
  done_at bigint,
  done_boot bigint,
  CHECK ((state = 'done') = (done_at IS NOT NULL)),
  CHECK ((done_at IS NULL) = (done_boot IS NULL))
);

-- A cache of folds: deleting all of them changes nothing but speed. Each says which row of the log it stands on.
CREATE TABLE {{schema}}.snapshots (
  task_id text COLLATE "C" NOT NULL,
  event_seq bigint NOT NULL CHECK (event_seq > 0),
  row_hash bytea NOT NULL CHECK (octet_length(row_hash) = 32),
  format integer NOT NULL CHECK (format > 0),
  content text NOT NULL,
  digest bytea NOT NULL CHECK (octet_length(digest) = 32),
  PRIMARY KEY (task_id, event_seq)
);

CREATE FUNCTION {{schema}}.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the log is append-only: no % of %', TG_OP, TG_TABLE_NAME USING ERRCODE = 'DBLAO';
END $$;

-- Gapless: a place follows the place before it. The key refuses a place that is taken.
CREATE FUNCTION {{schema}}.check_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (NEW.event_seq = 1) <> (NEW.prev_hash IS NULL)
    OR (NEW.started_at IS NULL AND NEW.finished_at IS NULL)
    OR (NEW.status IS NOT NULL AND CASE WHEN NEW.kind IN ({{task_kinds}})
      THEN NEW.status NOT IN ({{task_statuses}})
      ELSE NEW.status NOT IN ({{step_statuses}})
    END)
  THEN
    RAISE EXCEPTION 'no row of a log: event %, a % with status %', NEW.event_seq, NEW.kind, NEW.status
      USING ERRCODE = 'check_violation';
  END IF;
  IF NEW.event_seq > 1
    AND NOT EXISTS (SELECT 1 FROM {{schema}}.events WHERE task_id = NEW.task_id AND event_seq = NEW.event_seq - 1)
  THEN
    RAISE EXCEPTION 'moved' USING ERRCODE = 'DBLMV';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {{schema}}.events
  FOR EACH STATEMENT EXECUTE FUNCTION {{schema}}.refuse_change();
CREATE TRIGGER events_gapless BEFORE INSERT ON {{schema}}.events
  FOR EACH ROW WHEN (NEW.checked_1 IS NOT TRUE) EXECUTE FUNCTION {{schema}}.check_row();
CREATE TRIGGER blobs_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {{schema}}.blobs
  FOR EACH STATEMENT EXECUTE FUNCTION {{schema}}.refuse_change();
-- Also for whoever sets session_replication_role.
ALTER TABLE {{schema}}.events ENABLE ALWAYS TRIGGER events_append_only;
ALTER TABLE {{schema}}.events ENABLE ALWAYS TRIGGER events_gapless;
ALTER TABLE {{schema}}.blobs ENABLE ALWAYS TRIGGER blobs_append_only;
REVOKE UPDATE, DELETE, TRUNCATE ON {{schema}}.events, {{schema}}.blobs FROM PUBLIC, CURRENT_USER;

-- The store's clock: microseconds since 1970.
CREATE FUNCTION {{schema}}.clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Asked in the transaction itself: through a pooler nobody knows which server process it runs in.
CREATE FUNCTION {{schema}}.refuse_undurable() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('synchronous_commit') = 'off' OR current_setting('fsync') = 'off' OR (
    current_setting('synchronous_commit') = 'local' AND current_setting('synchronous_standby_names') <> ''
  ) THEN
    RAISE EXCEPTION 'synchronous_commit is %, fsync is %', current_setting('synchronous_commit'), current_setting('fsync')
      USING ERRCODE = 'DBLSC';
  END IF;
END $$;

-- Refuse a frozen step. The lock: a freeze that has returned is seen by every attempt that begins after it, and a freeze
-- waits for the attempts that have begun. (`append_direct_unfrozen` has the table's lock for it.)
CREATE FUNCTION {{schema}}.refuse_frozen(p_step text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(1684172403, hashtext('{{schema_text}}'));
  IF EXISTS (SELECT 1 FROM {{schema}}.freezes WHERE step = p_step OR step = '*') THEN
    RAISE EXCEPTION 'frozen' USING ERRCODE = 'DBLFZ';
  END IF;
END $$;

-- One row of an owner that changes no projection, with the content that it names. The epoch is checked as it is written
-- (I4): a claim that changes the epoch of a task that has an owner writes a row at the next place, so that of the two one
-- finds its place taken. Gives the store's clock.
-- A step waits for this where nothing is prepared, and where `append_direct` wrote nothing: it is one statement and a few
-- expressions, which cost little; what a refusal means is asked when there is one. The lock is `refuse_frozen`'s: the INSERT sees what was committed before it was had.
CREATE FUNCTION {{schema}}.append_1(
  {{params}},
  p_guard text, p_digests bytea[], p_contents bytea[]
) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  IF p_guard IS NOT NULL AND pg_advisory_xact_lock_shared(1684172403, hashtext('{{schema_text}}')) IS NULL THEN
    RETURN NULL;
  END IF;
  IF p_digests IS NOT NULL THEN
    PERFORM {{schema}}.put_blobs_1(p_digests, p_contents);
  END IF;
  INSERT INTO {{schema}}.events ({{columns}})
  SELECT {{p_columns}}
  WHERE EXISTS (SELECT 1 FROM {{schema}}.tasks WHERE task_id = p_task_id AND epoch = p_epoch)
    AND (p_guard IS NULL OR NOT EXISTS (SELECT 1 FROM {{schema}}.freezes WHERE step = p_guard OR step = '*'))
    AND current_setting('synchronous_commit') <> 'off'
    AND current_setting('fsync') <> 'off'
    AND (current_setting('synchronous_commit') <> 'local' OR current_setting('synchronous_standby_names') = '');
  IF NOT FOUND THEN
    PERFORM {{schema}}.refuse_undurable();
    IF p_guard IS NOT NULL THEN
      PERFORM {{schema}}.refuse_frozen(p_guard);
    END IF;
    RAISE EXCEPTION 'stale epoch' USING ERRCODE = 'DBLST';
  END IF;
  RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
END $$;

-- Rows of many owners, no two of one task, that change no projection: each as `append_1` writes it, or left out where that would
-- refuse it, so that it does not harm the others; what `check_row` looks at is a part of its plan. Scalar subqueries and not
-- joins: each is one look into an index, whatever the planner believes of the tables. `p_guarded`: the freeze of some step is
-- asked. Gives the store's clock, and the places of the rows that were written, as JSON; null when all were.
CREATE FUNCTION {{schema}}.append_shared_1(
  p_rows json, p_count bigint, p_guarded boolean, p_digests bytea[], p_contents bytea[], OUT now_at bigint, OUT written text
) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM {{schema}}.refuse_undurable();
  IF p_guarded THEN
    PERFORM pg_advisory_xact_lock_shared(1684172403, hashtext('{{schema_text}}'));
  END IF;
  IF p_digests IS NOT NULL THEN
    PERFORM {{schema}}.put_blobs_1(p_digests, p_contents);
  END IF;
  WITH made AS (
    INSERT INTO {{schema}}.events ({{columns}}, checked_1)
    SELECT {{columns}}, true
    FROM json_to_recordset(p_rows) AS given (guard text, {{typed_columns}})
    WHERE (SELECT task.epoch FROM {{schema}}.tasks AS task WHERE task.task_id = given.task_id) = given.epoch
      AND (
        SELECT 1
        FROM {{schema}}.events AS before
        WHERE before.task_id = given.task_id
          AND before.event_seq = given.event_seq - 1
      ) = 1
      AND given.prev_hash IS NOT NULL
      AND coalesce(given.started_at, given.finished_at) IS NOT NULL
      AND given.kind NOT IN ({{task_kinds}})
      AND (given.status IN ({{step_statuses}})) IS NOT FALSE
      AND (
        given.guard IS NULL
        OR NOT EXISTS (SELECT 1 FROM {{schema}}.freezes WHERE step IN (given.guard, '*'))
      )
    ON CONFLICT DO NOTHING
    RETURNING task_id, event_seq
  )
  SELECT CASE WHEN count(*) < p_count THEN coalesce(json_agg(json_build_array(event_seq, task_id))::text, '[]') END
  INTO written
  FROM made;
  now_at := {{schema}}.clock();
END $$;

-- Tell the workers that listen that a task has something to do; of one transaction it is one word. A hint: they look by
-- themselves, too.
CREATE FUNCTION {{schema}}.tell_1() RETURNS void LANGUAGE sql AS $$
  SELECT pg_notify('doubtless_{{schema_text}}', '')
$$;

CREATE FUNCTION {{schema}}.put_blobs_1(p_digests bytea[], p_contents bytea[]) RETURNS void LANGUAGE sql AS $$
  INSERT INTO {{schema}}.blobs (digest, content)
  SELECT digest, content
  FROM unnest(p_digests, p_contents) AS given (digest, content)
  ON CONFLICT DO NOTHING
$$;

-- Rows as a JSON list of lists, in the order of the columns; digests in hex. jsonb: of json each column would read the whole row.
CREATE FUNCTION {{schema}}.insert_1(p_rows json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  r jsonb;
BEGIN
  FOR r IN SELECT value FROM jsonb_array_elements(p_rows::jsonb) LOOP
    INSERT INTO {{schema}}.events ({{columns}}) VALUES ({{json_columns}});
  END LOOP;
END $$;

-- What rows change in the projections, in their transaction, in their order.
CREATE FUNCTION {{schema}}.apply_1(p_task text, p_changes json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  c jsonb;
BEGIN
  FOR c IN SELECT value FROM jsonb_array_elements(p_changes::jsonb) LOOP
    CASE c->>'do'
      WHEN 'head' THEN
        UPDATE {{schema}}.tasks
        SET status = c->>'status', wake_at = (c->>'wake_at')::bigint, why = c->>'why', updated_at = (c->>'at')::bigint,
          tail_seq = (c->>'seq')::bigint, tail_hash = decode(c->>'hash', 'hex'), awaits = c->>'awaits'
        WHERE task_id = p_task
          AND (c->>'only' IS NULL OR status IN (SELECT jsonb_array_elements_text(c->'only')));
        IF c->>'status' = 'ready' THEN
          PERFORM {{schema}}.tell_1();
        END IF;
      WHEN 'open' THEN
        INSERT INTO {{schema}}.cases (case_id, task_id, event_seq, path, kind, opened_at)
        VALUES (c->>'case', p_task, (c->>'seq')::bigint, c->>'path', c->>'kind', (c->>'at')::bigint);
      WHEN 'close' THEN
        UPDATE {{schema}}.cases
        SET settled_seq = (c->>'seq')::bigint, settled_at = (c->>'at')::bigint, settled_by = c->>'by'
        WHERE case_id = c->>'case'
          AND settled_seq IS NULL;
        IF NOT FOUND THEN
          RAISE EXCEPTION '%', c->>'case' USING ERRCODE = 'DBLAS';
        END IF;
      WHEN 'freeze' THEN
        LOCK TABLE {{schema}}.freezes IN EXCLUSIVE MODE;
        PERFORM pg_advisory_xact_lock(1684172403, hashtext('{{schema_text}}'));
        INSERT INTO {{schema}}.freezes (step, why)
        VALUES (c->>'step', c->>'why')
        ON CONFLICT (step) DO UPDATE SET why = excluded.why;
      WHEN 'thaw' THEN
        DELETE FROM {{schema}}.freezes WHERE step = c->>'step';
        PERFORM {{schema}}.tell_1();
      WHEN 'take' THEN
        INSERT INTO {{schema}}.keys AS held (once, turn, task_id, path, state, window_us)
        VALUES (c->>'once', (c->>'turn')::bigint, p_task, c->>'path', 'open', (c->>'window')::bigint)
        ON CONFLICT (once) DO UPDATE SET
          turn = excluded.turn, task_id = excluded.task_id, path = excluded.path, state = 'open',
          window_us = excluded.window_us, done_at = NULL, done_boot = NULL
        WHERE held.turn = excluded.turn - 1
          AND held.state IN ('freed', 'done');
        IF NOT FOUND THEN
          RAISE EXCEPTION '%', c->>'once' USING ERRCODE = 'DBLKH';
        END IF;
      WHEN 'move' THEN
        UPDATE {{schema}}.keys
        SET state = c->>'state', done_at = (c->>'at')::bigint, done_boot = (c->>'boot')::bigint
        WHERE once = c->>'once'
          AND task_id = p_task
          AND path = c->>'path'
          AND state = 'open';
        IF EXISTS (SELECT 1 FROM {{schema}}.tasks WHERE awaits = c->>'once') THEN
          PERFORM {{schema}}.tell_1();
        END IF;
      WHEN 'tail' THEN
        UPDATE {{schema}}.tasks
        SET tail_seq = (c->>'seq')::bigint, tail_hash = decode(c->>'hash', 'hex')
        WHERE task_id = p_task;
        UPDATE {{schema}}.meta
        SET store_seq = (c->>'seq')::bigint, store_hash = decode(c->>'hash', 'hex')
        WHERE p_task = '$store';
      WHEN 'suspect' THEN
        UPDATE {{schema}}.meta
        SET suspect = (c->>'suspect')::boolean, store_id = coalesce(decode(c->>'store_id', 'hex'), store_id);
    END CASE;
  END LOOP;
END $$;

-- Several rows, or rows that change projections. `p_epoch`: the owner's; null for what needs no epoch.
CREATE FUNCTION {{schema}}.append_rows_1(
  p_task text, p_owned boolean, p_epoch bigint, p_rows json, p_changes json, p_guard text, p_digests bytea[],
  p_contents bytea[], p_release boolean
) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  PERFORM {{schema}}.refuse_undurable();
  IF p_guard IS NOT NULL THEN
    PERFORM {{schema}}.refuse_frozen(p_guard);
  END IF;
  IF p_owned AND NOT EXISTS (SELECT 1 FROM {{schema}}.tasks WHERE task_id = p_task AND epoch = p_epoch) THEN
    RAISE EXCEPTION 'stale epoch' USING ERRCODE = 'DBLST';
  END IF;
  IF p_digests IS NOT NULL THEN
    PERFORM {{schema}}.put_blobs_1(p_digests, p_contents);
  END IF;
  PERFORM {{schema}}.insert_1(p_rows);
  PERFORM {{schema}}.apply_1(p_task, p_changes);
  IF p_release THEN
    UPDATE {{schema}}.tasks
    SET owner = NULL, epoch = NULL, lease_until = NULL, claimed_at = NULL
    WHERE task_id = p_task
      AND epoch = p_epoch;
  END IF;
  RETURN {{schema}}.clock();
END $$;

-- Rows of many tasks, each task's as `append_rows_1` writes them, or left out where that refuses them, so that they do not harm the
-- others. Content is written first. Gives the store's clock, and the tasks whose rows were refused.
CREATE FUNCTION {{schema}}.append_several_1(
  p_several json, p_digests bytea[], p_contents bytea[], OUT now_at bigint, OUT refused text[]
) LANGUAGE plpgsql AS $$
DECLARE
  one json;
BEGIN
  PERFORM {{schema}}.refuse_undurable();
  IF p_digests IS NOT NULL THEN
    PERFORM {{schema}}.put_blobs_1(p_digests, p_contents);
  END IF;
  refused := '{}';
  FOR one IN SELECT value FROM json_array_elements(p_several) LOOP
    BEGIN
      PERFORM {{schema}}.append_rows_1(
        one->>'task', true, (one->>'epoch')::bigint, one->'rows', one->'changes', one->>'guard', NULL, NULL,
        (one->>'release')::boolean
      );
    EXCEPTION WHEN OTHERS THEN
      IF SQLSTATE <> '23505' AND left(SQLSTATE, 3) <> 'DBL' THEN
        RAISE;
      END IF;
      refused := refused || (one->>'task');
    END;
  END LOOP;
  now_at := {{schema}}.clock();
END $$;

-- Rows of many tasks that change their heads and nothing else, each task's as `append_rows_1` writes them: a place that is taken
-- refuses them all, and each asks for itself. `count`: how many rows a task has here, from `place` on. Content is written first.
-- Gives the store's clock, and the tasks whose rows were refused.
CREATE FUNCTION {{schema}}.append_heads_1(
  p_heads json, p_rows json, p_guarded boolean, p_digests bytea[], p_contents bytea[], OUT now_at bigint, OUT refused text[]
) LANGUAGE plpgsql AS $$
DECLARE
  fit text[];
  wanted bigint;
  made bigint;
  one record;
BEGIN
  PERFORM {{schema}}.refuse_undurable();
  IF p_guarded THEN
    PERFORM pg_advisory_xact_lock_shared(1684172403, hashtext('{{schema_text}}'));
  END IF;
  IF p_digests IS NOT NULL THEN
    PERFORM {{schema}}.put_blobs_1(p_digests, p_contents);
  END IF;
  SELECT
    coalesce(array_agg(task_id) FILTER (WHERE fits), '{}'),
    coalesce(array_agg(task_id) FILTER (WHERE NOT fits), '{}'),
    coalesce(sum(count) FILTER (WHERE fits), 0)
  INTO fit, refused, wanted
  FROM (
    SELECT
      task_id,
      count,
      ((SELECT task.epoch FROM {{schema}}.tasks AS task WHERE task.task_id = given.task_id) = given.epoch) IS TRUE
        AND (guard IS NULL OR NOT EXISTS (SELECT 1 FROM {{schema}}.freezes WHERE step IN (guard, '*'))) AS fits
    FROM json_to_recordset(p_heads) AS given (task_id text, epoch bigint, count bigint, guard text)
  ) AS judged;
  INSERT INTO {{schema}}.events ({{columns}})
  SELECT {{columns}}
  FROM json_to_recordset(p_rows) AS given ({{typed_columns}})
  WHERE task_id = ANY(fit)
  ORDER BY task_id COLLATE "C", event_seq;
  GET DIAGNOSTICS made = ROW_COUNT;
  IF made <> wanted THEN
    RAISE EXCEPTION '% rows where % were said', made, wanted USING ERRCODE = 'check_violation';
  END IF;
  FOR one IN
    SELECT *
    FROM json_to_recordset(p_heads) AS given (
      task_id text, epoch bigint, release boolean, status text, wake_at bigint, why text, awaits text, at bigint, seq bigint,
      hash text
    )
    WHERE task_id = ANY(fit)
    ORDER BY task_id COLLATE "C"
  LOOP
    UPDATE {{schema}}.tasks
    SET status = one.status, wake_at = one.wake_at, why = one.why, awaits = one.awaits, updated_at = one.at, tail_seq = one.seq,
      tail_hash = decode(one.hash, 'hex'),
      owner = CASE WHEN NOT one.release THEN owner END,
      epoch = CASE WHEN NOT one.release THEN epoch END,
      lease_until = CASE WHEN NOT one.release THEN lease_until END,
      claimed_at = CASE WHEN NOT one.release THEN claimed_at END
    WHERE task_id = one.task_id
      AND epoch = one.epoch;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'stale epoch' USING ERRCODE = 'DBLST';
    END IF;
    IF one.status = 'ready' THEN
      PERFORM {{schema}}.tell_1();
    END IF;
  END LOOP;
  now_at := {{schema}}.clock();
END $$;

-- Tasks with their first two rows (TaskAccepted, TaskClaimed), running, with an owner from the start; those whose ids exist are left
-- out. Nobody is told: they have one. Sent a second time, because the first one's fate was not known, it gives what that has begun.
CREATE FUNCTION {{schema}}.begin_1(
  p_tasks json, p_rows json, p_owner text, p_grant bigint, p_at bigint, p_digests bytea[], p_contents bytea[],
  OUT begun text[], OUT store_id bytea, OUT suspect boolean
) LANGUAGE plpgsql AS $$
DECLARE
  v_until bigint := coalesce(p_at, {{schema}}.clock()) + p_grant;
BEGIN
  PERFORM {{schema}}.refuse_undurable();
  WITH made AS (
    INSERT INTO {{schema}}.tasks (
      task_id, task_name, status, input_hash, created_at, updated_at, tail_seq, tail_hash, queue, priority, owner, epoch,
      lease_until, claimed_at
    )
    SELECT
      task_id, task_name, status, decode(input_hash, 'hex'), at, since, 2, decode(tail, 'hex'), queue, priority, p_owner, epoch,
      v_until, v_until - p_grant
    FROM json_to_recordset(p_tasks) AS given (
      task_id text, task_name text, status text, input_hash text, at bigint, since bigint, tail text, queue text,
      priority integer, epoch bigint
    )
    ORDER BY task_id COLLATE "C"
    ON CONFLICT DO NOTHING
    RETURNING task_id
  )
  SELECT coalesce(array_agg(task_id), '{}')
  INTO begun
  FROM made;
  IF p_digests IS NOT NULL AND begun <> '{}' THEN
    PERFORM {{schema}}.put_blobs_1(p_digests, p_contents);
  END IF;
  INSERT INTO {{schema}}.events ({{columns}})
  SELECT {{columns}}
  FROM json_to_recordset(p_rows) AS given ({{typed_columns}})
  WHERE task_id = ANY(begun)
  ORDER BY task_id COLLATE "C", event_seq;
  IF cardinality(begun) < json_array_length(p_tasks) THEN
    SELECT coalesce(array_agg(task_id), '{}')
    INTO begun
    FROM json_to_recordset(p_tasks) AS given (task_id text, epoch bigint)
    WHERE (
      SELECT task.epoch
      FROM {{schema}}.tasks AS task
      WHERE task.task_id = given.task_id
        AND task.owner = p_owner
    ) = given.epoch;
  END IF;
  SELECT meta.store_id, meta.suspect
  INTO store_id, suspect
  FROM {{schema}}.meta;
END $$;

-- The first row of a task and its head. False: the id exists, and nothing is written.
CREATE FUNCTION {{schema}}.accept_1(
  p_task text, p_name text, p_status text, p_hash bytea, p_at bigint, p_tail bytea, p_rows json, p_digests bytea[],
  p_contents bytea[], p_queue text, p_priority integer, p_not_before bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM {{schema}}.refuse_undurable();
  INSERT INTO {{schema}}.tasks (
    task_id, task_name, status, input_hash, created_at, updated_at, tail_seq, tail_hash, queue, priority, wake_at
  )
  VALUES (p_task, p_name, p_status, p_hash, p_at, p_at, json_array_length(p_rows), p_tail, p_queue, p_priority, p_not_before)
  ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF p_digests IS NOT NULL THEN
    PERFORM {{schema}}.put_blobs_1(p_digests, p_contents);
  END IF;
  PERFORM {{schema}}.insert_1(p_rows);
  PERFORM {{schema}}.tell_1();
  RETURN true;
END $$;

-- Become the owner of a task whose claim is the one that was looked at, and which is free or whose lease has ended; with
-- the row of a takeover. Gives the end of the new lease. Refused (busy): it is not as it was any more.
CREATE FUNCTION {{schema}}.claim_1(
  p_task text, p_seen bigint, p_owner text, p_epoch bigint, p_grant bigint, p_at bigint, p_rows json, p_changes json
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_until bigint := coalesce(p_at, {{schema}}.clock()) + p_grant;
BEGIN
  PERFORM {{schema}}.refuse_undurable();
  UPDATE {{schema}}.tasks
  SET owner = p_owner, epoch = p_epoch, lease_until = v_until, claimed_at = v_until - p_grant
  WHERE task_id = p_task
    AND epoch IS NOT DISTINCT FROM p_seen
    AND (owner IS NULL OR lease_until <= v_until - p_grant);
  IF NOT FOUND THEN
    RAISE EXCEPTION 'busy' USING ERRCODE = 'DBLBY';
  END IF;
  PERFORM {{schema}}.insert_1(p_rows);
  PERFORM {{schema}}.apply_1(p_task, p_changes);
  RETURN v_until;
END $$;

-- What a worker may run now, for so many free places: what is due and nobody has, claimed at once, of several workers each
-- getting other rows (what is being claimed at this moment is passed over); after them what is due and has an owner whose
-- lease has ended, and children that are due while nobody has their root: those are claimed one by one, with their rows.
-- Each kind of being due is looked up by its own index: those without a time in their order, then those whose time has come,
-- then those whose business key is no longer on its way.
CREATE FUNCTION {{schema}}.due_1(
  p_names text[], p_queues text[], p_idle text[], p_limit bigint, p_owner text, p_epochs bigint[], p_grant bigint, p_at bigint
) RETURNS SETOF {{schema}}.tasks LANGUAGE plpgsql SET jit = off AS $$
DECLARE
  v_now bigint := coalesce(p_at, {{schema}}.clock());
BEGIN
  PERFORM {{schema}}.refuse_undurable();
  RETURN QUERY
  WITH untimed AS MATERIALIZED (
    SELECT task_id, priority, created_at
    FROM {{schema}}.tasks
    WHERE {{free}}
      AND strpos(task_id, '/') = 0
      AND {{wanted}}
    ORDER BY priority, created_at, task_id
    LIMIT p_limit
    FOR UPDATE SKIP LOCKED
  ), timed AS MATERIALIZED (
    SELECT task_id, priority, created_at
    FROM {{schema}}.tasks
    WHERE {{live}}
      AND wake_at <= v_now
      AND strpos(task_id, '/') = 0
      AND {{wanted}}
    ORDER BY priority, created_at, task_id
    LIMIT p_limit
    FOR UPDATE SKIP LOCKED
  ), told AS MATERIALIZED (
    SELECT task_id, priority, created_at
    FROM {{schema}}.tasks
    WHERE {{live}}
      AND {{told}}
      AND (wake_at > v_now OR (wake_at IS NULL AND status = 'needs_human'))
      AND strpos(task_id, '/') = 0
      AND {{wanted}}
    ORDER BY priority, created_at, task_id
    LIMIT p_limit
    FOR UPDATE SKIP LOCKED
  ), free AS (
    SELECT task_id, priority, created_at
    FROM untimed
    UNION ALL
    SELECT task_id, priority, created_at
    FROM timed
    UNION ALL
    SELECT task_id, priority, created_at
    FROM told
    ORDER BY priority, created_at, task_id
    LIMIT p_limit
  ), numbered AS (
    SELECT task_id, row_number() OVER (ORDER BY priority, created_at, task_id) AS place
    FROM free
  )
  UPDATE {{schema}}.tasks AS task
  SET owner = p_owner, epoch = p_epochs[numbered.place], lease_until = v_now + p_grant, claimed_at = v_now
  FROM numbered
  WHERE task.task_id = numbered.task_id
  RETURNING task.*;
  RETURN QUERY
  SELECT task.*
  FROM (
    SELECT *
    FROM {{schema}}.tasks
    WHERE owner IS NOT NULL
      AND lease_until <= v_now
      AND status IN ({{alive}})
      AND (strpos(task_id, '/') > 0 OR (task_name = ANY(p_names) AND (p_queues IS NULL OR queue = ANY(p_queues))))
      AND ((wake_at IS NULL AND status <> 'needs_human') OR wake_at <= v_now OR ({{told}}))
    UNION ALL
    SELECT *
    FROM {{schema}}.tasks
    WHERE {{free}}
      AND strpos(task_id, '/') > 0
    UNION ALL
    SELECT *
    FROM {{schema}}.tasks
    WHERE {{live}}
      AND wake_at <= v_now
      AND strpos(task_id, '/') > 0
    UNION ALL
    SELECT *
    FROM {{schema}}.tasks
    WHERE {{live}}
      AND {{told}}
      AND (wake_at > v_now OR (wake_at IS NULL AND status = 'needs_human'))
      AND strpos(task_id, '/') > 0
  ) AS task
  WHERE strpos(task.task_id, '/') = 0
    OR (  -- not EXISTS: for that all roots may be read into a hash
      SELECT root.owner IS NULL OR root.lease_until <= v_now
      FROM {{schema}}.tasks AS root
      WHERE root.task_id = split_part(task.task_id, '/', 1)
    )
  ORDER BY task.priority, task.created_at, task.task_id;
END $$;
