package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// lockWait is how long Lock waits for another serve to go: one that was
	// killed just now leaves a backend for a moment.
	lockWait = 10 * time.Second
	lockPoll = 250 * time.Millisecond
	// lockPing is how often the lock's connection is asked whether it lives.
	lockPing = 5 * time.Second
)

// Lock is the right to be the only serve on the database, bound to one
// connection of its own.
type Lock struct {
	db      *DB
	changed func(held bool)
	stop    context.CancelFunc
	done    chan struct{}
}

// Lock takes the lock that lets only one serve work on a database. When another
// holds it for 10 s longer, the error names that one.
//
// The lock goes with its connection. When that is lost, changed(false) is
// called and the lock is taken again as soon as the database lets it, which is
// told by changed(true); meanwhile another serve may have taken it, and the
// journal refuses to write over what that one wrote. The calls come from one
// goroutine, never at the same time; nil is nobody.
func (db *DB) Lock(ctx context.Context, changed func(held bool)) (*Lock, error) {
	return db.lockWithin(ctx, lockWait, changed)
}

func (db *DB) lockWithin(ctx context.Context, wait time.Duration, changed func(held bool)) (*Lock, error) {
	if changed == nil {
		changed = func(bool) {}
	}
	limit, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		conn, holder, err := db.tryLock(limit)
		if err != nil && limit.Err() == nil {
			return nil, fmt.Errorf("take the lock of serve: %w", err)
		}
		if conn != nil {
			life, stop := context.WithCancel(context.WithoutCancel(ctx))
			l := &Lock{db: db, changed: changed, stop: stop, done: make(chan struct{})}
			go l.hold(life, conn)
			return l, nil
		}
		select {
		case <-limit.Done():
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("take the lock of serve: %w", err)
			}
			if holder == "" {
				// The last look ran out of time; who holds it takes another.
				again, cancel := context.WithTimeout(ctx, connectTimeout)
				defer cancel()
				if conn, holder, _ = db.tryLock(again); conn != nil {
					conn.Close(again)
				}
			}
			return nil, fmt.Errorf("another serve works on this database: %s; stop that one, or give this one a database of its own", holder)
		case <-time.After(lockPoll):
		}
	}
}

// tryLock opens a connection and takes the lock on it. Without an error and a
// connection somebody else holds it, and holder says who.
func (db *DB) tryLock(ctx context.Context) (conn *pgx.Conn, holder string, err error) {
	conn, err = pgx.ConnectConfig(ctx, db.pool.Config().ConnConfig.Copy())
	if err != nil {
		return nil, "", unreachable(db.pool.Config().ConnConfig, err)
	}
	var got bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", serveKey).Scan(&got); err != nil {
		conn.Close(context.WithoutCancel(ctx))
		return nil, "", err
	}
	if got {
		return conn, "", nil
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, `
		SELECT format('process %s of the database server, %s, from %s', a.pid,
		              coalesce(nullif(a.application_name, ''), 'without a name'),
		              coalesce(host(a.client_addr) || ' port ' || a.client_port, 'this machine'))
		FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		  AND l.classid = ($1::bigint >> 32)::bigint::oid AND l.objid = ($1::bigint & 4294967295)::bigint::oid AND l.objsubid = 1`, serveKey).Scan(&holder)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, "one that is just going", nil
	}
	return nil, holder, err
}

// Release gives the lock back and waits until that is done. It may be called
// again.
func (l *Lock) Release() {
	l.stop()
	<-l.done
}

// hold keeps the lock until ctx ends, across lost connections.
func (l *Lock) hold(ctx context.Context, conn *pgx.Conn) {
	defer close(l.done)
	for {
		err := watch(ctx, conn)
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		conn.Close(closing)
		cancel()
		if ctx.Err() != nil {
			return
		}
		l.db.log.Warn("the lock of serve is lost with its connection", "err", err)
		l.changed(false)
		if conn = l.regain(ctx); conn == nil {
			return
		}
		l.db.log.Info("the lock of serve is held again")
		l.changed(true)
	}
}

// watch returns when the connection is lost or ctx ends.
func watch(ctx context.Context, conn *pgx.Conn) error {
	for {
		quiet, cancel := context.WithTimeout(ctx, lockPing)
		_, err := conn.WaitForNotification(quiet)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if netErr, ok := errors.AsType[net.Error](err); err != nil && !(ok && netErr.Timeout()) && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		ping, cancel := context.WithTimeout(ctx, lockPing)
		err = conn.Ping(ping)
		cancel()
		if err != nil {
			return err
		}
	}
}

// regain takes the lock again, however long that lasts; nil when ctx ends.
func (l *Lock) regain(ctx context.Context) *pgx.Conn {
	told := false
	for {
		attempt, cancel := context.WithTimeout(ctx, connectTimeout)
		conn, holder, err := l.db.tryLock(attempt)
		cancel()
		if conn != nil {
			return conn
		}
		if err == nil && !told {
			l.db.log.Error("another serve has taken the database", "holder", holder)
			told = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lockPoll):
		}
	}
}
