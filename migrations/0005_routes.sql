-- Calls marked as writes whose answer never came, so that nobody knows whether
-- they took effect. Permits for their key are held until somebody reconciles
-- them, or until the doubt expires.

CREATE TABLE writes (
    idempotency_key text PRIMARY KEY CHECK (idempotency_key <> ''),
    agent           text NOT NULL DEFAULT '', -- with the other labels: where to ask
    machine         text NOT NULL DEFAULT '',
    model           text NOT NULL DEFAULT '',
    provider        text NOT NULL DEFAULT '',
    cause           text NOT NULL CHECK (cause <> ''),
    at              timestamptz NOT NULL, -- when the call ended
    until           timestamptz NOT NULL CHECK (until >= at), -- permits are held until then, at the latest
    state           text NOT NULL CHECK (state IN ('in_doubt', 'applied', 'not_applied', 'expired')),
    settled_at      timestamptz, -- when somebody reconciled it
    settled_by      text NOT NULL DEFAULT '',
    CHECK ((state IN ('applied', 'not_applied')) = (settled_at IS NOT NULL))
);

CREATE INDEX writes_by_end ON writes (until);

-- Turns that did not get their chain's first target at their first call: the
-- fallback that they got, or that they were degraded, and why.
CREATE TABLE routes (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- the order of the engine
    at       timestamptz NOT NULL,
    agent    text NOT NULL DEFAULT '',
    chain    text NOT NULL CHECK (chain <> ''),
    machine  text NOT NULL DEFAULT '', -- with model, provider and tier: the target; '' when degraded
    model    text NOT NULL DEFAULT '',
    provider text NOT NULL DEFAULT '',
    tier     text NOT NULL DEFAULT '',
    hop      integer NOT NULL CHECK (hop >= 0),
    degraded boolean NOT NULL,
    until    timestamptz, -- of a degraded turn
    reason   text NOT NULL CHECK (reason <> ''),
    skipped  jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(skipped) = 'array'), -- [{"machine", "model", "provider", "reason", "cause", "retry_at"}], in the order of trial
    CHECK (degraded = (machine = '')),
    CHECK (degraded = (until IS NOT NULL))
);

CREATE INDEX routes_by_time ON routes (at);

-- What agents, machines and targets have done lately, for the judgements that
-- need history. Few rows that change all the time: no index on the time, so
-- that a change stays on its page.
CREATE TABLE lately (
    key   text PRIMARY KEY CHECK (key <> ''),
    at    timestamptz NOT NULL, -- of its last change
    saved jsonb NOT NULL -- everything, as the engine restores it
) WITH (fillfactor = 50);
