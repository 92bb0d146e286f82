-- The calls that a word has been heard of: a second word about one is a
-- duplicate, also after a restart. They are kept for a day.

CREATE TABLE heard (
    call bytea PRIMARY KEY CHECK (length(call) = 16), -- a digest of the agent and its id, or of the permit
    at   timestamptz NOT NULL
);

CREATE INDEX heard_by_time ON heard (at);
