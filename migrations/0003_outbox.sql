-- What people are told. A message is written in the transaction of the
-- transitions that led to it, and sent afterwards.

CREATE TABLE outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    chat_id    bigint NOT NULL,
    thread     integer NOT NULL DEFAULT 0,
    kind       text NOT NULL CHECK (kind IN ('trip', 'long_open', 'update', 'flapping', 'digest', 'notice', 'answer')),
    dedupe_key text NOT NULL UNIQUE CHECK (dedupe_key <> ''),
    alert      bigint, -- the alert it is about; null for digests and notices
    target     bigint REFERENCES outbox (id) ON DELETE CASCADE, -- of an update: the row whose message it edits
    payload    jsonb NOT NULL,
    status     text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'sending', 'delivered', 'unknown', 'failed', 'expired')),
    attempts   integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    next_at    timestamptz NOT NULL,
    message_id bigint, -- Telegram's, once delivered
    version    integer NOT NULL DEFAULT 0 CHECK (version >= 0), -- how often an update was asked for again
    repeat     boolean NOT NULL DEFAULT false, -- an earlier attempt may have been delivered
    stale_from timestamptz, -- its alert changed before it was delivered: an update is due after that
    last_error text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL,
    settled_at timestamptz,
    CHECK ((kind = 'update') = (target IS NOT NULL))
);

CREATE INDEX outbox_due ON outbox (next_at) WHERE status IN ('pending', 'unknown');
CREATE INDEX outbox_in_flight ON outbox (id) WHERE status = 'sending';
CREATE INDEX outbox_by_alert ON outbox (alert, kind) WHERE alert IS NOT NULL;
CREATE INDEX outbox_by_target ON outbox (target) WHERE target IS NOT NULL;
CREATE INDEX outbox_by_creation ON outbox (created_at);

-- One digest for each destination, edition and local day.
CREATE TABLE digests (
    destination_id text NOT NULL CHECK (destination_id <> ''),
    edition        text NOT NULL CHECK (edition <> ''),
    day            date NOT NULL,
    window_from    timestamptz NOT NULL,
    window_to      timestamptz NOT NULL CHECK (window_to > window_from),
    due            timestamptz NOT NULL,
    outbox_id      bigint REFERENCES outbox (id) ON DELETE SET NULL,
    created_at     timestamptz NOT NULL,
    PRIMARY KEY (destination_id, edition, day)
);

-- What is known of chats beyond the configuration: groups that became
-- supergroups go on under their new number.
CREATE TABLE chats (
    chat_id  bigint PRIMARY KEY,
    moved_to bigint CHECK (moved_to <> chat_id)
);
