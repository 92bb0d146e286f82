package store

import (
	"context"
	"time"

	"breakerbot/migrations"
)

// MigrateList applies a list of a test's own.
func MigrateList(db *DB, ctx context.Context, list []migrations.Migration) error {
	return db.migrate(ctx, list)
}

// LockWithin is Lock with a wait of a test's own.
func LockWithin(db *DB, ctx context.Context, wait time.Duration) (*Lock, error) {
	return db.lockWithin(ctx, wait, nil)
}
