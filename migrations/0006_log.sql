-- Every input that can change the engine, in its order and with its time: what
-- it decided from. Rows of one transaction of the journal each.
CREATE TABLE outcome_log (
    position      bigint PRIMARY KEY, -- of the journal, after these inputs
    from_position bigint NOT NULL CHECK (from_position >= 0 AND from_position < position),
    at            timestamptz NOT NULL, -- the engine's time after them
    form          smallint NOT NULL CHECK (form > 0), -- how inputs is written; see store/log.go
    inputs        bytea NOT NULL
);

CREATE INDEX outcome_log_by_time ON outcome_log (at);
