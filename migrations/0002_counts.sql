-- Statistics per minute in which the engine applied something: late results
-- are in them, duplicates are not.

CREATE TABLE outcome_counts (
    bucket      timestamptz NOT NULL, -- the minute's beginning
    agent       text NOT NULL DEFAULT '',
    machine     text NOT NULL DEFAULT '',
    model       text NOT NULL DEFAULT '',
    provider    text NOT NULL DEFAULT '',
    cause       text NOT NULL,
    served      text NOT NULL CHECK (served IN ('primary', 'fallback', 'cache', 'degraded', 'rejected')),
    calls       bigint NOT NULL CHECK (calls > 0),
    duration_ms bigint NOT NULL DEFAULT 0 CHECK (duration_ms >= 0), -- the sum
    -- How many calls took at most 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30,
    -- 60, 120, 300 and 600 s, and longer; each call is in one of the fifteen,
    -- those of unknown duration in none.
    durations   bigint[] NOT NULL CHECK (cardinality(durations) = 15),
    cost_usd    double precision NOT NULL DEFAULT 0,
    slow        bigint NOT NULL DEFAULT 0 CHECK (slow >= 0), -- with a latency verdict
    late        bigint NOT NULL DEFAULT 0 CHECK (late >= 0), -- moved no breaker
    PRIMARY KEY (bucket, agent, machine, model, provider, cause, served)
);

CREATE TABLE permit_counts (
    bucket   timestamptz NOT NULL,
    agent    text NOT NULL DEFAULT '',
    machine  text NOT NULL DEFAULT '',
    model    text NOT NULL DEFAULT '',
    provider text NOT NULL DEFAULT '',
    reason   text NOT NULL CHECK (reason <> ''), -- granted, probe, or a refusal's
    calls    bigint NOT NULL CHECK (calls > 0),
    PRIMARY KEY (bucket, agent, machine, model, provider, reason)
);

-- Calls made in place of another target: what they replaced, and why.
CREATE TABLE fallback_counts (
    bucket       timestamptz NOT NULL,
    agent        text NOT NULL DEFAULT '',
    from_machine text NOT NULL DEFAULT '',
    from_model   text NOT NULL DEFAULT '',
    from_cause   text NOT NULL DEFAULT '',
    machine      text NOT NULL DEFAULT '',
    model        text NOT NULL DEFAULT '',
    served       text NOT NULL,
    calls        bigint NOT NULL CHECK (calls > 0),
    PRIMARY KEY (bucket, agent, from_machine, from_model, from_cause, machine, model, served)
);
