-- What the breakers did. Every row is written by the journal, in the engine's
-- order; times are the engine's. A label that a scope does not have is ''.

CREATE TABLE incidents (
    id              bigint PRIMARY KEY CHECK (id > 0), -- the era of the trip that began it
    breaker         text NOT NULL CHECK (breaker <> ''),
    rule            text NOT NULL CHECK (rule <> ''),
    agent           text NOT NULL DEFAULT '',
    machine         text NOT NULL DEFAULT '',
    model           text NOT NULL DEFAULT '',
    provider        text NOT NULL DEFAULT '',
    opened_at       timestamptz NOT NULL,
    closed_at       timestamptz CHECK (closed_at >= opened_at), -- null while it lasts
    trips           integer NOT NULL DEFAULT 1 CHECK (trips >= 1), -- openings: the first and each after a probe
    causes          jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(causes) = 'array'), -- [{"cause": "refused", "n": 3}], most frequent first
    detail          text NOT NULL DEFAULT '',
    evidence        jsonb,
    refused         bigint NOT NULL DEFAULT 0 CHECK (refused >= 0), -- permits refused because of it
    alert_id        bigint, -- the first incident of the alert that tells of it; null when nobody was told
    probes_failed   integer NOT NULL DEFAULT 0 CHECK (probes_failed >= 0),
    last_probe_at   timestamptz, -- of the last failed probe
    last_probe      text,        -- and its cause
    closed_by_probe integer NOT NULL DEFAULT 0 CHECK (closed_by_probe >= 0) -- which probe; 0: a control
);

CREATE UNIQUE INDEX incidents_one_open_per_breaker ON incidents (breaker) WHERE closed_at IS NULL;
CREATE INDEX incidents_by_breaker ON incidents (breaker, id);
CREATE INDEX incidents_by_alert ON incidents (alert_id) WHERE alert_id IS NOT NULL;
CREATE INDEX incidents_by_opening ON incidents (opened_at);
CREATE INDEX incidents_by_closing ON incidents (closed_at);

CREATE TABLE transitions (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- the order of the engine
    at          timestamptz NOT NULL,
    breaker     text NOT NULL CHECK (breaker <> ''),
    rule        text NOT NULL CHECK (rule <> ''),
    agent       text NOT NULL DEFAULT '',
    machine     text NOT NULL DEFAULT '',
    model       text NOT NULL DEFAULT '',
    provider    text NOT NULL DEFAULT '',
    from_state  text NOT NULL CHECK (from_state IN ('closed', 'half_open', 'open')),
    to_state    text NOT NULL CHECK (to_state IN ('closed', 'half_open', 'open')),
    cause       text CHECK (cause <> ''), -- null for controls
    reason      text NOT NULL CHECK (reason <> ''),
    detail      text NOT NULL DEFAULT '',
    evidence    jsonb,
    actor       text NOT NULL DEFAULT '',
    era         bigint NOT NULL CHECK (era > 0),
    incident_id bigint REFERENCES incidents (id), -- null outside an incident
    retry_at    timestamptz,
    UNIQUE (breaker, era)
);

CREATE INDEX transitions_by_time ON transitions (at);
CREATE INDEX transitions_by_machine ON transitions (machine, model, id);
CREATE INDEX transitions_by_incident ON transitions (incident_id) WHERE incident_id IS NOT NULL;

CREATE TABLE breakers (
    name       text PRIMARY KEY CHECK (name <> ''),
    rule       text NOT NULL CHECK (rule <> ''),
    agent      text NOT NULL DEFAULT '',
    machine    text NOT NULL DEFAULT '',
    model      text NOT NULL DEFAULT '',
    provider   text NOT NULL DEFAULT '',
    state      text NOT NULL CHECK (state IN ('closed', 'half_open', 'open')),
    era        bigint NOT NULL CHECK (era >= 0),
    retry_at   timestamptz,
    saved      jsonb NOT NULL, -- everything, as the engine restores it
    updated_at timestamptz NOT NULL
);

-- The journal's place in the engine's order. A commit whose answer was lost is
-- recognised by it, and a second writer fails on it.
CREATE TABLE journal (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    position   bigint NOT NULL CHECK (position >= 0),
    clock      jsonb NOT NULL,
    permit_key bytea NOT NULL CHECK (length(permit_key) = 32) -- signs permits; made once
);
