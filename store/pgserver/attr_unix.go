//go:build unix && !linux

package pgserver

import "syscall"

// childAttr keeps the child out of our process group, so that Ctrl-C in the
// terminal does not stop the database before the journal has been written. A
// child that outlives us here is found and used by the next start.
func childAttr(cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: cred}
}
